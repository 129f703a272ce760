#ifndef QUARTET_KERNELS_CUDA_MHC_H_
#define QUARTET_KERNELS_CUDA_MHC_H_

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/cuda/context.h"
#include "kernels/ops/mhc.h"

namespace quartet::cuda {

absl::StatusOr<std::unique_ptr<ops::MhcSite>> PrepareMhcSiteOp(const ops::MhcSiteWeights& weights,
                                                               Context& context);
absl::StatusOr<std::unique_ptr<ops::MhcFinish>> PrepareMhcFinishOp(
    const ops::NormWeights& final_norm, int hc_mult, Context& context);

}  // namespace quartet::cuda

#endif  // QUARTET_KERNELS_CUDA_MHC_H_
