#include "kernels/cuda/moe.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/cpu/linear.h"
#include "kernels/cuda/linear.h"
#include "kernels/cuda/mlp.h"
#include "kernels/cuda/moe_experts.h"
#include "kernels/cuda/moe_params.h"
#include "kernels/cuda/weights.h"

namespace quartet::cuda {
namespace {

absl::Status CheckShape(const std::string& what, const ops::LinearWeights& w, int64_t out,
                        int64_t in) {
  if (cpu::OutFeatures(w) == out && cpu::InFeatures(w) == in) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(what, ": shape [", cpu::OutFeatures(w), ", ",
                                                 cpu::InFeatures(w), "], should be [", out, ", ",
                                                 in, "]"));
}

absl::Status Check(const ops::MoeWeights& w) {
  const int64_t experts = static_cast<int64_t>(w.experts.size());
  if (w.top_k < 1 || w.top_k > experts) {
    return absl::InvalidArgumentError(
        absl::StrCat("MoE: the best ", w.top_k, " of ", experts, " experts"));
  }
  if (experts > kMaxExperts || w.top_k > kMaxTopK) {
    return absl::UnimplementedError(absl::StrCat("MoE: the best ", w.top_k, " of ", experts,
                                                 " experts; at most the best ", kMaxTopK, " of ",
                                                 kMaxExperts));
  }
  const int64_t hidden = cpu::InFeatures(w.router);
  const int64_t inner = cpu::OutFeatures(w.experts[0].gate);
  absl::Status s = CheckShape("router", w.router, experts, hidden);
  for (int64_t e = 0; e < experts && s.ok(); ++e) {
    const std::string name = absl::StrCat("expert ", e);
    s = CheckShape(name + " gate", w.experts[e].gate, inner, hidden);
    if (s.ok()) s = CheckShape(name + " up", w.experts[e].up, inner, hidden);
    if (s.ok()) s = CheckShape(name + " down", w.experts[e].down, hidden, inner);
    if (s.ok() && w.experts[e].limit != w.experts[0].limit) {
      s = absl::UnimplementedError(name + ": a SwiGLU limit of its own");
    }
  }
  return s;
}

// How many of the experts' matrices are EXL3.
size_t CountExl3(const ops::MoeWeights& w) {
  size_t count = 0;
  for (const ops::MlpWeights& e : w.experts) {
    for (const ops::LinearWeights* m : {&e.gate, &e.up, &e.down}) {
      count += std::holds_alternative<ops::Exl3Matrix>(*m) ? 1 : 0;
    }
  }
  return count;
}

class MoeOp final : public ops::Moe {
 public:
  static absl::StatusOr<std::unique_ptr<ops::Moe>> Prepare(const ops::MoeWeights& w,
                                                           Context& context,
                                                           const MoeTestHook* hook) {
    if (absl::Status s = Check(w); !s.ok()) return s;
    auto op = std::make_unique<MoeOp>();
    op->context_ = &context;
    op->hook_ = hook;
    op->scaling_ = w.routed_scaling;
    op->experts_ = static_cast<int>(w.experts.size());
    absl::StatusOr<PackedLinear> router =
        PackedLinear::Make(context, {&w.router, 1}, PackedLinear::Precision::kF32, "router");
    if (!router.ok()) return router.status();
    op->router_ = *std::move(router);
    absl::StatusOr<Buffer> bias =
        UploadF32(context, w.correction_bias, op->experts_, "router correction bias");
    if (!bias.ok()) return bias.status();
    op->bias_ = *std::move(bias);
    absl::StatusOr<std::unique_ptr<ops::Mlp>> shared = PrepareMlpOp(w.shared, context);
    if (!shared.ok()) return shared.status();
    op->shared_ = *std::move(shared);
    const size_t exl3 = CountExl3(w);
    if (exl3 != 0 && exl3 != 3 * w.experts.size()) {
      return absl::UnimplementedError("MoE: some matrices of experts are EXL3, others dense");
    }
    absl::StatusOr<std::unique_ptr<RoutedExperts>> experts =
        exl3 != 0 ? MakeExl3Experts(context, w.experts, w.top_k)
                  : MakeDenseExperts(context, w.experts, w.top_k);
    if (!experts.ok()) return experts.status();
    op->routed_ = *std::move(experts);
    return op;
  }

  size_t WorkspaceBytes(int max_rows) const override {
    WorkspaceCutter cutter;
    cutter.Take<float>(static_cast<int64_t>(max_rows) * experts_);
    cutter.Take<std::byte>(ForkedBytes(max_rows));
    return cutter.used() + Rest(max_rows);
  }

  void Run(const float* x, int rows, float* partial, ops::RouterTrace trace,
           ops::Workspace workspace) const override {
    WorkspaceCutter cutter(workspace.data);
    auto* logits = cutter.Take<float>(static_cast<int64_t>(rows) * experts_);
    const size_t forked_bytes = ForkedBytes(rows);
    const ops::Workspace forked = {cutter.Take<std::byte>(forked_bytes), forked_bytes};
    const ops::Workspace rest = {cutter.rest(), workspace.bytes - cutter.used()};
    // The shared expert is bound by reading its weights, the others by decoding theirs.
    const bool forks = rows <= kForkRows;
    if (forks) {
      context_->device->Fork(Side::kBehind, [&] { shared_->Run(x, rows, partial, forked); });
    }
    router_.Run(x, router_.in(), rows, logits, experts_, rest);
    if (trace.logits != nullptr) {
      context_->device->Copy(trace.logits, logits,
                             static_cast<size_t>(rows) * experts_ * sizeof(float));
    }
    if (!forks) shared_->Run(x, rows, partial, rest);
    routed_->Run(x, rows,
                 {.logits = logits,
                  .bias = bias_.as<float>(),
                  .forced = hook_ == nullptr ? nullptr : hook_->forced_experts,
                  .scaling = scaling_,
                  .trace = trace},
                 partial, rest);
    context_->device->Join();
  }

 private:
  // Of what is forked when there are few rows.
  size_t ForkedBytes(int rows) const { return shared_->WorkspaceBytes(std::min(rows, kForkRows)); }
  // Used by one part of the op after the other.
  size_t Rest(int max_rows) const {
    return std::max({router_.WorkspaceBytes(max_rows), shared_->WorkspaceBytes(max_rows),
                     routed_->WorkspaceBytes(max_rows)});
  }

  Context* context_ = nullptr;
  const MoeTestHook* hook_ = nullptr;
  int experts_ = 0;
  float scaling_ = 1.0f;
  PackedLinear router_;
  Buffer bias_;
  std::unique_ptr<ops::Mlp> shared_;
  std::unique_ptr<RoutedExperts> routed_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ops::Moe>> PrepareMoeOp(const ops::MoeWeights& weights,
                                                       Context& context, const MoeTestHook* hook) {
  return MoeOp::Prepare(weights, context, hook);
}

}  // namespace quartet::cuda
