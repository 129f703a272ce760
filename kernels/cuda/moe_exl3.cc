#include "kernels/cuda/moe_exl3.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/device/exl3_layout.h"
#include "kernels/cuda/weights.h"

namespace quartet::cuda {

absl::StatusOr<std::unique_ptr<Exl3Experts>> Exl3Experts::Make(
    Context& context, const std::vector<ops::MlpWeights>& experts, int top_k) {
  std::vector<const ops::Exl3Matrix*> matrices;
  std::vector<std::string> names;
  for (size_t e = 0; e < experts.size(); ++e) {
    const ops::LinearWeights* three[] = {&experts[e].gate, &experts[e].up, &experts[e].down};
    const char* what[] = {" gate", " up", " down"};
    for (int i = 0; i < 3; ++i) {
      matrices.push_back(std::get_if<ops::Exl3Matrix>(three[i]));
      names.push_back(absl::StrCat("expert ", e, what[i]));
      const ops::Exl3Matrix& first = *matrices[i];
      if (matrices.back()->in != first.in || matrices.back()->out != first.out) {
        return absl::InvalidArgumentError(absl::StrCat(
            names.back(), ": an EXL3 matrix of ", matrices.back()->in, " x ", matrices.back()->out,
            ", that of expert 0 is ", first.in, " x ", first.out));
      }
    }
  }
  auto op = std::make_unique<Exl3Experts>();
  op->context_ = &context;
  op->experts_ = static_cast<int>(experts.size());
  op->top_k_ = top_k;
  const auto used = [](int64_t used, int64_t all) { return used == 0 ? all : used; };
  const ops::Exl3Matrix& gate = *matrices[0];
  const ops::Exl3Matrix& down = *matrices[2];
  op->shape_ = {.hidden = used(gate.used_in, gate.in),
                .padded_hidden = gate.in,
                .inner = used(gate.used_out, gate.out),
                .padded_inner = gate.out,
                .limit = experts[0].limit};
  if (matrices[1]->out != gate.out || matrices[1]->in != gate.in || down.in != gate.out ||
      down.out != gate.in) {
    return absl::InvalidArgumentError("expert 0: gate, up and down do not fit one another");
  }
  absl::StatusOr<PackedExl3> bank = PackExl3(context, matrices, names);
  if (!bank.ok()) return bank.status();
  absl::StatusOr<Exl3Product> product = Exl3Product::Make(context, *bank);
  if (!product.ok()) return product.status();
  absl::StatusOr<Buffer> table =
      UploadBytes(context, bank->weights.data(), bank->weights.size() * sizeof(Exl3Weights),
                  "table of experts");
  if (!table.ok()) return table.status();
  absl::StatusOr<const Kernel*> select = context.device->Find("moe_select");
  if (!select.ok()) return select.status();
  absl::StatusOr<Exl3Gemm> gemm = Exl3Gemm::Make(context, *bank);
  if (!gemm.ok()) return gemm.status();
  absl::StatusOr<const Kernel*> sort = context.device->Find("moe_sort");
  if (!sort.ok()) return sort.status();
  absl::StatusOr<const Kernel*> combine = context.device->Find("moe_combine");
  if (!combine.ok()) return combine.status();
  op->bank_ = *std::move(bank);
  op->table_ = *std::move(table);
  op->product_ = *product;
  op->select_ = *select;
  op->gemm_ = *gemm;
  op->sort_ = *sort;
  op->combine_ = *combine;
  return op;
}

// The most groups that few rows can make.
int Exl3Experts::Groups(int rows) const {
  return std::min(rows * top_k_, experts_);
}

Exl3Experts::Cuts Exl3Experts::CutsFor(int rows) const {
  const int groups = Groups(rows);
  return {CutProduct(*context_, shape_.padded_hidden, 2 * shape_.padded_inner, shape_.padded_inner,
                     groups, rows),
          CutProduct(*context_, shape_.padded_inner, shape_.padded_hidden, shape_.padded_hidden,
                     groups, rows)};
}

Exl3Experts::DecodeBuffers Exl3Experts::Cut(WorkspaceCutter& cutter, int rows,
                                            const Cuts& cuts) const {
  const int64_t slots = static_cast<int64_t>(rows) * top_k_;
  DecodeBuffers b;
  b.slots = cutter.Take<MoeSlot>(slots);
  b.groups = cutter.Take<Exl3Group>(slots);
  b.gate_up = cutter.Take<float>(cuts.gate_up.parts * slots * 2 * shape_.padded_inner);
  b.down = cutter.Take<float>(cuts.down.parts * slots * shape_.padded_hidden);
  return b;
}

size_t Exl3Experts::WorkspaceBytes(int max_rows) const {
  size_t bytes = 0;
  for (int rows = 1; rows <= std::min(max_rows, kFewRows); ++rows) {
    WorkspaceCutter cutter;
    Cut(cutter, rows, CutsFor(rows));
    bytes = std::max(bytes, cutter.used());
  }
  if (max_rows > kFewRows) {
    WorkspaceCutter cutter;
    CutPrefill(cutter, std::min(max_rows, kPrefillRows));
    // Fewer rows may have more tiles, smaller ones.
    const size_t more_tiles = kPrefillRows * top_k_ / exl3::kSmallRowTile * sizeof(Exl3RowTile);
    bytes = std::max(bytes, cutter.used() + more_tiles);
  }
  return bytes;
}

void Exl3Experts::Select(int rows, const RouterChoice& choice, const DecodeBuffers& b) const {
  context_->device->Launch(select_, {.grid_x = 1, .threads = 256},
                           MoeSelectParams{.logits = choice.logits,
                                           .bias = choice.bias,
                                           .forced = choice.forced,
                                           .slots = b.slots,
                                           .trace_experts = choice.trace.experts,
                                           .trace_weights = choice.trace.weights,
                                           .rows = rows,
                                           .experts = experts_,
                                           .top_k = top_k_,
                                           .scaling = choice.scaling,
                                           .groups = b.groups,
                                           .bank = table_.as<Exl3Weights>(),
                                           .inputs = static_cast<int32_t>(shape_.padded_hidden)});
}

void Exl3Experts::GateUp(const float* x, int rows, const Cuts& cuts, const DecodeBuffers& b) const {
  product_.Launch({.groups = b.groups,
                   .single = {},
                   .sums = b.gate_up,
                   .slots = rows * top_k_,
                   .in = static_cast<int32_t>(shape_.padded_hidden),
                   .out = static_cast<int32_t>(shape_.padded_inner),
                   .matrices = 2,
                   .first_matrix = 0,
                   .parts = 0,
                   .part_inputs = 0,
                   .strips_per_warp = 0,
                   .saturation = context_->saturation,
                   .x = x,
                   .x_stride = shape_.hidden,
                   .used_in = static_cast<int32_t>(shape_.hidden)},
                  cuts.gate_up, Groups(rows), rows);
}

void Exl3Experts::Down(int rows, const Cuts& cuts, const DecodeBuffers& b) const {
  product_.Launch({.groups = b.groups,
                   .single = {},
                   .sums = b.down,
                   .slots = rows * top_k_,
                   .in = static_cast<int32_t>(shape_.padded_inner),
                   .out = static_cast<int32_t>(shape_.padded_hidden),
                   .matrices = 1,
                   .first_matrix = 2,
                   .parts = 0,
                   .part_inputs = 0,
                   .strips_per_warp = 0,
                   .saturation = context_->saturation,
                   .x = nullptr,
                   .x_stride = 0,
                   .used_in = static_cast<int32_t>(shape_.inner),
                   .gate_up = b.gate_up,
                   .gate_up_parts = cuts.gate_up.parts,
                   .limit = shape_.limit},
                  cuts.down, Groups(rows), rows);
}

void Exl3Experts::Combine(int rows, int parts, const MoeSlot* slots, const int32_t* places,
                          const float* sums, float* partial) const {
  context_->device->Launch(combine_,
                           {.grid_x = static_cast<unsigned>(shape_.padded_hidden / exl3::kBlock),
                            .grid_y = static_cast<unsigned>(rows),
                            .threads = static_cast<unsigned>(std::max(32 * top_k_, exl3::kBlock))},
                           MoeCombineParams{.sums = sums,
                                            .places = places,
                                            .slots = slots,
                                            .bank = table_.as<Exl3Weights>(),
                                            .partial = partial,
                                            .parts = parts,
                                            .slot_count = rows * top_k_,
                                            .top_k = top_k_,
                                            .out = static_cast<int32_t>(shape_.padded_hidden),
                                            .used_out = static_cast<int32_t>(shape_.hidden)});
}

void Exl3Experts::Decode(const float* x, int rows, const RouterChoice& choice, float* partial,
                         std::byte* workspace) const {
  WorkspaceCutter cutter(workspace);
  const Cuts cuts = CutsFor(rows);
  const DecodeBuffers b = Cut(cutter, rows, cuts);
  Select(rows, choice, b);
  GateUp(x, rows, cuts, b);
  Down(rows, cuts, b);
  context_->device->Join();  // see RoutedExperts::Run
  Combine(rows, cuts.down.parts, b.slots, nullptr, b.down, partial);
}

void Exl3Experts::Run(const float* x, int rows, const RouterChoice& choice, float* partial,
                      ops::Workspace workspace) const {
  const int most = context_->RowsAtOnce(rows > kFewRows ? kPrefillRows : kFewRows);
  for (int first = 0; first < rows; first += most) {
    const int count = std::min(most, rows - first);
    RouterChoice part = choice;
    const auto move = [&](auto* p, int64_t width) { return p == nullptr ? p : p + first * width; };
    part.logits = move(choice.logits, experts_);
    part.forced = move(choice.forced, top_k_);
    part.trace.experts = move(choice.trace.experts, top_k_);
    part.trace.weights = move(choice.trace.weights, top_k_);
    const float* x_part = x + first * shape_.hidden;
    float* partial_part = partial + first * shape_.hidden;
    if (count > kFewRows) {
      Prefill(x_part, count, part, partial_part, workspace.data);
    } else {
      Decode(x_part, count, part, partial_part, workspace.data);
    }
  }
}

// ---- many rows

// By the rows that an expert has on average.
int Exl3Experts::RowTile(int rows) const {
  return Exl3Gemm::RowTile(static_cast<int64_t>(rows) * top_k_ / experts_);
}

// Every expert's last tile may be nearly empty.
int Exl3Experts::MostTiles(int rows) const {
  const int slots = rows * top_k_;
  return slots / RowTile(rows) + std::min(slots, experts_);
}

Exl3Experts::PrefillBuffers Exl3Experts::CutPrefill(WorkspaceCutter& cutter, int rows) const {
  const int64_t slots = static_cast<int64_t>(rows) * top_k_;
  PrefillBuffers b;
  b.slots = cutter.Take<MoeSlot>(slots);
  b.sorted = cutter.Take<int32_t>(slots);
  b.places = cutter.Take<int32_t>(slots);
  b.expert_of = cutter.Take<int32_t>(slots);
  b.tiles = cutter.Take<Exl3RowTile>(MostTiles(rows));
  b.tile_count = cutter.Take<int32_t>(1);
  b.inputs = cutter.Take<uint16_t>(2 * slots * shape_.padded_hidden);
  b.down = reinterpret_cast<float*>(b.inputs);  // as large, and needed later
  b.gate_up = cutter.Take<float>(slots * 2 * shape_.padded_inner);
  b.activations = cutter.Take<uint16_t>(slots * shape_.padded_inner);
  return b;
}

void Exl3Experts::SelectMany(int rows, const RouterChoice& choice, const PrefillBuffers& b) const {
  context_->device->Launch(select_, {.grid_x = CeilDiv(rows, 8), .threads = 256},
                           MoeSelectParams{.logits = choice.logits,
                                           .bias = choice.bias,
                                           .forced = choice.forced,
                                           .slots = b.slots,
                                           .trace_experts = choice.trace.experts,
                                           .trace_weights = choice.trace.weights,
                                           .rows = rows,
                                           .experts = experts_,
                                           .top_k = top_k_,
                                           .scaling = choice.scaling,
                                           .groups = nullptr,
                                           .bank = nullptr,
                                           .inputs = 0});
  context_->device->Launch(sort_, {.grid_x = static_cast<unsigned>(experts_), .threads = 256},
                           MoeSortParams{.slots = b.slots,
                                         .count = rows * top_k_,
                                         .experts = experts_,
                                         .sorted = b.sorted,
                                         .places = b.places,
                                         .expert_of = b.expert_of,
                                         .tiles = b.tiles,
                                         .tile_count = b.tile_count,
                                         .row_tile = RowTile(rows)});
}

void Exl3Experts::Prefill(const float* x, int rows, const RouterChoice& choice, float* partial,
                          std::byte* workspace) const {
  WorkspaceCutter cutter(workspace);
  const PrefillBuffers b = CutPrefill(cutter, rows);
  SelectMany(rows, choice, b);
  const Exl3Positions positions = {.tiles = b.tiles,
                                   .tile_count = b.tile_count,
                                   .slots = b.sorted,
                                   .experts = b.expert_of,
                                   .bank = table_.as<Exl3Weights>(),
                                   .single = {},
                                   .count = rows * top_k_,
                                   .slots_per_row = top_k_};
  const int hidden = static_cast<int>(shape_.padded_hidden);
  const int inner = static_cast<int>(shape_.padded_inner);
  gemm_.TransformRows({.positions = positions,
                       .inputs = b.inputs,
                       .in = hidden,
                       .matrices = 2,
                       .first_matrix = 0,
                       .saturation = context_->saturation,
                       .x = x,
                       .x_stride = shape_.hidden,
                       .used_in = static_cast<int32_t>(shape_.hidden),
                       .gate_up = nullptr,
                       .limit = 0.0f});
  gemm_.Multiply({.positions = positions,
                  .inputs = b.inputs,
                  .sums = b.gate_up,
                  .in = hidden,
                  .out = inner,
                  .matrices = 2,
                  .first_matrix = 0},
                 RowTile(rows), MostTiles(rows));
  gemm_.TransformActivations({.positions = positions,
                              .inputs = b.activations,
                              .in = inner,
                              .matrices = 1,
                              .first_matrix = 2,
                              .saturation = context_->saturation,
                              .x = nullptr,
                              .x_stride = 0,
                              .used_in = static_cast<int32_t>(shape_.inner),
                              .gate_up = b.gate_up,
                              .limit = shape_.limit});
  gemm_.Multiply({.positions = positions,
                  .inputs = b.activations,
                  .sums = b.down,
                  .in = inner,
                  .out = hidden,
                  .matrices = 1,
                  .first_matrix = 2},
                 RowTile(rows), MostTiles(rows));
  context_->device->Join();
  Combine(rows, 1, b.slots, b.places, b.down, partial);
}

absl::StatusOr<std::unique_ptr<RoutedExperts>> MakeExl3Experts(
    Context& context, const std::vector<ops::MlpWeights>& experts, int top_k) {
  return Exl3Experts::Make(context, experts, top_k);
}

}  // namespace quartet::cuda
