#ifndef QUARTET_SHARD_WORKER_MODEL_WEIGHTS_TO_OPS_H_
#define QUARTET_SHARD_WORKER_MODEL_WEIGHTS_TO_OPS_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "kernels/ops/dsa.h"
#include "kernels/ops/embedding.h"
#include "kernels/ops/kda.h"
#include "kernels/ops/mhc.h"
#include "kernels/ops/mlp.h"
#include "kernels/ops/mtp.h"
#include "kernels/ops/norm.h"
#include "kernels/ops/weights.h"
#include "shard_worker/checkpoint/model_config.h"
#include "shard_worker/checkpoint/weights.h"

// From a rank's views of the checkpoint to the views that the op contracts take. Nothing is copied
// or read: both kinds of view point into the mapped files. Errors name the tensor.

namespace quartet {

absl::StatusOr<ops::DenseMatrix> ToOps(const DenseView& view);
absl::StatusOr<ops::LinearWeights> ToOps(const LinearView& view);
absl::StatusOr<ops::VectorView> ToOps(const VectorView& view);
// A small matrix that ops take flat; its rows must lie without gaps.
absl::StatusOr<ops::VectorView> ToFlat(const DenseView& view);
absl::StatusOr<ops::NormWeights> ToNorm(const VectorView& view, const ModelConfig& config);

// `tp` splits the head counts.
absl::StatusOr<ops::KdaWeights> ToOps(const KdaWeights& weights, const ModelConfig& config, int tp);
absl::StatusOr<ops::MlaWeights> ToMla(const DsaWeights& weights, const ModelConfig& config, int tp);
absl::StatusOr<ops::IndexerWeights> ToOps(const IndexerWeights& weights, const ModelConfig& config);
absl::StatusOr<ops::MlpWeights> ToOps(const MlpWeights& weights, const ModelConfig& config);
absl::StatusOr<ops::MoeWeights> ToOps(const MoeWeights& weights, const ModelConfig& config);
absl::StatusOr<ops::MhcSiteWeights> ToOps(const MhcSiteWeights& weights, const VectorView& norm,
                                          const ModelConfig& config);

// Bytes of the rank's part as stored, for progress while loading.
int64_t StoredBytes(const LinearView& view);
int64_t StoredBytes(const LayerWeights& weights);
int64_t StoredBytes(const MtpWeights& weights);
int64_t StoredBytes(const ModelWeights& weights);

}  // namespace quartet

#endif  // QUARTET_SHARD_WORKER_MODEL_WEIGHTS_TO_OPS_H_
