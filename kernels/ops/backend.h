#ifndef QUARTET_KERNELS_OPS_BACKEND_H_
#define QUARTET_KERNELS_OPS_BACKEND_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/ops/dsa.h"
#include "kernels/ops/embedding.h"
#include "kernels/ops/kda.h"
#include "kernels/ops/memory.h"
#include "kernels/ops/mhc.h"
#include "kernels/ops/mlp.h"
#include "kernels/ops/mtp.h"
#include "kernels/ops/norm.h"
#include "kernels/ops/sampling.h"

namespace quartet::ops {

// What a step's rows are, where the ops of the step read it. Valid until the next BeginStep.
struct StepRows {
  const int32_t* ids = nullptr;        // [rows], tokens
  const int32_t* positions = nullptr;  // [rows], inside their sequences
};

// Values that were too large for their stored form since the backend was made.
struct SaturationCounts {
  uint64_t f16 = 0;
  uint64_t e4m3 = 0;
};

// Op calls that were recorded and can be made again as one.
class Recording {
 public:
  virtual ~Recording() = default;
};

// A device's implementation of the op contracts. Prepare* reads the weights once and owns the
// packed form; it may allocate and fail. The ops themselves neither allocate nor block the host,
// and each is used by one thread at a time; the backend must outlive them.
//
// All pointers that ops take point into memory of this backend's Allocate. On a GPU everything
// happens on one stream in the order of the calls, except what is forked, and a fault shows at the
// next CopyOut.
class Backend {
 public:
  virtual ~Backend() = default;

  // RESOURCE_EXHAUSTED names `what`.
  virtual absl::StatusOr<Memory> Allocate(size_t bytes, std::string_view what) = 0;
  // Memory of the host's, to and from which CopyIn and CopyOut are fastest; it may stay until the
  // device is closed. The host alone looks into it, ops do not. RESOURCE_EXHAUSTED names `what`.
  virtual absl::StatusOr<Memory> AllocateHost(size_t bytes, std::string_view what) = 0;
  // Whether the host can use the memory of Allocate as its own.
  virtual bool on_host() const = 0;
  // Whether a row's bits never depend on what else is in the step, nor on how its sequence is cut
  // into steps (level D2 of serving.md 11.5).
  virtual bool batch_invariant() const = 0;
  // Inside the backend's memory, in the order of the ops.
  virtual void Copy(void* to, const void* from, size_t bytes) = 0;
  // From and to the host's memory; they return when `from` may change and `to` is complete.
  virtual absl::Status CopyIn(void* to, const void* from, size_t bytes) = 0;
  virtual absl::Status CopyOut(void* to, const void* from, size_t bytes) = 0;

  // Comes before the ops of a step, and again whenever rows or segments change: the ops after it
  // are called with these segments. ids[r] is the token of row r. Both spans must stay until the
  // next BeginStep.
  virtual absl::StatusOr<StepRows> BeginStep(std::span<const int32_t> ids,
                                             std::span<const Segment> segments) = 0;

  // The op calls that `work` makes may run beside those that follow, and a little ahead of them, up
  // to the next Join; also up to an op whose contract says that it joins, and to whatever waits.
  // Until then neither side writes what the other touches, so each needs a workspace of its own.
  // For steps of a few rows, whose ops leave much of a GPU idle; collectives are never forked.
  virtual void Fork(absl::FunctionRef<void()> work) = 0;
  virtual void Join() = 0;

  // Records the op calls and copies inside this memory that `work` makes, instead of running them;
  // null where calls cost so little that a backend does not record. Replayed after a BeginStep with
  // as many rows, cut into segments of the same lengths, they work on that step.
  virtual absl::StatusOr<std::unique_ptr<Recording>> Record(absl::FunctionRef<void()> work) = 0;
  virtual void Replay(const Recording& recording) = 0;

  virtual absl::StatusOr<std::unique_ptr<Embedding>> PrepareEmbedding(
      const EmbeddingWeights& weights) = 0;
  virtual absl::StatusOr<std::unique_ptr<Head>> PrepareHead(const HeadWeights& weights) = 0;
  virtual absl::StatusOr<std::unique_ptr<RmsNorm>> PrepareRmsNorm(const NormWeights& weights) = 0;
  virtual absl::StatusOr<std::unique_ptr<ResidualNorm>> PrepareResidualNorm(
      const NormWeights& weights) = 0;
  virtual absl::StatusOr<std::unique_ptr<MhcSite>> PrepareMhcSite(
      const MhcSiteWeights& weights) = 0;
  virtual absl::StatusOr<std::unique_ptr<MhcFinish>> PrepareMhcFinish(const NormWeights& final_norm,
                                                                      int hc_mult) = 0;
  virtual absl::StatusOr<std::unique_ptr<KdaProject>> PrepareKdaProject(
      const KdaWeights& weights) = 0;
  virtual absl::StatusOr<std::unique_ptr<KdaRecurrence>> PrepareKdaRecurrence(int heads,
                                                                              int head_dim) = 0;
  virtual absl::StatusOr<std::unique_ptr<KdaOutput>> PrepareKdaOutput(
      const KdaWeights& weights) = 0;
  virtual absl::StatusOr<std::unique_ptr<DsaProject>> PrepareDsaProject(
      const MlaWeights& mla, const IndexerWeights& indexer) = 0;
  virtual absl::StatusOr<std::unique_ptr<IndexerSelect>> PrepareIndexerSelect(
      const IndexerWeights& weights) = 0;
  virtual absl::StatusOr<std::unique_ptr<SparseMla>> PrepareSparseMla(
      const MlaWeights& mla, const IndexerWeights& indexer) = 0;
  virtual absl::StatusOr<std::unique_ptr<Linear>> PrepareLinear(const LinearWeights& weights) = 0;
  virtual absl::StatusOr<std::unique_ptr<Mlp>> PrepareMlp(const MlpWeights& weights) = 0;
  virtual absl::StatusOr<std::unique_ptr<Moe>> PrepareMoe(const MoeWeights& weights) = 0;
  virtual absl::StatusOr<std::unique_ptr<MtpEntry>> PrepareMtpEntry(
      const MtpEntryWeights& weights) = 0;
  virtual const RowSampler& row_sampler() const = 0;

  // May wait for the device.
  virtual SaturationCounts saturation_counts() = 0;
};

}  // namespace quartet::ops

#endif  // QUARTET_KERNELS_OPS_BACKEND_H_
