#ifndef QUARTET_KERNELS_CUDA_DEVICE_ARRIVE_CUH_
#define QUARTET_KERNELS_CUDA_DEVICE_ARRIVE_CUH_

#include "kernels/cuda/device/launch.cuh"

// Results that several blocks share: each block writes its part to memory, and whichever arrives
// last adds all parts up, always in the same order. Saves the launch of a second kernel.

namespace quartet::cuda {

// True in all threads of the last of `parts` blocks that arrive at this counter, which is zero
// before and after. What every block wrote before is then visible to LoadFresh. All threads of the
// block must call.
QUARTET_DEVICE bool LastToArrive(uint32_t* arrived, uint32_t parts) {
  __shared__ int last;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    last = atomicAdd(arrived, 1u) + 1 == parts;
    if (last) *arrived = 0;
  }
  __syncthreads();
  const bool mine = last != 0;
  if (mine) __threadfence();
  return mine;
}

// A value that another block of the same launch wrote: not from the first cache.
QUARTET_DEVICE float LoadFresh(const float* p) {
#ifdef QUARTET_SIMT
  return *p;
#else
  float v;
  asm volatile("ld.global.cg.f32 %0, [%1];" : "=f"(v) : "l"(p) : "memory");
  return v;
#endif
}

// from[0] + from[stride] + ... , `count` of them, in this order. Eight loads at a time are under
// way: each takes most of a microsecond.
QUARTET_DEVICE float SumFresh(const float* from, int count, int64_t stride) {
  constexpr int kTogether = 8;
  float sum = 0.0f;
  for (int i = 0; i < count; i += kTogether) {
    float v[kTogether];
#pragma unroll
    for (int j = 0; j < kTogether; ++j)
      v[j] = i + j < count ? LoadFresh(from + (i + j) * stride) : 0.0f;
#pragma unroll
    for (int j = 0; j < kTogether; ++j) sum += v[j];
  }
  return sum;
}

}  // namespace quartet::cuda

#endif  // QUARTET_KERNELS_CUDA_DEVICE_ARRIVE_CUH_
