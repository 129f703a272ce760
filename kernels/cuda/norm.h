#ifndef QUARTET_KERNELS_CUDA_NORM_H_
#define QUARTET_KERNELS_CUDA_NORM_H_

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/cuda/context.h"
#include "kernels/ops/norm.h"

namespace quartet::cuda {

absl::StatusOr<std::unique_ptr<ops::RmsNorm>> PrepareRmsNormOp(const ops::NormWeights& weights,
                                                               Context& context);
absl::StatusOr<std::unique_ptr<ops::ResidualNorm>> PrepareResidualNormOp(
    const ops::NormWeights& weights, Context& context);

}  // namespace quartet::cuda

#endif  // QUARTET_KERNELS_CUDA_NORM_H_
