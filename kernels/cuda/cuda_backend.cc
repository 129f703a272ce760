#include "kernels/cuda/cuda_backend.h"

#include "kernels/cpu/sampler.h"
#include "kernels/cuda/cublas.h"
#include "kernels/cuda/device/counters.h"
#include "kernels/cuda/dsa.h"
#include "kernels/cuda/embedding.h"
#include "kernels/cuda/kda.h"
#include "kernels/cuda/mhc.h"
#include "kernels/cuda/mlp.h"
#include "kernels/cuda/moe.h"
#include "kernels/cuda/mtp.h"
#include "kernels/cuda/norm.h"

namespace quartet::cuda {
namespace {

class Backend final : public CudaBackend {
 public:
  Backend(Device& device, std::unique_ptr<StepState> step, Buffer counters)
      : device_(device), step_(std::move(step)), counters_(std::move(counters)) {
    context_ = {&device_, step_.get(), counters_.as<SaturationCounters>(), cublas_.get()};
    device_.Fill(counters_.data(), 0, sizeof(SaturationCounters));
  }

  absl::StatusOr<std::unique_ptr<ops::Embedding>> PrepareEmbedding(
      const ops::EmbeddingWeights& weights) override {
    return PrepareEmbeddingOp(weights, context_);
  }
  absl::StatusOr<std::unique_ptr<ops::Head>> PrepareHead(const ops::HeadWeights& weights) override {
    return PrepareHeadOp(weights, context_);
  }
  absl::StatusOr<std::unique_ptr<ops::RmsNorm>> PrepareRmsNorm(
      const ops::NormWeights& weights) override {
    return PrepareRmsNormOp(weights, context_);
  }
  absl::StatusOr<std::unique_ptr<ops::ResidualNorm>> PrepareResidualNorm(
      const ops::NormWeights& weights) override {
    return PrepareResidualNormOp(weights, context_);
  }
  absl::StatusOr<std::unique_ptr<ops::MhcSite>> PrepareMhcSite(
      const ops::MhcSiteWeights& weights) override {
    return PrepareMhcSiteOp(weights, context_);
  }
  absl::StatusOr<std::unique_ptr<ops::MhcFinish>> PrepareMhcFinish(
      const ops::NormWeights& final_norm, int hc_mult) override {
    return PrepareMhcFinishOp(final_norm, hc_mult, context_);
  }
  absl::StatusOr<std::unique_ptr<ops::KdaProject>> PrepareKdaProject(
      const ops::KdaWeights& weights) override {
    return PrepareKdaProjectOp(weights, context_);
  }
  absl::StatusOr<std::unique_ptr<ops::KdaRecurrence>> PrepareKdaRecurrence(int heads,
                                                                           int head_dim) override {
    return PrepareKdaRecurrenceOp(heads, head_dim, context_);
  }
  absl::StatusOr<std::unique_ptr<ops::KdaOutput>> PrepareKdaOutput(
      const ops::KdaWeights& weights) override {
    return PrepareKdaOutputOp(weights, context_);
  }
  absl::StatusOr<std::unique_ptr<ops::DsaProject>> PrepareDsaProject(
      const ops::MlaWeights& mla, const ops::IndexerWeights& indexer) override {
    return PrepareDsaProjectOp(mla, indexer, context_);
  }
  absl::StatusOr<std::unique_ptr<ops::IndexerSelect>> PrepareIndexerSelect(
      const ops::IndexerWeights& weights) override {
    return PrepareIndexerSelectOp(weights, context_);
  }
  absl::StatusOr<std::unique_ptr<ops::SparseMla>> PrepareSparseMla(
      const ops::MlaWeights& mla, const ops::IndexerWeights& indexer) override {
    return PrepareSparseMlaOp(mla, indexer, context_);
  }
  absl::StatusOr<std::unique_ptr<ops::Linear>> PrepareLinear(
      const ops::LinearWeights& weights) override {
    return PrepareLinearOp(weights, context_);
  }
  absl::StatusOr<std::unique_ptr<ops::Mlp>> PrepareMlp(const ops::MlpWeights& weights) override {
    return PrepareMlpOp(weights, context_);
  }
  absl::StatusOr<std::unique_ptr<ops::Moe>> PrepareMoe(const ops::MoeWeights& weights) override {
    return PrepareMoeOp(weights, context_);
  }
  absl::StatusOr<std::unique_ptr<ops::MtpEntry>> PrepareMtpEntry(
      const ops::MtpEntryWeights& weights) override {
    return PrepareMtpEntryOp(weights, context_);
  }
  // Drawing on the device is the executor's business.
  const ops::Sampler& sampler() const override { return sampler_; }

  absl::Status BeginStep(std::span<const ops::Segment> segments) override {
    return step_->Set(segments);
  }

  absl::StatusOr<Saturated> saturated() override {
    SaturationCounters counters;
    if (absl::Status s = device_.CopyOut(&counters, counters_.data(), sizeof(counters)); !s.ok()) {
      return s;
    }
    return Saturated{counters.f16, counters.e4m3};
  }

 private:
  Device& device_;
  std::unique_ptr<StepState> step_;
  Buffer counters_;
  std::unique_ptr<Cublas> cublas_ = Cublas::Load(device_);
  Context context_;
  cpu::Sampler sampler_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<CudaBackend>> MakeCudaBackend(Device& device,
                                                             const StepLimits& limits) {
  absl::StatusOr<std::unique_ptr<StepState>> step = StepState::Create(device, limits);
  if (!step.ok()) return step.status();
  absl::StatusOr<Buffer> counters = device.Allocate(sizeof(SaturationCounters), "counters");
  if (!counters.ok()) return counters.status();
  return std::make_unique<Backend>(device, *std::move(step), *std::move(counters));
}

}  // namespace quartet::cuda
