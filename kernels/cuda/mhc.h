#ifndef QUARTET_KERNELS_CUDA_MHC_H_
#define QUARTET_KERNELS_CUDA_MHC_H_

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/cuda/context.h"
#include "kernels/ops/mhc.h"

namespace quartet::cuda {

// Four streams, a hidden size that is a multiple of 4, at most kMaxPartials partial sums. fn is
// kept in FP16 where it came in 16 bits, else in FP32; everything else is FP32. A row's bits do not
// depend on the other rows of the call, nor on how many there are.
absl::StatusOr<std::unique_ptr<ops::MhcSite>> PrepareMhcSiteOp(const ops::MhcSiteWeights& weights,
                                                               Context& context);
absl::StatusOr<std::unique_ptr<ops::MhcFinish>> PrepareMhcFinishOp(
    const ops::NormWeights& final_norm, int hc_mult, Context& context);

}  // namespace quartet::cuda

#endif  // QUARTET_KERNELS_CUDA_MHC_H_
