#include "kernels/cuda/exl3.h"

#include <algorithm>
#include <string>
#include <utility>

#include "kernels/cuda/device/exl3_layout.h"

namespace quartet::cuda {
namespace {

using exl3::kBlock;
using exl3::kTokens;
using exl3::kWarps;

// From here on decoding once for 64 rows pays.
constexpr int kManyRows = 2 * kTokens + 1;

}  // namespace

absl::StatusOr<Exl3Linear> Exl3Linear::Make(Context& context, const ops::Exl3Matrix& matrix,
                                            std::string_view what) {
  const ops::Exl3Matrix* const one = &matrix;
  const std::string name(what);
  absl::StatusOr<PackedExl3> bank = PackExl3(context, {&one, 1}, {&name, 1});
  if (!bank.ok()) return bank.status();
  absl::StatusOr<Exl3Product> product = Exl3Product::Make(context, *bank);
  if (!product.ok()) return product.status();
  absl::StatusOr<Exl3Gemm> gemm = Exl3Gemm::Make(context, *bank);
  if (!gemm.ok()) return gemm.status();
  absl::StatusOr<const Kernel*> output = context.device->Find("exl3_output");
  if (!output.ok()) return output.status();
  Exl3Linear linear;
  linear.context_ = &context;
  linear.padded_in_ = matrix.in;
  linear.padded_out_ = matrix.out;
  linear.in_ = matrix.used_in == 0 ? matrix.in : matrix.used_in;
  linear.out_ = matrix.used_out == 0 ? matrix.out : matrix.used_out;
  linear.bank_ = *std::move(bank);
  linear.product_ = *product;
  linear.gemm_ = *gemm;
  linear.output_ = *output;
  return linear;
}

Exl3Cut Exl3Linear::Cut(int rows) const {
  if (rows >= kManyRows) return {};
  const int groups = static_cast<int>(CeilDiv(rows, kTokens));
  return CutProduct(*context_, padded_in_, padded_out_, padded_out_, groups,
                    std::min(rows, kTokens));
}

Exl3Linear::Buffers Exl3Linear::Take(WorkspaceCutter& cutter, int rows, const Exl3Cut& cut) const {
  Buffers b;
  if (rows >= kManyRows) b.inputs = cutter.Take<uint16_t>(rows * padded_in_);
  b.sums = cutter.Take<float>(cut.parts * rows * padded_out_);
  return b;
}

size_t Exl3Linear::WorkspaceBytes(int max_rows) const {
  size_t bytes = 0;
  // Fewer rows may be cut into more parts.
  for (int rows = 1; rows <= std::min(max_rows, kManyRows); ++rows) {
    WorkspaceCutter cutter;
    Take(cutter, rows, Cut(rows));
    bytes = std::max(bytes, cutter.used());
  }
  WorkspaceCutter cutter;
  Take(cutter, max_rows, Cut(max_rows));
  return std::max(bytes, cutter.used());
}

void Exl3Linear::FewRows(const float* x, int64_t x_stride, int rows, const Exl3Cut& cut,
                         float* sums) const {
  product_.Launch({.groups = nullptr,
                   .single = bank_.weights[0],
                   .sums = sums,
                   .slots = rows,
                   .in = static_cast<int32_t>(padded_in_),
                   .out = static_cast<int32_t>(padded_out_),
                   .matrices = 1,
                   .first_matrix = 0,
                   .parts = 0,
                   .part_inputs = 0,
                   .strips_per_warp = 0,
                   .saturation = context_->saturation,
                   .x = x,
                   .x_stride = x_stride,
                   .used_in = static_cast<int32_t>(in_)},
                  cut, static_cast<int>(CeilDiv(rows, kTokens)), std::min(rows, kTokens));
}

void Exl3Linear::ManyRows(const float* x, int64_t x_stride, int rows, const Buffers& b) const {
  const int row_tile = Exl3Gemm::RowTile(rows);
  Exl3Positions positions;
  positions.single = bank_.weights[0];
  positions.count = rows;
  gemm_.TransformRows({.positions = positions,
                       .inputs = b.inputs,
                       .in = static_cast<int32_t>(padded_in_),
                       .matrices = 1,
                       .first_matrix = 0,
                       .saturation = context_->saturation,
                       .x = x,
                       .x_stride = x_stride,
                       .used_in = static_cast<int32_t>(in_),
                       .gate_up = nullptr,
                       .limit = 0.0f});
  gemm_.Multiply({.positions = positions,
                  .inputs = b.inputs,
                  .sums = b.sums,
                  .in = static_cast<int32_t>(padded_in_),
                  .out = static_cast<int32_t>(padded_out_),
                  .matrices = 1,
                  .first_matrix = 0},
                 row_tile, static_cast<int>(CeilDiv(rows, row_tile)));
}

void Exl3Linear::Run(const float* x, int64_t x_stride, int rows, float* y, int64_t y_stride,
                     ops::Workspace workspace) const {
  const Exl3Cut cut = Cut(rows);
  WorkspaceCutter cutter(workspace.data);
  const Buffers b = Take(cutter, rows, cut);
  if (rows >= kManyRows) {
    ManyRows(x, x_stride, rows, b);
  } else {
    FewRows(x, x_stride, rows, cut, b.sums);
  }
  context_->device->Launch(output_,
                           {.grid_x = CeilDiv(padded_out_ / kBlock, kWarps),
                            .grid_y = static_cast<unsigned>(rows),
                            .threads = exl3::kThreads},
                           Exl3OutputParams{.sums = b.sums,
                                            .svh = bank_.weights[0].svh,
                                            .y = y,
                                            .y_stride = y_stride,
                                            .parts = cut.parts,
                                            .rows = rows,
                                            .out = static_cast<int32_t>(padded_out_),
                                            .used_out = static_cast<int32_t>(out_)});
}

}  // namespace quartet::cuda
