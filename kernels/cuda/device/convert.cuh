#ifndef QUARTET_KERNELS_CUDA_DEVICE_CONVERT_CUH_
#define QUARTET_KERNELS_CUDA_DEVICE_CONVERT_CUH_

#include "kernels/cuda/device/counters.h"
#include "kernels/cuda/device/launch.cuh"

// Number formats. Casts to 16 and 8 bits saturate and count, as kernels/ops/batch.h says for caches
// and DESIGN's table of decisions for GEMM operands.

namespace quartet::cuda {

QUARTET_DEVICE float HalfToFloat(uint16_t bits) {
  return __half2float(__ushort_as_half(bits));
}

// Rounds to nearest even; beyond 65504 becomes +-65504 and counts. NaN stays NaN.
QUARTET_DEVICE __half ToHalf(float v, SaturationCounters* counters) {
  if (fabsf(v) >= 65520.0f) {
    atomicAdd(&counters->f16, 1ull);
    v = copysignf(65504.0f, v);
  }
  return __float2half_rn(v);
}
QUARTET_DEVICE uint32_t ToHalf2(float low, float high, SaturationCounters* counters) {
  return static_cast<uint32_t>(__half_as_ushort(ToHalf(low, counters))) |
         static_cast<uint32_t>(__half_as_ushort(ToHalf(high, counters))) << 16;
}
// For values that are known to be in range.
QUARTET_DEVICE uint32_t PackHalf2(float low, float high) {
  return static_cast<uint32_t>(__half_as_ushort(__float2half_rn(low))) |
         static_cast<uint32_t>(__half_as_ushort(__float2half_rn(high))) << 16;
}

// E4M3: sign, 4 exponent bits (bias 7), 3 mantissa bits, no infinities, largest value 448. The bits
// shifted into an FP16 give the value times 2^-8, subnormals included; the product is exact.
QUARTET_DEVICE float E4m3ToFloat(uint8_t bits) {
  const uint16_t half = static_cast<uint16_t>((bits & 0x80) << 8 | (bits & 0x7F) << 7);
  return (bits & 0x7F) == 0x7F ? __int_as_float(0x7FC00000) : HalfToFloat(half) * 256.0f;
}

// Rounds to nearest even; beyond 448 becomes +-448 and counts. NaN stays NaN.
QUARTET_DEVICE uint8_t ToE4m3(float v, SaturationCounters* counters) {
  const uint32_t bits = __float_as_uint(v);
  const uint32_t sign = bits >> 24 & 0x80;
  const float magnitude = fabsf(v);
  if (!(magnitude == magnitude)) return static_cast<uint8_t>(sign | 0x7F);
  if (magnitude >= 464.0f) {
    // 464 is half way to the 480 that the format does not have; ties go to the even 448, which is
    // no saturation.
    if (magnitude > 464.0f) atomicAdd(&counters->e4m3, 1ull);
    return static_cast<uint8_t>(sign | 0x7E);
  }
  if (magnitude < 0.015625f) {  // below 2^-6: a multiple of 2^-9
    return static_cast<uint8_t>(sign | static_cast<uint32_t>(rintf(magnitude * 512.0f)));
  }
  // Round the 23 mantissa bits to 3; a carry goes into the exponent by itself.
  const uint32_t m = bits & 0x7FFFFFFF;
  const uint32_t rounded = m + 0x7FFFF + (m >> 20 & 1);
  return static_cast<uint8_t>(sign | ((rounded >> 20) - (120u << 3)));
}

}  // namespace quartet::cuda

#endif  // QUARTET_KERNELS_CUDA_DEVICE_CONVERT_CUH_
