#include "kernels/cuda/kda.h"

namespace quartet::cuda {

absl::StatusOr<std::unique_ptr<ops::KdaProject>> PrepareKdaProjectOp(const ops::KdaWeights& weights,
                                                                     Context& context) {
  return absl::UnimplementedError("KdaProject on CUDA");
}
absl::StatusOr<std::unique_ptr<ops::KdaRecurrence>> PrepareKdaRecurrenceOp(int heads, int head_dim,
                                                                           Context& context) {
  return absl::UnimplementedError("KdaRecurrence on CUDA");
}
absl::StatusOr<std::unique_ptr<ops::KdaOutput>> PrepareKdaOutputOp(const ops::KdaWeights& weights,
                                                                   Context& context) {
  return absl::UnimplementedError("KdaOutput on CUDA");
}

}  // namespace quartet::cuda
