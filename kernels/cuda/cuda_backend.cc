#include "kernels/cuda/cuda_backend.h"

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
#include "kernels/cuda/sampler.h"

namespace quartet::cuda {
namespace {

class GraphRecording final : public ops::Recording {
 public:
  explicit GraphRecording(std::unique_ptr<Graph> graph) : graph(std::move(graph)) {}
  const std::unique_ptr<Graph> graph;
};

class Backend final : public CudaBackend {
 public:
  Backend(Device& device, std::unique_ptr<StepState> step, Buffer counters,
          std::unique_ptr<RowSampler> row_sampler, const BackendOptions& options)
      : device_(device),
        step_(std::move(step)),
        counters_(std::move(counters)),
        row_sampler_(std::move(row_sampler)),
        hook_(options.hook) {
    context_ = {&device_, step_.get(), counters_.as<SaturationCounters>(), cublas_.get(),
                options.batch_invariant};
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
    return PrepareMoeOp(weights, context_, hook_);
  }
  absl::StatusOr<std::unique_ptr<ops::MtpEntry>> PrepareMtpEntry(
      const ops::MtpEntryWeights& weights) override {
    return PrepareMtpEntryOp(weights, context_);
  }
  const ops::RowSampler& row_sampler() const override { return *row_sampler_; }

  absl::StatusOr<ops::Memory> Allocate(size_t bytes, std::string_view what) override {
    absl::StatusOr<Buffer> buffer = device_.Allocate(ops::AlignUp(bytes), what);
    if (!buffer.ok()) return buffer.status();
    auto owner = std::make_shared<Buffer>(*std::move(buffer));
    device_.Fill(owner->data(), 0, owner->bytes());
    return ops::Memory(owner->as<std::byte>(), owner->bytes(), owner);
  }
  absl::StatusOr<ops::Memory> AllocateHost(size_t bytes, std::string_view what) override {
    absl::StatusOr<void*> pinned = device_.AllocatePinned(ops::AlignUp(bytes), what);
    if (!pinned.ok()) return pinned.status();
    return ops::Memory(static_cast<std::byte*>(*pinned), ops::AlignUp(bytes), nullptr);
  }
  bool on_host() const override { return false; }
  bool batch_invariant() const override { return context_.batch_invariant; }
  void Copy(void* to, const void* from, size_t bytes) override { device_.Copy(to, from, bytes); }
  absl::Status CopyIn(void* to, const void* from, size_t bytes) override {
    return device_.CopyIn(to, from, bytes);
  }
  absl::Status CopyOut(void* to, const void* from, size_t bytes) override {
    return device_.CopyOut(to, from, bytes);
  }

  void Fork(absl::FunctionRef<void()> work) override { device_.Fork(Side::kAhead, work); }
  void Join() override { device_.Join(); }

  absl::StatusOr<std::unique_ptr<ops::Recording>> Record(absl::FunctionRef<void()> work) override {
    absl::StatusOr<std::unique_ptr<Graph>> graph = device_.Capture(work);
    if (!graph.ok()) return graph.status();
    return std::make_unique<GraphRecording>(*std::move(graph));
  }
  void Replay(const ops::Recording& recording) override {
    device_.Replay(*static_cast<const GraphRecording&>(recording).graph);
  }

  absl::StatusOr<ops::StepRows> BeginStep(std::span<const int32_t> ids,
                                          std::span<const ops::Segment> segments) override {
    if (absl::Status s = step_->Set(ids, segments); !s.ok()) return s;
    return ops::StepRows{step_->view().ids, step_->view().positions};
  }

  ops::SaturationCounts saturation_counts() override {
    SaturationCounters counters;
    // A fault of the device shows in the step's own results; the counts stay as they were.
    if (device_.CopyOut(&counters, counters_.data(), sizeof(counters)).ok()) {
      counts_ = {counters.f16, counters.e4m3};
    }
    return counts_;
  }

 private:
  Device& device_;
  std::unique_ptr<StepState> step_;
  Buffer counters_;
  std::unique_ptr<Cublas> cublas_ = Cublas::Load(device_);
  Context context_;
  ops::SaturationCounts counts_;
  std::unique_ptr<RowSampler> row_sampler_;
  const MoeTestHook* const hook_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<CudaBackend>> MakeCudaBackend(Device& device,
                                                             const StepLimits& limits,
                                                             const BackendOptions& options) {
  absl::StatusOr<std::unique_ptr<StepState>> step = StepState::Create(device, limits);
  if (!step.ok()) return step.status();
  absl::StatusOr<Buffer> counters = device.Allocate(sizeof(SaturationCounters), "counters");
  if (!counters.ok()) return counters.status();
  absl::StatusOr<std::unique_ptr<RowSampler>> sampler = RowSampler::Make(device, SamplerLimits());
  if (!sampler.ok()) return sampler.status();
  return std::make_unique<Backend>(device, *std::move(step), *std::move(counters),
                                   *std::move(sampler), options);
}

}  // namespace quartet::cuda
