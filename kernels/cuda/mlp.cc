#include "kernels/cuda/mlp.h"

#include <algorithm>
#include <cassert>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/cpu/linear.h"
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

class MlpOp final : public ops::Mlp {
 public:
  MlpOp(PackedLinear gate_up, PackedLinear down, float limit)
      : gate_up_(std::move(gate_up)), down_(std::move(down)), limit_(limit) {}

  size_t WorkspaceBytes(int max_rows) const override {
    WorkspaceCutter cutter;
    cutter.Take<float>(max_rows * down_.in());
    return cutter.used() +
           std::max(gate_up_.GatedWorkspaceBytes(max_rows), down_.WorkspaceBytes(max_rows));
  }

  void Run(const float* x, int rows, float* partial, ops::Workspace workspace) const override {
    assert(workspace.bytes >= WorkspaceBytes(rows));
    WorkspaceCutter cutter(workspace.data);
    const int64_t inner = down_.in();
    float* activation = cutter.Take<float>(rows * inner);
    const ops::Workspace rest = {cutter.rest(), workspace.bytes - cutter.used()};
    gate_up_.RunGated(x, gate_up_.in(), rows, activation, inner, limit_, rest);
    down_.Run(activation, inner, rows, partial, down_.out(), rest);
  }

 private:
  PackedLinear gate_up_;
  PackedLinear down_;
  float limit_;
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
  const ops::LinearWeights gate_up[] = {weights.gate, weights.up};
  absl::StatusOr<PackedLinear> first =
      PackedLinear::Make(context, gate_up, PackedLinear::Precision::kF16, "MLP gate and up");
  if (!first.ok()) return first.status();
  absl::StatusOr<PackedLinear> down =
      PackedLinear::Make(context, {&weights.down, 1}, PackedLinear::Precision::kF16, "MLP down");
  if (!down.ok()) return down.status();
  const int64_t inner = down->in();
  if (cpu::OutFeatures(weights.gate) != inner || cpu::OutFeatures(weights.up) != inner) {
    return absl::InvalidArgumentError(absl::StrCat(
        "MLP: gate has ", cpu::OutFeatures(weights.gate), " outputs, up ",
        cpu::OutFeatures(weights.up), ", down ", inner, " inputs; all three must be the same"));
  }
  return std::make_unique<MlpOp>(*std::move(first), *std::move(down), weights.limit);
}

}  // namespace quartet::cuda
