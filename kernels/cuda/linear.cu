#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/device/warp.cuh"
#include "kernels/cuda/linear_params.h"

namespace quartet::cuda {

// One warp an output, grid (ceil(out / 8), rows).
QUARTET_KERNEL(linear_f32, 256, 1, LinearF32Params) {
  const int out = static_cast<int>(blockIdx.x) * 8 + Warp();
  if (out >= p.out) return;
  const float* x = p.x + blockIdx.y * p.x_stride;
  const float* w = p.weights + static_cast<int64_t>(out) * p.in;
  float sum = 0.0f;
  for (int i = Lane(); i < p.in; i += 32) sum += x[i] * w[i];
  sum = WarpSum(sum);
  if (Lane() == 0) p.y[blockIdx.y * p.y_stride + out] = sum;
}

}  // namespace quartet::cuda
