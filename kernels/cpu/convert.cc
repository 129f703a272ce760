#include "kernels/cpu/convert.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace quartet::cpu {
namespace {

// Drops `shift` low bits of `value`, rounding to nearest even.
uint32_t RoundShift(uint32_t value, int shift) {
  const uint32_t half = 1u << (shift - 1);
  const uint32_t odd = (value >> shift) & 1;
  return (value + half - 1 + odd) >> shift;
}

// A magnitude as an unsigned small float of `mantissa` bits and exponent bias `bias`, rounded to
// nearest even. The result runs on past the largest finite value; the caller saturates.
uint32_t RoundMagnitude(uint32_t magnitude_bits, int mantissa, int bias) {
  const int exponent = static_cast<int>(magnitude_bits >> 23) - 127 + bias;
  if (exponent >= 1) {
    // The exponent field continues the mantissa, so a carry moves into it by itself.
    const uint32_t rebased = magnitude_bits - (static_cast<uint32_t>(127 - bias) << 23);
    return RoundShift(rebased, 23 - mantissa);
  }
  const int shift = 23 - mantissa + 1 - exponent;
  if (shift > 25) return 0;  // below a quarter of the smallest subnormal
  const uint32_t full = (magnitude_bits & 0x7FFFFF) | 0x800000;
  return RoundShift(full, shift);
}

float LoadElement(ops::DType dtype, const std::byte* data, int64_t index) {
  switch (dtype) {
    case ops::DType::kF32: {
      float value;
      std::memcpy(&value, data + 4 * index, 4);
      return value;
    }
    case ops::DType::kF16: {
      uint16_t bits;
      std::memcpy(&bits, data + 2 * index, 2);
      return F16ToF32(bits);
    }
    case ops::DType::kBF16: {
      uint16_t bits;
      std::memcpy(&bits, data + 2 * index, 2);
      return Bf16ToF32(bits);
    }
    case ops::DType::kF8E4M3:
      return E4m3ToF32(static_cast<uint8_t>(data[index]));
  }
  return 0.0f;
}

}  // namespace

float F16ToF32(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000) << 16;
  const uint32_t exponent = (bits >> 10) & 0x1F;
  const uint32_t mantissa = bits & 0x3FF;
  if (exponent == 0x1F) return std::bit_cast<float>(sign | 0x7F800000 | (mantissa << 13));
  if (exponent == 0) {
    // A multiple of 2^-24: exact as a float.
    const float value = static_cast<float>(mantissa) * 0x1p-24f;
    return sign != 0 ? -value : value;
  }
  return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
}

float E4m3ToF32(uint8_t bits) {
  const uint32_t exponent = (bits >> 3) & 0xF;
  const uint32_t mantissa = bits & 7;
  float value;
  if (exponent == 0xF && mantissa == 7) {
    value = std::numeric_limits<float>::quiet_NaN();
  } else if (exponent == 0) {
    value = static_cast<float>(mantissa) * 0x1p-9f;
  } else {
    value = std::bit_cast<float>(((exponent + 120) << 23) | (mantissa << 20));
  }
  return (bits & 0x80) != 0 ? -value : value;
}

uint16_t F32ToF16(float value, bool* saturated) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint16_t sign = static_cast<uint16_t>((bits >> 16) & 0x8000);
  const uint32_t magnitude = bits & 0x7FFFFFFF;
  if (magnitude > 0x7F800000) return sign | 0x7E00;
  uint32_t rounded = RoundMagnitude(magnitude, 10, 15);
  if (rounded > 0x7BFF) {
    *saturated = true;
    rounded = 0x7BFF;
  }
  return sign | static_cast<uint16_t>(rounded);
}

uint8_t F32ToE4m3(float value, bool* saturated) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint8_t sign = static_cast<uint8_t>((bits >> 24) & 0x80);
  const uint32_t magnitude = bits & 0x7FFFFFFF;
  if (magnitude > 0x7F800000) return sign | 0x7F;
  uint32_t rounded = RoundMagnitude(magnitude, 3, 7);
  if (rounded > 0x7E) {
    *saturated = true;
    rounded = 0x7E;
  }
  return sign | static_cast<uint8_t>(rounded);
}

std::array<float, 256> E4m3Table() {
  std::array<float, 256> table;
  for (int i = 0; i < 256; ++i) table[i] = E4m3ToF32(static_cast<uint8_t>(i));
  return table;
}

absl::StatusOr<std::vector<float>> Widen(const ops::DenseMatrix& matrix, std::string_view what) {
  const std::string name(what);
  if (matrix.data == nullptr || matrix.rows <= 0 || matrix.cols <= 0 ||
      matrix.row_stride < matrix.cols) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, ": not a matrix: ", matrix.rows, " x ", matrix.cols, ", row stride ",
                     matrix.row_stride, matrix.data == nullptr ? ", no data" : "",
                     "; rows and columns must be positive and the stride at least the columns"));
  }
  const bool scaled = matrix.dtype == ops::DType::kF8E4M3 && matrix.scales != nullptr;
  if (scaled && (matrix.block_rows <= 0 || matrix.block_cols <= 0)) {
    return absl::InvalidArgumentError(absl::StrCat(name, ": scale blocks of ", matrix.block_rows,
                                                   " x ", matrix.block_cols,
                                                   "; both must be positive"));
  }
  std::vector<float> out(static_cast<size_t>(matrix.rows * matrix.cols));
  float* to = out.data();
  for (int64_t r = 0; r < matrix.rows; ++r) {
    const int64_t row = r * matrix.row_stride;
    for (int64_t c = 0; c < matrix.cols; ++c) {
      float value = LoadElement(matrix.dtype, matrix.data, row + c);
      if (scaled) {
        value *= LoadElement(ops::DType::kF32, matrix.scales,
                             (r + matrix.row_offset) / matrix.block_rows * matrix.scale_stride +
                                 (c + matrix.col_offset) / matrix.block_cols);
      }
      *to++ = value;
    }
  }
  return out;
}

absl::StatusOr<std::vector<float>> Widen(const ops::VectorView& vector, int64_t size,
                                         std::string_view what) {
  if (vector.data == nullptr || vector.size != size) {
    return absl::InvalidArgumentError(
        absl::StrCat(std::string(what), ": ", vector.data == nullptr ? "no data, " : "",
                     vector.size, " elements where ", size, " are needed"));
  }
  std::vector<float> out(static_cast<size_t>(size));
  for (int64_t i = 0; i < size; ++i) out[i] = LoadElement(vector.dtype, vector.data, i);
  return out;
}

}  // namespace quartet::cpu
