#ifndef QUARTET_KERNELS_CUDA_MTP_H_
#define QUARTET_KERNELS_CUDA_MTP_H_

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/cuda/context.h"
#include "kernels/ops/mtp.h"

namespace quartet::cuda {

absl::StatusOr<std::unique_ptr<ops::MtpEntry>> PrepareMtpEntryOp(
    const ops::MtpEntryWeights& weights, Context& context);

}  // namespace quartet::cuda

#endif  // QUARTET_KERNELS_CUDA_MTP_H_
