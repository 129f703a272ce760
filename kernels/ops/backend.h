#ifndef QUARTET_KERNELS_OPS_BACKEND_H_
#define QUARTET_KERNELS_OPS_BACKEND_H_

#include <cstddef>
#include <memory>

#include "absl/status/statusor.h"
#include "kernels/ops/dsa.h"
#include "kernels/ops/embedding.h"
#include "kernels/ops/kda.h"
#include "kernels/ops/mhc.h"
#include "kernels/ops/mlp.h"
#include "kernels/ops/mtp.h"
#include "kernels/ops/norm.h"
#include "kernels/ops/sampling.h"

namespace quartet::ops {

// A device's implementation of the op contracts. Prepare* reads the weights once and owns the
// packed form; it may allocate and fail. The ops themselves neither allocate nor block the host,
// and each is used by one thread at a time; the backend must outlive them.
class Backend {
 public:
  virtual ~Backend() = default;

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
  virtual const Sampler& sampler() const = 0;
};

}  // namespace quartet::ops

#endif  // QUARTET_KERNELS_OPS_BACKEND_H_
