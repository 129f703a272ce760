#include "kernels/cuda/weights.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "kernels/cpu/convert.h"

namespace quartet::cuda {
namespace {

std::string Text(std::string_view text) {
  return std::string(text);
}

}  // namespace

absl::StatusOr<Buffer> UploadBytes(Context& context, const void* data, size_t bytes,
                                   std::string_view what) {
  absl::StatusOr<Buffer> buffer = context.device->Allocate(bytes, what);
  if (!buffer.ok()) return buffer.status();
  if (absl::Status s = context.device->CopyIn(buffer->data(), data, bytes); !s.ok()) return s;
  return buffer;
}

absl::StatusOr<Buffer> UploadF32(Context& context, const ops::VectorView& vector, int64_t size,
                                 std::string_view what) {
  absl::StatusOr<std::vector<float>> wide = cpu::Widen(vector, size, what);
  if (!wide.ok()) return wide.status();
  return UploadBytes(context, wide->data(), wide->size() * sizeof(float), what);
}

absl::StatusOr<Buffer> UploadF32(Context& context, const ops::DenseMatrix& matrix,
                                 std::string_view what) {
  absl::StatusOr<std::vector<float>> wide = cpu::Widen(matrix, what);
  if (!wide.ok()) return wide.status();
  return UploadBytes(context, wide->data(), wide->size() * sizeof(float), what);
}

absl::StatusOr<std::vector<uint16_t>> ToF16(const ops::DenseMatrix& matrix, std::string_view what) {
  absl::StatusOr<std::vector<float>> wide = cpu::Widen(matrix, what);
  if (!wide.ok()) return wide.status();
  std::vector<uint16_t> half(wide->size());
  for (size_t i = 0; i < half.size(); ++i) {
    bool saturated = false;
    half[i] = cpu::F32ToF16((*wide)[i], &saturated);
    if (saturated) {
      return absl::OutOfRangeError(absl::StrCat(Text(what), ": element (", i / matrix.cols, ", ",
                                                i % matrix.cols, ") is ", (*wide)[i],
                                                ", which FP16 cannot hold (at most 65504)"));
    }
  }
  return half;
}

}  // namespace quartet::cuda
