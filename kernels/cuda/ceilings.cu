// What the card can do, measured in the run whose figures are compared with it.

#include "kernels/cuda/ceilings_params.h"
#include "kernels/cuda/device/memory.cuh"
#include "kernels/cuda/device/mma.cuh"

namespace quartet::cuda {

// Reads everything once, eight independent 16-byte loads in flight a thread.
QUARTET_KERNEL(ceiling_read, 512, 2, CeilingReadParams) {
  constexpr int kUnroll = 8;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.x;
  uint32_t sum = 0;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < p.count;
       i += kUnroll * stride) {
    uint4 v[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      v[u] = i + u * stride < p.count ? LoadStreaming(p.data + i + u * stride)
                                      : make_uint4(0, 0, 0, 0);
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) sum ^= v[u].x ^ v[u].y ^ v[u].z ^ v[u].w;
  }
  if (sum == 0x12345678u) *p.sink = sum;
}

// Eight chains of 32-bit multiplications a thread, the pipe that trellis decoding loads most. The
// xor keeps the compiler from folding several steps of a chain into one.
QUARTET_KERNEL(ceiling_integer, 512, 2, CeilingLoopParams) {
  uint32_t x[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) x[i] = threadIdx.x * 8 + i;
  for (int n = 0; n < p.iterations; ++n) {
#pragma unroll
    for (int i = 0; i < 8; ++i) x[i] = (x[i] * 0xCBAC1FEDu) ^ 0x3B603B60u;
  }
  uint32_t sum = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) sum ^= x[i];
  if (sum == 0x12345678u) *p.sink = sum;
}

// Four accumulators of the tile primitive a warp.
QUARTET_KERNEL(ceiling_mma, 512, 1, CeilingLoopParams) {
  FragA a;
  FragB b;
  FragC c[4];
  for (uint32_t& r : a.r) r = threadIdx.x;
  for (uint32_t& r : b.r) r = threadIdx.x;
#pragma unroll
  for (int i = 0; i < 4; ++i) Clear(c[i]);
  for (int n = 0; n < p.iterations; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) Mma(c[i], a, b);
  }
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < 4; ++i) sum += c[i].v[0] + c[i].v[7];
  if (sum == 1.2345f) *p.sink = 1;
}

}  // namespace quartet::cuda
