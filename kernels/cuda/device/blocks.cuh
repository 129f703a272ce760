#ifndef QUARTET_KERNELS_CUDA_DEVICE_BLOCKS_CUH_
#define QUARTET_KERNELS_CUDA_DEVICE_BLOCKS_CUH_

#include "kernels/cuda/device/launch.cuh"

// Work that many blocks share and one of them finishes, in one launch.

namespace quartet::cuda {

// True in all threads of the block that arrives last of `blocks` at this ticket; that block then
// sees everything that the others wrote before they arrived. The ticket is zero before the launch
// and again after it. All threads of the block must call.
QUARTET_DEVICE bool IsLastBlock(uint32_t* ticket, uint32_t blocks) {
  __shared__ int last;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    last = atomicAdd(ticket, 1u) == blocks - 1;
    if (last) *ticket = 0;
  }
  __syncthreads();
  if (last) __threadfence();
  return last != 0;
}

}  // namespace quartet::cuda

#endif  // QUARTET_KERNELS_CUDA_DEVICE_BLOCKS_CUH_
