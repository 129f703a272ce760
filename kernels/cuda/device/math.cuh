#ifndef QUARTET_KERNELS_CUDA_DEVICE_MATH_CUH_
#define QUARTET_KERNELS_CUDA_DEVICE_MATH_CUH_

#include "kernels/cuda/device/launch.cuh"

namespace quartet::cuda {

// 1 / v within one unit in the last place, in one instruction; subnormals count as zero.
QUARTET_DEVICE float ReciprocalApprox(float v) {
#ifdef QUARTET_SIMT
  return 1.0f / v;
#else
  float out;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(out) : "f"(v));
  return out;
#endif
}

}  // namespace quartet::cuda

#endif  // QUARTET_KERNELS_CUDA_DEVICE_MATH_CUH_
