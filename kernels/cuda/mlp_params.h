#ifndef QUARTET_KERNELS_CUDA_MLP_PARAMS_H_
#define QUARTET_KERNELS_CUDA_MLP_PARAMS_H_

#include <cstdint>

namespace quartet::cuda {

// clamped_swiglu: out[r, i] = silu(min(gate, limit)) * clamp(up, -limit, limit); limit <= 0 means
// no clamp. Grid (ceil(width / 256), rows). `out` may be `gate`.
struct ClampedSwiGluParams {
  const float* gate;
  const float* up;
  float* out;
  int64_t in_stride;  // floats between rows of gate and of up
  int64_t out_stride;
  int32_t width;
  float limit;
};

}  // namespace quartet::cuda

#endif  // QUARTET_KERNELS_CUDA_MLP_PARAMS_H_
