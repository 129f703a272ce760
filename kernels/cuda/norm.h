#ifndef QUARTET_KERNELS_CUDA_NORM_H_
#define QUARTET_KERNELS_CUDA_NORM_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/context.h"
#include "kernels/cuda/norm_params.h"
#include "kernels/ops/norm.h"

namespace quartet::cuda {

// Widths are multiples of 4, at most 24,576 (a row is kept in shared memory).
absl::StatusOr<std::unique_ptr<ops::RmsNorm>> PrepareRmsNormOp(const ops::NormWeights& weights,
                                                               Context& context);
// At most kMaxPartials partial sums.
absl::StatusOr<std::unique_ptr<ops::ResidualNorm>> PrepareResidualNormOp(
    const ops::NormWeights& weights, Context& context);

// ---- what kernels with one block a row share

// INVALID_ARGUMENT, naming `what`, where such a row cannot be normed.
absl::Status CheckRowWidth(int64_t width, std::string_view what);
// One thread four channels, up to kRowThreads.
unsigned RowThreads(int64_t width);
Partials MakePartials(std::span<const float* const> partials);

}  // namespace quartet::cuda

#endif  // QUARTET_KERNELS_CUDA_NORM_H_
