#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/moe_experts.h"
#include "kernels/cuda/weights.h"

namespace quartet::cuda {
namespace {

constexpr int kRows = 512;  // at a time

class DenseExperts final : public RoutedExperts {
 public:
  static absl::StatusOr<std::unique_ptr<RoutedExperts>> Make(
      Context& context, const std::vector<ops::MlpWeights>& experts, int top_k) {
    auto op = std::make_unique<DenseExperts>();
    std::vector<uint16_t> gate_up, down;
    for (size_t e = 0; e < experts.size(); ++e) {
      const std::string name = absl::StrCat("expert ", e);
      const ops::MlpWeights& w = experts[e];
      absl::Status s = Append(w.gate, name + " gate", gate_up);
      if (s.ok()) s = Append(w.up, name + " up", gate_up);
      if (s.ok()) s = Append(w.down, name + " down", down);
      if (!s.ok()) return s;
    }
    const auto& first = std::get<ops::DenseMatrix>(experts[0].gate);
    op->context_ = &context;
    op->experts_ = static_cast<int>(experts.size());
    op->top_k_ = top_k;
    op->hidden_ = first.cols;
    op->inner_ = first.rows;
    op->limit_ = experts[0].limit;
    absl::StatusOr<Buffer> buffer =
        UploadBytes(context, gate_up.data(), gate_up.size() * 2, "gate and up of the experts");
    if (!buffer.ok()) return buffer.status();
    op->gate_up_ = *std::move(buffer);
    buffer = UploadBytes(context, down.data(), down.size() * 2, "down of the experts");
    if (!buffer.ok()) return buffer.status();
    op->down_ = *std::move(buffer);
    const std::pair<const char*, const Kernel**> kernels[] = {{"moe_select", &op->select_},
                                                              {"moe_dense", &op->dense_},
                                                              {"moe_dense_combine", &op->combine_}};
    for (const auto& [name, kernel] : kernels) {
      absl::StatusOr<const Kernel*> found = context.device->Find(name);
      if (!found.ok()) return found.status();
      *kernel = *found;
    }
    return op;
  }

  size_t WorkspaceBytes(int max_rows) const override {
    WorkspaceCutter cutter;
    Take(cutter, std::min(max_rows, kRows));
    return cutter.used();
  }

  void Run(const float* x, int rows, const RouterChoice& choice, float* partial,
           ops::Workspace workspace) const override {
    for (int first = 0; first < rows; first += kRows) {
      WorkspaceCutter cutter(workspace.data);
      const int count = std::min(kRows, rows - first);
      RunRows(x + first * hidden_, first, count, choice, Take(cutter, count),
              partial + first * hidden_);
    }
  }

 private:
  struct Buffers {
    MoeSlot* slots;
    float* activation;  // [slots, inner]
    float* outputs;     // [slots, hidden]
  };

  static absl::Status Append(const ops::LinearWeights& weights, const std::string& name,
                             std::vector<uint16_t>& all) {
    absl::StatusOr<std::vector<uint16_t>> half = ToF16(std::get<ops::DenseMatrix>(weights), name);
    if (!half.ok()) return half.status();
    all.insert(all.end(), half->begin(), half->end());
    return absl::OkStatus();
  }

  Buffers Take(WorkspaceCutter& cutter, int rows) const {
    const int64_t slots = static_cast<int64_t>(rows) * top_k_;
    Buffers b;
    b.slots = cutter.Take<MoeSlot>(slots);
    b.activation = cutter.Take<float>(slots * inner_);
    b.outputs = cutter.Take<float>(slots * hidden_);
    return b;
  }

  void RunRows(const float* x, int64_t first, int rows, const RouterChoice& choice,
               const Buffers& b, float* partial) const {
    const auto move = [&](auto* p, int64_t width) { return p == nullptr ? p : p + first * width; };
    Device& device = *context_->device;
    device.Launch(select_, {.grid_x = CeilDiv(rows, 8), .threads = 256},
                  MoeSelectParams{.logits = choice.logits + first * experts_,
                                  .bias = choice.bias,
                                  .forced = move(choice.forced, top_k_),
                                  .slots = b.slots,
                                  .trace_experts = move(choice.trace.experts, top_k_),
                                  .trace_weights = move(choice.trace.weights, top_k_),
                                  .rows = rows,
                                  .experts = experts_,
                                  .top_k = top_k_,
                                  .scaling = choice.scaling,
                                  .groups = nullptr,
                                  .bank = nullptr,
                                  .inputs = 0});
    const unsigned slots = static_cast<unsigned>(rows * top_k_);
    MoeDenseParams params = {.weights = gate_up_.as<uint16_t>(),
                             .slots = b.slots,
                             .x = x,
                             .y = b.activation,
                             .in = static_cast<int32_t>(hidden_),
                             .out = static_cast<int32_t>(inner_),
                             .slots_per_x = top_k_,
                             .gate_up = 1,
                             .limit = limit_};
    device.Launch(dense_, {.grid_x = CeilDiv(inner_, 8), .grid_y = slots, .threads = 256}, params);
    params.weights = down_.as<uint16_t>();
    params.x = b.activation;
    params.y = b.outputs;
    std::swap(params.in, params.out);
    params.slots_per_x = 1;
    params.gate_up = 0;
    device.Launch(dense_, {.grid_x = CeilDiv(hidden_, 8), .grid_y = slots, .threads = 256}, params);
    device.Join();  // see RoutedExperts::Run
    device.Launch(
        combine_,
        {.grid_x = CeilDiv(hidden_, 256), .grid_y = static_cast<unsigned>(rows), .threads = 256},
        MoeDenseCombineParams{.outputs = b.outputs,
                              .slots = b.slots,
                              .partial = partial,
                              .top_k = top_k_,
                              .out = static_cast<int32_t>(hidden_)});
  }

  Context* context_ = nullptr;
  int experts_ = 0;
  int top_k_ = 0;
  int64_t hidden_ = 0;
  int64_t inner_ = 0;
  float limit_ = 0.0f;
  Buffer gate_up_, down_;  // FP16
  const Kernel* select_ = nullptr;
  const Kernel* dense_ = nullptr;
  const Kernel* combine_ = nullptr;
};

}  // namespace

absl::StatusOr<std::unique_ptr<RoutedExperts>> MakeDenseExperts(
    Context& context, const std::vector<ops::MlpWeights>& experts, int top_k) {
  return DenseExperts::Make(context, experts, top_k);
}

}  // namespace quartet::cuda
