#ifndef QUARTET_KERNELS_CUDA_MLP_H_
#define QUARTET_KERNELS_CUDA_MLP_H_

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/cuda/context.h"
#include "kernels/ops/mlp.h"

namespace quartet::cuda {

absl::StatusOr<std::unique_ptr<ops::Linear>> PrepareLinearOp(const ops::LinearWeights& weights,
                                                             Context& context);
absl::StatusOr<std::unique_ptr<ops::Mlp>> PrepareMlpOp(const ops::MlpWeights& weights,
                                                       Context& context);

}  // namespace quartet::cuda

#endif  // QUARTET_KERNELS_CUDA_MLP_H_
