#ifndef QUARTET_KERNELS_CUDA_WEIGHTS_H_
#define QUARTET_KERNELS_CUDA_WEIGHTS_H_

#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/cuda/context.h"
#include "kernels/ops/weights.h"

namespace quartet::cuda {

// Small weights in device memory, as FP32.
absl::StatusOr<Buffer> UploadF32(Context& context, const ops::VectorView& vector, int64_t size,
                                 std::string_view what);
absl::StatusOr<Buffer> UploadF32(Context& context, const ops::DenseMatrix& matrix,
                                 std::string_view what);
// FP16 [rows, cols] on the host. OUT_OF_RANGE names `what` and the element where a value does not
// fit FP16.
absl::StatusOr<std::vector<uint16_t>> ToF16(const ops::DenseMatrix& matrix, std::string_view what);

absl::StatusOr<Buffer> UploadBytes(Context& context, const void* data, size_t bytes,
                                   std::string_view what);

}  // namespace quartet::cuda

#endif  // QUARTET_KERNELS_CUDA_WEIGHTS_H_
