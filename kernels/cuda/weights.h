#ifndef QUARTET_KERNELS_CUDA_WEIGHTS_H_
#define QUARTET_KERNELS_CUDA_WEIGHTS_H_

#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
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

// Big matrices go to device memory in pieces of some MiB, so that the host never holds a second
// copy. Rows lie `stride` elements apart there, zeros behind the matrix' own columns.

// As FP16; errors as of ToF16. FP16 in one piece is copied straight from where it lies, unchecked.
absl::Status UploadF16Rows(Context& context, const ops::DenseMatrix& matrix, uint16_t* to,
                           int64_t stride, std::string_view what);
// As stored: F32, F16 and BF16 as they are, E4M3 (with its scales) as F32.
ops::DType StoredType(const ops::DenseMatrix& matrix);
absl::Status UploadStoredRows(Context& context, const ops::DenseMatrix& matrix, std::byte* to,
                              int64_t stride, std::string_view what);
constexpr size_t ElementBytes(ops::DType dtype) {
  switch (dtype) {
    case ops::DType::kF32:
      return 4;
    case ops::DType::kF16:
    case ops::DType::kBF16:
      return 2;
    case ops::DType::kF8E4M3:
      return 1;
  }
  return 0;
}

}  // namespace quartet::cuda

#endif  // QUARTET_KERNELS_CUDA_WEIGHTS_H_
