#include "kernels/cuda/mlp.h"

#include <utility>

#include "kernels/cuda/linear.h"

namespace quartet::cuda {
namespace {

class LinearOp final : public ops::Linear {
 public:
  explicit LinearOp(PackedLinear linear) : linear_(std::move(linear)) {}
  int64_t in() const override { return linear_.in(); }
  int64_t out() const override { return linear_.out(); }
  size_t WorkspaceBytes(int max_rows) const override { return linear_.WorkspaceBytes(max_rows); }
  void Run(const float* x, int rows, float* y, ops::Workspace workspace) const override {
    linear_.Run(x, in(), rows, y, out(), workspace);
  }

 private:
  PackedLinear linear_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ops::Linear>> PrepareLinearOp(const ops::LinearWeights& weights,
                                                             Context& context) {
  absl::StatusOr<PackedLinear> linear =
      PackedLinear::Make(context, {&weights, 1}, PackedLinear::Precision::kF16, "linear layer");
  if (!linear.ok()) return linear.status();
  return std::make_unique<LinearOp>(*std::move(linear));
}

absl::StatusOr<std::unique_ptr<ops::Mlp>> PrepareMlpOp(const ops::MlpWeights& weights,
                                                       Context& context) {
  return absl::UnimplementedError("Mlp on CUDA");
}

}  // namespace quartet::cuda
