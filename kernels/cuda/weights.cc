#include "kernels/cuda/weights.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "kernels/cpu/convert.h"

namespace quartet::cuda {
namespace {

constexpr size_t kPieceBytes = size_t{4} << 20;

std::string Text(std::string_view text) {
  return std::string(text);
}

absl::Status CheckMatrix(const ops::DenseMatrix& matrix, std::string_view what) {
  if (matrix.data != nullptr && matrix.rows > 0 && matrix.cols > 0 &&
      matrix.row_stride >= matrix.cols) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat(Text(what), ": not a matrix: ", matrix.rows, " x ", matrix.cols, ", row stride ",
                   matrix.row_stride, matrix.data == nullptr ? ", no data" : "",
                   "; rows and columns must be positive and the stride at least the columns"));
}

// Rows [first, first + count) of a matrix, which keep their place on the grid of scale blocks.
ops::DenseMatrix Rows(const ops::DenseMatrix& matrix, int64_t first, int64_t count) {
  ops::DenseMatrix rows = matrix;
  rows.data += first * matrix.row_stride * static_cast<int64_t>(ElementBytes(matrix.dtype));
  rows.rows = count;
  rows.row_offset += first;
  return rows;
}

// Fills `to`, `count` rows of zeros that lie `stride` elements apart, with rows from `first` on.
template <class T>
using FillRows = absl::FunctionRef<absl::Status(int64_t first, int64_t count, T* to)>;

template <class T>
absl::Status UploadInPieces(Context& context, int64_t rows, int64_t stride, T* to,
                            FillRows<T> fill) {
  const int64_t piece =
      std::clamp<int64_t>(static_cast<int64_t>(kPieceBytes / sizeof(T)) / stride, 1, rows);
  std::vector<T> staging(static_cast<size_t>(piece * stride));
  for (int64_t first = 0; first < rows; first += piece) {
    const int64_t count = std::min(piece, rows - first);
    if (absl::Status s = fill(first, count, staging.data()); !s.ok()) return s;
    if (absl::Status s =
            context.device->CopyIn(to + first * stride, staging.data(), count * stride * sizeof(T));
        !s.ok()) {
      return s;
    }
  }
  return absl::OkStatus();
}

absl::Status NotF16(std::string_view what, int64_t row, int64_t col, float value) {
  return absl::OutOfRangeError(absl::StrCat(Text(what), ": element (", row, ", ", col, ") is ",
                                            value, ", which FP16 cannot hold (at most 65504)"));
}

template <class T>
absl::Status UploadRaw(Context& context, const ops::DenseMatrix& matrix, T* to, int64_t stride) {
  const auto* from = reinterpret_cast<const T*>(matrix.data);
  if (matrix.row_stride == stride && matrix.cols == stride) {
    return context.device->CopyIn(to, from, matrix.rows * stride * sizeof(T));
  }
  return UploadInPieces<T>(
      context, matrix.rows, stride, to, [&](int64_t first, int64_t count, T* piece) {
        for (int64_t r = 0; r < count; ++r) {
          std::memcpy(piece + r * stride, from + (first + r) * matrix.row_stride,
                      matrix.cols * sizeof(T));
        }
        return absl::OkStatus();
      });
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
    if (saturated) return NotF16(what, i / matrix.cols, i % matrix.cols, (*wide)[i]);
  }
  return half;
}

absl::Status UploadF16Rows(Context& context, const ops::DenseMatrix& matrix, uint16_t* to,
                           int64_t stride, std::string_view what) {
  if (absl::Status s = CheckMatrix(matrix, what); !s.ok()) return s;
  if (matrix.dtype == ops::DType::kF16) return UploadRaw(context, matrix, to, stride);
  return UploadInPieces<uint16_t>(
      context, matrix.rows, stride, to,
      [&](int64_t first, int64_t count, uint16_t* piece) -> absl::Status {
        absl::StatusOr<std::vector<float>> wide = cpu::Widen(Rows(matrix, first, count), what);
        if (!wide.ok()) return wide.status();
        const float* from = wide->data();
        for (int64_t r = 0; r < count; ++r) {
          for (int64_t c = 0; c < matrix.cols; ++c, ++from) {
            bool saturated = false;
            piece[r * stride + c] = cpu::F32ToF16(*from, &saturated);
            if (saturated) return NotF16(what, first + r, c, *from);
          }
        }
        return absl::OkStatus();
      });
}

ops::DType StoredType(const ops::DenseMatrix& matrix) {
  return matrix.dtype == ops::DType::kF8E4M3 ? ops::DType::kF32 : matrix.dtype;
}

absl::Status UploadStoredRows(Context& context, const ops::DenseMatrix& matrix, std::byte* to,
                              int64_t stride, std::string_view what) {
  if (absl::Status s = CheckMatrix(matrix, what); !s.ok()) return s;
  switch (matrix.dtype) {
    case ops::DType::kF16:
    case ops::DType::kBF16:
      return UploadRaw(context, matrix, reinterpret_cast<uint16_t*>(to), stride);
    case ops::DType::kF32:
      return UploadRaw(context, matrix, reinterpret_cast<float*>(to), stride);
    case ops::DType::kF8E4M3:
      break;
  }
  return UploadInPieces<float>(
      context, matrix.rows, stride, reinterpret_cast<float*>(to),
      [&](int64_t first, int64_t count, float* piece) -> absl::Status {
        absl::StatusOr<std::vector<float>> wide = cpu::Widen(Rows(matrix, first, count), what);
        if (!wide.ok()) return wide.status();
        for (int64_t r = 0; r < count; ++r) {
          std::copy_n(wide->data() + r * matrix.cols, matrix.cols, piece + r * stride);
        }
        return absl::OkStatus();
      });
}

}  // namespace quartet::cuda
