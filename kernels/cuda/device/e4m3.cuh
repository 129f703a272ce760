#ifndef QUARTET_KERNELS_CUDA_DEVICE_E4M3_CUH_
#define QUARTET_KERNELS_CUDA_DEVICE_E4M3_CUH_

#include "kernels/cuda/device/launch.cuh"

// E4M3 to FP16, four values at a time. Exact: FP16 holds every E4M3 value.

namespace quartet::cuda {

namespace e4m3_detail {

// Two values as FP16, from their bits at the top of each half of `pair`. Shifted into place they
// stand for the value times 2^-8 (see E4m3ToFloat); the product undoes it.
QUARTET_DEVICE uint32_t FromTopBytes(uint32_t pair) {
  const uint32_t scaled = (pair & 0x80008000u) | (pair & 0x7F007F00u) >> 1;
  const __half2 v = __halves2half2(__ushort_as_half(static_cast<uint16_t>(scaled)),
                                   __ushort_as_half(static_cast<uint16_t>(scaled >> 16)));
  const __half2 product = __hmul2(v, __half2half2(__ushort_as_half(0x5C00)));  // 256
  uint32_t bits = static_cast<uint32_t>(__half_as_ushort(__low2half(product))) |
                  static_cast<uint32_t>(__half_as_ushort(__high2half(product))) << 16;
  // 480 is what the code of NaN comes out as.
  if ((bits & 0x7FFFu) == 0x5F80u) bits |= 0x7FFFu;
  if ((bits >> 16 & 0x7FFFu) == 0x5F80u) bits |= 0x7FFF0000u;
  return bits;
}

}  // namespace e4m3_detail

// The values of the four bytes of `word` as two pairs of FP16, lowest byte first.
QUARTET_DEVICE uint2 E4m3ToHalf4(uint32_t word) {
#if !defined(QUARTET_SIMT) && QUARTET_ARCH >= 890
  uint2 out;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(out.x) : "h"(static_cast<unsigned short>(word)));
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(out.y) : "h"(static_cast<unsigned short>(word >> 16)));
  return out;
#else
  return make_uint2(e4m3_detail::FromTopBytes(__byte_perm(word, 0, 0x1404)),
                    e4m3_detail::FromTopBytes(__byte_perm(word, 0, 0x3424)));
#endif
}

}  // namespace quartet::cuda

#endif  // QUARTET_KERNELS_CUDA_DEVICE_E4M3_CUH_
