#include "kernels/cuda/mhc.h"

namespace quartet::cuda {

absl::StatusOr<std::unique_ptr<ops::MhcSite>> PrepareMhcSiteOp(const ops::MhcSiteWeights& weights,
                                                               Context& context) {
  return absl::UnimplementedError("MhcSite on CUDA");
}
absl::StatusOr<std::unique_ptr<ops::MhcFinish>> PrepareMhcFinishOp(
    const ops::NormWeights& final_norm, int hc_mult, Context& context) {
  return absl::UnimplementedError("MhcFinish on CUDA");
}

}  // namespace quartet::cuda
