#ifndef QUARTET_KERNELS_CUDA_EMBEDDING_H_
#define QUARTET_KERNELS_CUDA_EMBEDDING_H_

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/cuda/context.h"
#include "kernels/ops/embedding.h"

namespace quartet::cuda {

absl::StatusOr<std::unique_ptr<ops::Embedding>> PrepareEmbeddingOp(
    const ops::EmbeddingWeights& weights, Context& context);
absl::StatusOr<std::unique_ptr<ops::Head>> PrepareHeadOp(const ops::HeadWeights& weights,
                                                         Context& context);

}  // namespace quartet::cuda

#endif  // QUARTET_KERNELS_CUDA_EMBEDDING_H_
