#ifndef QUARTET_KERNELS_CPU_CONVERT_H_
#define QUARTET_KERNELS_CPU_CONVERT_H_

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/ops/weights.h"

namespace quartet::cpu {

// Exact widening, by bit operations. NaN stays NaN.
float F16ToF32(uint16_t bits);
inline float Bf16ToF32(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}
// E4M3 with a sign, no infinities, 0x7F and 0xFF NaN.
float E4m3ToF32(uint8_t bits);

// Rounds to nearest even. What rounds beyond the largest finite value (65504, 448), infinities
// included, becomes that value with its sign and sets *saturated; otherwise *saturated stays as it
// was. NaN becomes NaN and does not count.
uint16_t F32ToF16(float value, bool* saturated);
uint8_t F32ToE4m3(float value, bool* saturated);

// The 256 values of E4M3.
std::array<float, 256> E4m3Table();

// Widens a dense matrix to FP32, row-major [rows, cols]; E4M3 values are multiplied by their
// block's scale in FP32. `what` names the weight in errors.
absl::StatusOr<std::vector<float>> Widen(const ops::DenseMatrix& matrix, std::string_view what);
// The same for a vector, which must have `size` elements.
absl::StatusOr<std::vector<float>> Widen(const ops::VectorView& vector, int64_t size,
                                         std::string_view what);

}  // namespace quartet::cpu

#endif  // QUARTET_KERNELS_CPU_CONVERT_H_
