#ifndef QUARTET_KERNELS_CUDA_DEVICE_STAGED_COPY_CUH_
#define QUARTET_KERNELS_CUDA_DEVICE_STAGED_COPY_CUH_

#include "kernels/cuda/device/memory.cuh"

// Copies from global to shared memory that go on while the block computes on what came before.
// With cp.async (sm_80 and up) the hardware does it, several stages ahead; without, a thread keeps
// its pieces in registers from Fetch to Store, one stage ahead.

namespace quartet::cuda {

#if QUARTET_ARCH >= 800
constexpr bool kAsyncCopies = true;
#else
constexpr bool kAsyncCopies = false;
#endif

// A thread's `Pieces` pieces of 16 bytes of one stage. For each stage: Fetch all, Commit, compute
// on an earlier stage, Store all to the places that Fetch was told.
template <int Pieces>
struct StagedCopy {
  QUARTET_DEVICE void Fetch(int i, void* shared, const void* global, bool valid) {
    if constexpr (kAsyncCopies) {
      CopyAsync16(shared, global, valid);
    } else {
      held[i] = valid ? *static_cast<const uint4*>(global) : make_uint4(0, 0, 0, 0);
    }
  }
  QUARTET_DEVICE void Commit() { CopyAsyncCommit(); }
  QUARTET_DEVICE void Store(int i, void* shared) {
    if constexpr (!kAsyncCopies) *static_cast<uint4*>(shared) = held[i];
  }

  uint4 held[kAsyncCopies ? 1 : Pieces];
};

}  // namespace quartet::cuda

#endif  // QUARTET_KERNELS_CUDA_DEVICE_STAGED_COPY_CUH_
