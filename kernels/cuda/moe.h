#ifndef QUARTET_KERNELS_CUDA_MOE_H_
#define QUARTET_KERNELS_CUDA_MOE_H_

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/cuda/context.h"
#include "kernels/ops/mlp.h"

namespace quartet::cuda {

absl::StatusOr<std::unique_ptr<ops::Moe>> PrepareMoeOp(const ops::MoeWeights& weights,
                                                       Context& context);

}  // namespace quartet::cuda

#endif  // QUARTET_KERNELS_CUDA_MOE_H_
