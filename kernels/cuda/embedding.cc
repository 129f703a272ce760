#include "kernels/cuda/embedding.h"

namespace quartet::cuda {

absl::StatusOr<std::unique_ptr<ops::Embedding>> PrepareEmbeddingOp(
    const ops::EmbeddingWeights& weights, Context& context) {
  return absl::UnimplementedError("Embedding on CUDA");
}
absl::StatusOr<std::unique_ptr<ops::Head>> PrepareHeadOp(const ops::HeadWeights& weights,
                                                         Context& context) {
  return absl::UnimplementedError("Head on CUDA");
}

}  // namespace quartet::cuda
