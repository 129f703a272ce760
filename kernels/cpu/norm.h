#ifndef QUARTET_KERNELS_CPU_NORM_H_
#define QUARTET_KERNELS_CPU_NORM_H_

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/cpu/context.h"
#include "kernels/ops/norm.h"

namespace quartet::cpu {

absl::StatusOr<std::unique_ptr<ops::RmsNorm>> PrepareRmsNormOp(const ops::NormWeights& weights,
                                                               const Context& context);
absl::StatusOr<std::unique_ptr<ops::ResidualNorm>> PrepareResidualNormOp(
    const ops::NormWeights& weights, const Context& context);

}  // namespace quartet::cpu

#endif  // QUARTET_KERNELS_CPU_NORM_H_
