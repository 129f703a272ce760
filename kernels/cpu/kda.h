#ifndef QUARTET_KERNELS_CPU_KDA_H_
#define QUARTET_KERNELS_CPU_KDA_H_

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/cpu/context.h"
#include "kernels/ops/kda.h"

namespace quartet::cpu {

absl::StatusOr<std::unique_ptr<ops::KdaProject>> PrepareKdaProjectOp(const ops::KdaWeights& weights,
                                                                     const Context& context);
absl::StatusOr<std::unique_ptr<ops::KdaRecurrence>> PrepareKdaRecurrenceOp(int heads, int head_dim,
                                                                           const Context& context);
absl::StatusOr<std::unique_ptr<ops::KdaOutput>> PrepareKdaOutputOp(const ops::KdaWeights& weights,
                                                                   const Context& context);

}  // namespace quartet::cpu

#endif  // QUARTET_KERNELS_CPU_KDA_H_
