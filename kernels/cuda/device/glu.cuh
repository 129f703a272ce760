#ifndef QUARTET_KERNELS_CUDA_DEVICE_GLU_CUH_
#define QUARTET_KERNELS_CUDA_DEVICE_GLU_CUH_

#include "kernels/cuda/device/math.cuh"

namespace quartet::cuda {

// silu(min(gate, limit)) * clamp(up, -limit, limit); limit <= 0 means no clamp. By comparisons, not
// fminf: NaN stays NaN. With the fast exponential and reciprocal, which have no branches: a
// thread's values do not wait for one another.
QUARTET_DEVICE float ClampedSwiGlu(float gate, float up, float limit) {
  if (limit > 0.0f) {
    gate = gate > limit ? limit : gate;
    up = up > limit ? limit : up < -limit ? -limit : up;
  }
  return gate * ReciprocalApprox(1.0f + __expf(-gate)) * up;
}

}  // namespace quartet::cuda

#endif  // QUARTET_KERNELS_CUDA_DEVICE_GLU_CUH_
