// RMSNorm of FP32 rows, one block a row.

#include "kernels/cuda/device/rows.cuh"
#include "kernels/cuda/norm_params.h"

namespace quartet::cuda {

// The row waits in shared memory ([width] floats) for its norm.
QUARTET_KERNEL(norm_rows, kRowThreads, 1, NormParams) {
  __shared__ float scratch[32];
  float* row = reinterpret_cast<float*>(QUARTET_DYNAMIC_SHARED());
  const int64_t offset = static_cast<int64_t>(blockIdx.x) * p.width;
  const int quads = p.width / 4;
  const int threads = static_cast<int>(blockDim.x);
  float squares = 0.0f;
#pragma unroll 4
  for (int q = static_cast<int>(threadIdx.x); q < quads; q += threads) {
    float4 v = LoadQuad(p.x + offset, q);
    if (p.partials.count > 0) {
      v = Add(v, SumPartials(p.partials, offset, q));
      StoreQuad(p.sum + offset, q, v);
    }
    StoreQuad(row, q, v);
    squares += SumOfSquares(v);
  }
  const float scale = RootScale(BlockSum(squares, scratch), static_cast<float>(p.width), p.eps);
  for (int q = static_cast<int>(threadIdx.x); q < quads; q += threads) {
    StoreQuad(p.y + offset, q, Normed(LoadQuad(row, q), scale, LoadQuad(p.weight, q)));
  }
}

}  // namespace quartet::cuda
