#include "kernels/cuda/device/glu.cuh"
#include "kernels/cuda/mlp_params.h"

namespace quartet::cuda {

QUARTET_KERNEL(clamped_swiglu, 256, 4, ClampedSwiGluParams) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= p.width) return;
  const int64_t at = blockIdx.y * p.in_stride + i;
  p.out[blockIdx.y * p.out_stride + i] = ClampedSwiGlu(p.gate[at], p.up[at], p.limit);
}

}  // namespace quartet::cuda
