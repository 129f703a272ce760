#include <algorithm>
#include <utility>

#include "kernels/cuda/linear.h"
#include "kernels/cuda/moe_experts.h"

namespace quartet::cuda {
namespace {

class SharedExpert final : public ops::Mlp {
 public:
  SharedExpert(Context& context, PackedLinear gate_up, PackedLinear down, const Kernel* glu,
               float limit)
      : context_(context),
        gate_up_(std::move(gate_up)),
        down_(std::move(down)),
        glu_(glu),
        limit_(limit) {}

  size_t WorkspaceBytes(int max_rows) const override {
    WorkspaceCutter cutter;
    Take(cutter, max_rows);
    return cutter.used() +
           std::max(gate_up_.WorkspaceBytes(max_rows), down_.WorkspaceBytes(max_rows));
  }

  void Run(const float* x, int rows, float* partial, ops::Workspace workspace) const override {
    WorkspaceCutter cutter(workspace.data);
    const Buffers b = Take(cutter, rows);
    const ops::Workspace rest = {cutter.rest(), workspace.bytes - cutter.used()};
    gate_up_.Run(x, gate_up_.in(), rows, b.gate_up, gate_up_.out(), rest);
    const int64_t count = rows * down_.in();
    context_.device->Launch(glu_, {.grid_x = CeilDiv(count, 256), .threads = 256},
                            MoeGluParams{.gate_up = b.gate_up,
                                         .activation = b.activation,
                                         .count = count,
                                         .inner = static_cast<int32_t>(down_.in()),
                                         .limit = limit_});
    down_.Run(b.activation, down_.in(), rows, partial, down_.out(), rest);
  }

 private:
  struct Buffers {
    float* gate_up;
    float* activation;
  };
  Buffers Take(WorkspaceCutter& cutter, int rows) const {
    Buffers b;
    b.gate_up = cutter.Take<float>(rows * gate_up_.out());
    b.activation = cutter.Take<float>(rows * down_.in());
    return b;
  }

  Context& context_;
  PackedLinear gate_up_, down_;
  const Kernel* glu_;
  float limit_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ops::Mlp>> MakeSharedExpert(Context& context,
                                                           const ops::MlpWeights& weights) {
  const ops::LinearWeights stack[] = {weights.gate, weights.up};
  absl::StatusOr<PackedLinear> gate_up = PackedLinear::Make(
      context, stack, PackedLinear::Precision::kF16, "gate and up of the shared expert");
  if (!gate_up.ok()) return gate_up.status();
  absl::StatusOr<PackedLinear> down = PackedLinear::Make(
      context, {&weights.down, 1}, PackedLinear::Precision::kF16, "down of the shared expert");
  if (!down.ok()) return down.status();
  absl::StatusOr<const Kernel*> glu = context.device->Find("moe_glu");
  if (!glu.ok()) return glu.status();
  return std::make_unique<SharedExpert>(context, *std::move(gate_up), *std::move(down), *glu,
                                        weights.limit);
}

}  // namespace quartet::cuda
