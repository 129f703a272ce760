#include <bit>
#include <cmath>
#include <cstring>

#include "shard_worker/checkpoint/message.h"
#include "shard_worker/checkpoint/weights.h"

namespace quartet {
namespace {

uint16_t Load16(const std::byte* bytes) {
  uint16_t value;
  std::memcpy(&value, bytes, sizeof(value));
  return value;
}

float Load32(const std::byte* bytes) {
  float value;
  std::memcpy(&value, bytes, sizeof(value));
  return value;
}

// Widens `count` consecutive elements.
absl::Status WidenRun(const TensorView& tensor, int64_t begin, int64_t count, float* out) {
  const std::byte* data = tensor.data + begin * DtypeSize(tensor.dtype);
  switch (tensor.dtype) {
    case Dtype::kF32:
      std::memcpy(out, data, static_cast<size_t>(count) * sizeof(float));
      return absl::OkStatus();
    case Dtype::kF16:
      for (int64_t i = 0; i < count; ++i) out[i] = HalfToFloat(Load16(data + 2 * i));
      return absl::OkStatus();
    case Dtype::kBf16:
      for (int64_t i = 0; i < count; ++i) out[i] = Bf16ToFloat(Load16(data + 2 * i));
      return absl::OkStatus();
    case Dtype::kF8E4M3:
      for (int64_t i = 0; i < count; ++i) {
        out[i] = Fp8E4m3ToFloat(std::to_integer<uint8_t>(data[i]));
      }
      return absl::OkStatus();
    default:
      return absl::InternalError(Cat(tensor.file, ": tensor \"", tensor.name, "\" of dtype ",
                                     ToString(tensor.dtype), " cannot be widened to float"));
  }
}

}  // namespace

float HalfToFloat(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000) << 16;
  const uint32_t exponent = (bits >> 10) & 0x1F;
  const uint32_t mantissa = bits & 0x3FF;
  if (exponent == 0) {
    // Zero or subnormal: the mantissa counts units of 2^-24.
    const float magnitude = std::ldexp(static_cast<float>(mantissa), -24);
    return sign != 0 ? -magnitude : magnitude;
  }
  const uint32_t wide = exponent == 31 ? 0xFF : exponent + 112;
  return std::bit_cast<float>(sign | wide << 23 | mantissa << 13);
}

float Bf16ToFloat(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

float Fp8E4m3ToFloat(uint8_t bits) {
  const uint32_t exponent = (bits >> 3) & 0xF;
  const uint32_t mantissa = bits & 0x7;
  float magnitude;
  if (exponent == 15 && mantissa == 7) {
    magnitude = std::bit_cast<float>(0x7FC00000u);  // the only NaN; there are no infinities
  } else if (exponent == 0) {
    magnitude = std::ldexp(static_cast<float>(mantissa), -9);
  } else {
    magnitude = std::bit_cast<float>((exponent + 120) << 23 | mantissa << 20);
  }
  return (bits & 0x80) != 0 ? -magnitude : magnitude;
}

absl::Status ReadDenseF32(const DenseView& view, float* out) {
  for (int64_t r = 0; r < view.rows; ++r) {
    float* row = out + r * view.cols;
    const int64_t stored_row = view.row_begin + r;
    absl::Status status =
        WidenRun(*view.tensor, stored_row * view.row_stride + view.col_begin, view.cols, row);
    if (!status.ok()) return status;
    if (view.scale == nullptr) continue;
    const std::byte* scales =
        view.scale->data + stored_row / view.block_rows * view.scale->shape[1] * 4;
    for (int64_t c = 0; c < view.cols; ++c) {
      row[c] *= Load32(scales + (view.col_begin + c) / view.block_cols * 4);
    }
  }
  return absl::OkStatus();
}

absl::Status ReadVectorF32(const VectorView& view, float* out) {
  return WidenRun(*view.tensor, view.begin, view.count, out);
}

absl::Status ReadExl3VectorF32(const Exl3Vector& view, float* out) {
  for (int64_t i = 0; i < view.count; ++i) {
    const int64_t at = view.begin + i;
    if (view.signs) {
      const uint16_t word = Load16(view.tensor->data + at / 16 * 2);
      out[i] = (word >> (at % 16) & 1) != 0 ? -1.0f : 1.0f;
      continue;
    }
    out[i] = HalfToFloat(Load16(view.tensor->data + at * 2));
    if (!std::isfinite(out[i])) {
      return absl::InvalidArgumentError(Cat(view.tensor->file, ": tensor \"", view.tensor->name,
                                            "\" element ", at, " is ", out[i],
                                            ", expected a finite scale"));
    }
  }
  return absl::OkStatus();
}

void CopyTrellis(const Exl3View& view, uint16_t* out) {
  const size_t row_bytes = static_cast<size_t>(view.tile_cols() * view.tile_bytes);
  for (int64_t i = 0; i < view.tile_rows(); ++i) {
    std::memcpy(reinterpret_cast<char*>(out) + static_cast<size_t>(i) * row_bytes, view.tile(i, 0),
                row_bytes);
  }
}

}  // namespace quartet
