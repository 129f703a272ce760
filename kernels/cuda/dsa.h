#ifndef QUARTET_KERNELS_CUDA_DSA_H_
#define QUARTET_KERNELS_CUDA_DSA_H_

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/cuda/context.h"
#include "kernels/ops/dsa.h"

namespace quartet::cuda {

absl::StatusOr<std::unique_ptr<ops::DsaProject>> PrepareDsaProjectOp(
    const ops::MlaWeights& mla, const ops::IndexerWeights& indexer, Context& context);
absl::StatusOr<std::unique_ptr<ops::IndexerSelect>> PrepareIndexerSelectOp(
    const ops::IndexerWeights& weights, Context& context);
absl::StatusOr<std::unique_ptr<ops::SparseMla>> PrepareSparseMlaOp(
    const ops::MlaWeights& mla, const ops::IndexerWeights& indexer, Context& context);

}  // namespace quartet::cuda

#endif  // QUARTET_KERNELS_CUDA_DSA_H_
