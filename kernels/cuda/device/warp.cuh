#ifndef QUARTET_KERNELS_CUDA_DEVICE_WARP_CUH_
#define QUARTET_KERNELS_CUDA_DEVICE_WARP_CUH_

#include "kernels/cuda/device/launch.cuh"

// Sums and maxima over a warp or a block, always in the same order, so that a value has the same
// bits in every launch. All threads of the warp (block) must call.

namespace quartet::cuda {

constexpr unsigned kFullMask = 0xFFFFFFFFu;

QUARTET_DEVICE int Lane() {
  return static_cast<int>(threadIdx.x & 31);
}
QUARTET_DEVICE int Warp() {
  return static_cast<int>(threadIdx.x >> 5);
}
QUARTET_DEVICE int WarpsOfBlock() {
  return static_cast<int>(blockDim.x >> 5);
}

// Every lane gets the sum over the `Width` lanes around it (a power of two).
template <int Width = 32>
QUARTET_DEVICE float WarpSum(float v) {
#pragma unroll
  for (int offset = Width / 2; offset > 0; offset /= 2) v += __shfl_xor_sync(kFullMask, v, offset);
  return v;
}

template <int Width = 32>
QUARTET_DEVICE float WarpMax(float v) {
#pragma unroll
  for (int offset = Width / 2; offset > 0; offset /= 2) {
    v = fmaxf(v, __shfl_xor_sync(kFullMask, v, offset));
  }
  return v;
}

// The largest of the warp's values.
QUARTET_DEVICE uint32_t WarpMax(uint32_t v) {
#if QUARTET_ARCH >= 800 && !defined(QUARTET_SIMT)
  return __reduce_max_sync(kFullMask, v);
#else
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) v = max(v, __shfl_xor_sync(kFullMask, v, offset));
  return v;
#endif
}

// Every thread gets the sum over the block. `scratch` holds at least blockDim.x / 32 floats of
// shared memory, which may be reused after the next barrier.
QUARTET_DEVICE float BlockSum(float v, float* scratch) {
  v = WarpSum(v);
  __syncthreads();
  if (Lane() == 0) scratch[Warp()] = v;
  __syncthreads();
  const int warps = static_cast<int>(blockDim.x) / 32;
  float sum = 0.0f;
  for (int i = 0; i < warps; ++i) sum += scratch[i];
  return sum;
}

QUARTET_DEVICE float BlockMax(float v, float* scratch) {
  v = WarpMax(v);
  __syncthreads();
  if (Lane() == 0) scratch[Warp()] = v;
  __syncthreads();
  const int warps = static_cast<int>(blockDim.x) / 32;
  float max = scratch[0];
  for (int i = 1; i < warps; ++i) max = fmaxf(max, scratch[i]);
  return max;
}

}  // namespace quartet::cuda

#endif  // QUARTET_KERNELS_CUDA_DEVICE_WARP_CUH_
