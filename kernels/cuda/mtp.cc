#include "kernels/cuda/mtp.h"

namespace quartet::cuda {

absl::StatusOr<std::unique_ptr<ops::MtpEntry>> PrepareMtpEntryOp(
    const ops::MtpEntryWeights& weights, Context& context) {
  return absl::UnimplementedError("MtpEntry on CUDA");
}

}  // namespace quartet::cuda
