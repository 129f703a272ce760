// What the draft layer does before its first product.

#include "kernels/cuda/device/rows.cuh"
#include "kernels/cuda/mtp_params.h"

namespace quartet::cuda {

// Grid (2, rows): the embedding's half, the hidden state's half.
QUARTET_KERNEL(mtp_norm, kRowThreads, 1, MtpNormParams) {
  __shared__ float scratch[32];
  float* row = reinterpret_cast<float*>(QUARTET_DYNAMIC_SHARED());
  const int half = static_cast<int>(blockIdx.x);
  const int64_t r = blockIdx.y;
  const float* x = (half == 0 ? p.embedding : p.h) + r * p.hidden;
  const float* weight = half == 0 ? p.enorm : p.hnorm;
  float* y = p.y + (2 * r + half) * p.hidden;
  const bool zero = half == 0 && p.positions[r] == 0;
  const int quads = p.hidden / 4;
  const int threads = static_cast<int>(blockDim.x);
  float squares = 0.0f;
  for (int q = static_cast<int>(threadIdx.x); q < quads; q += threads) {
    const float4 v = zero ? make_float4(0.0f, 0.0f, 0.0f, 0.0f) : LoadQuad(x, q);
    StoreQuad(row, q, v);
    squares += SumOfSquares(v);
  }
  const float scale = RootScale(BlockSum(squares, scratch), static_cast<float>(p.hidden),
                                half == 0 ? p.enorm_eps : p.hnorm_eps);
  for (int q = static_cast<int>(threadIdx.x); q < quads; q += threads) {
    StoreQuad(y, q, Normed(LoadQuad(row, q), scale, LoadQuad(weight, q)));
  }
}

}  // namespace quartet::cuda
