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

// CopyAsync16 that sends for the rest of the 128-byte line too, into the second-level cache.
QUARTET_DEVICE void CopyAsyncLine16(void* shared, const void* global, bool valid = true) {
#if !defined(QUARTET_SIMT) && QUARTET_ARCH >= 800
  const unsigned to = static_cast<unsigned>(__cvta_generic_to_shared(shared));
  const int bytes = valid ? 16 : 0;
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(global),
               "r"(bytes)
               : "memory");
#else
  CopyAsync16(shared, global, valid);
#endif
}

// A thread's `Pieces` pieces of 16 bytes of one stage. For each stage: Fetch all, Commit, compute
// on an earlier stage, Store all to the places that Fetch was told.
template <int Pieces>
struct StagedCopy {
  QUARTET_DEVICE void Fetch(int i, void* shared, const void* global, bool valid) {
    if constexpr (kAsyncCopies) {
      CopyAsyncLine16(shared, global, valid);
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
