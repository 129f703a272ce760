#ifndef QUARTET_KERNELS_CUDA_DEVICE_ROWS_CUH_
#define QUARTET_KERNELS_CUDA_DEVICE_ROWS_CUH_

#include "kernels/cuda/device/warp.cuh"
#include "kernels/cuda/norm_params.h"

// FP32 rows, four channels (a quad) at a time.

namespace quartet::cuda {

QUARTET_DEVICE float4 LoadQuad(const float* row, int quad) {
  return reinterpret_cast<const float4*>(row)[quad];
}
QUARTET_DEVICE void StoreQuad(float* row, int quad, float4 v) {
  reinterpret_cast<float4*>(row)[quad] = v;
}
QUARTET_DEVICE float4 Add(float4 a, float4 b) {
  return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}
QUARTET_DEVICE float SumOfSquares(float4 v) {
  return v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
}

// The sum of the partials at `offset` floats + quad, in rank order. There is at least one.
QUARTET_DEVICE float4 SumPartials(const Partials& partials, int64_t offset, int quad) {
  float4 sum = LoadQuad(partials.of[0] + offset, quad);
#pragma unroll
  for (int i = 1; i < kMaxPartials; ++i) {
    if (i < partials.count) sum = Add(sum, LoadQuad(partials.of[i] + offset, quad));
  }
  return sum;
}

QUARTET_DEVICE float RootScale(float sum_of_squares, float count, float eps) {
  return 1.0f / sqrtf(sum_of_squares / count + eps);
}

QUARTET_DEVICE float4 Normed(float4 v, float scale, float4 weight) {
  return make_float4(v.x * scale * weight.x, v.y * scale * weight.y, v.z * scale * weight.z,
                     v.w * scale * weight.w);
}

}  // namespace quartet::cuda

#endif  // QUARTET_KERNELS_CUDA_DEVICE_ROWS_CUH_
