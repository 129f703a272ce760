#include "kernels/cuda/moe.h"

namespace quartet::cuda {

absl::StatusOr<std::unique_ptr<ops::Moe>> PrepareMoeOp(const ops::MoeWeights& weights,
                                                       Context& context) {
  return absl::UnimplementedError("Moe on CUDA");
}

}  // namespace quartet::cuda
