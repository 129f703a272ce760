#include "kernels/cpu/cpu_backend.h"

#include <cassert>
#include <cstring>
#include <vector>

#include "kernels/cpu/context.h"
#include "kernels/cpu/convert.h"
#include "kernels/cpu/dsa.h"
#include "kernels/cpu/embedding.h"
#include "kernels/cpu/host_memory.h"
#include "kernels/cpu/kda.h"
#include "kernels/cpu/linear.h"
#include "kernels/cpu/mhc.h"
#include "kernels/cpu/mlp.h"
#include "kernels/cpu/norm.h"
#include "kernels/cpu/row_sampler.h"

namespace quartet::cpu {
namespace {

class Backend final : public CpuBackend {
 public:
  explicit Backend(int threads) : pool_(threads), e4m3_(E4m3Table()) {
    context_ = {&pool_, &saturation_, &codebooks_, &e4m3_};
  }

  absl::StatusOr<ops::Memory> Allocate(size_t bytes, std::string_view what) override {
    return AllocateHostMemory(bytes, what);
  }
  absl::StatusOr<ops::Memory> AllocateHost(size_t bytes, std::string_view what) override {
    return AllocateHostMemory(bytes, what);
  }
  bool on_host() const override { return true; }
  bool batch_invariant() const override { return true; }
  void Copy(void* to, const void* from, size_t bytes) override { std::memmove(to, from, bytes); }
  absl::Status CopyIn(void* to, const void* from, size_t bytes) override {
    std::memcpy(to, from, bytes);
    return absl::OkStatus();
  }
  absl::Status CopyOut(void* to, const void* from, size_t bytes) override {
    std::memcpy(to, from, bytes);
    return absl::OkStatus();
  }
  void Fork(absl::FunctionRef<void()> work) override { work(); }
  void Join() override {}

  absl::StatusOr<std::unique_ptr<ops::Recording>> Record(absl::FunctionRef<void()>) override {
    return nullptr;
  }
  void Replay(const ops::Recording&) override {}
  absl::StatusOr<ops::StepRows> BeginStep(std::span<const int32_t> ids,
                                          std::span<const ops::Segment> segments) override {
    positions_.resize(ids.size());
    for (const ops::Segment& segment : segments) {
      assert(static_cast<size_t>(segment.row_begin + segment.rows) <= ids.size());
      for (int i = 0; i < segment.rows; ++i) {
        positions_[segment.row_begin + i] = segment.position + i;
      }
    }
    return ops::StepRows{ids.data(), positions_.data()};
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
  const ops::RowSampler& row_sampler() const override { return row_sampler_; }

  ops::SaturationCounts saturation_counts() override {
    return {saturation_.f16.load(std::memory_order_relaxed),
            saturation_.e4m3.load(std::memory_order_relaxed)};
  }

 private:
  ThreadPool pool_;
  SaturationCounters saturation_;
  Codebooks codebooks_;
  std::array<float, 256> e4m3_;
  Context context_;
  RowSampler row_sampler_;
  std::vector<int32_t> positions_;  // of the step's rows
};

}  // namespace

std::unique_ptr<CpuBackend> MakeCpuBackend(CpuOptions options) {
  return std::make_unique<Backend>(options.threads);
}

}  // namespace quartet::cpu
