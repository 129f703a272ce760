#ifndef QUARTET_KERNELS_CUDA_KDA_H_
#define QUARTET_KERNELS_CUDA_KDA_H_

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/cuda/context.h"
#include "kernels/ops/kda.h"

namespace quartet::cuda {

absl::StatusOr<std::unique_ptr<ops::KdaProject>> PrepareKdaProjectOp(const ops::KdaWeights& weights,
                                                                     Context& context);
absl::StatusOr<std::unique_ptr<ops::KdaRecurrence>> PrepareKdaRecurrenceOp(int heads, int head_dim,
                                                                           Context& context);
absl::StatusOr<std::unique_ptr<ops::KdaOutput>> PrepareKdaOutputOp(const ops::KdaWeights& weights,
                                                                   Context& context);

}  // namespace quartet::cuda

#endif  // QUARTET_KERNELS_CUDA_KDA_H_
