#ifndef QUARTET_KERNELS_CUDA_DEVICE_LAUNCH_CUH_
#define QUARTET_KERNELS_CUDA_DEVICE_LAUNCH_CUH_

// What a kernel source starts with. Kernels are written once; three things compile them: nvcc
// (sm_80 and up), clang (sm_70), and the host compiler for the emulator of tests/support/simt,
// which runs them on the CPU and defines QUARTET_SIMT.
//
//   QUARTET_KERNEL(name, threads, min_blocks, Params) { ... uses p, a const Params& ... }
//   unsigned char* shared = QUARTET_DYNAMIC_SHARED();        // 16-byte aligned
//   __shared__ float sums[32];                               // fixed size
//
// From sm_90 on, a kernel's blocks may become resident while the kernel before it on the stream
// still runs (programmatic dependent launch; Device::Launch asks for it). What that kernel writes
// may be touched only after AwaitPrevious(), and only after it may the kernel behind be let in by
// LetNextIn(): QUARTET_KERNEL calls both first. A kernel that has something to fetch that no kernel
// writes, such as weights, is a QUARTET_EARLY_KERNEL and calls them itself: AwaitPrevious() in at
// least one thread of the grid and before anything else that the kernel reads or writes in global
// memory. As every kernel does so, whatever was written before the previous kernel may always be
// read. A kernel that fills the card once does not call LetNextIn, or only when its blocks have
// done nearly all: blocks that come early take the places that happen to be free, and where two
// kernels of that kind follow each other some multiprocessors would get twice the work of others.
// With several waves of blocks, or no more places than blocks, that does not happen.

#ifdef QUARTET_SIMT

#include "tests/support/simt/simt.h"

#define QUARTET_EARLY_KERNEL(name, threads, min_blocks, Params)                      \
  static void name##_body(const Params& p);                                          \
  static const bool name##_registered = ::quartet::simt::Register(                   \
      #name, threads, sizeof(Params),                                                \
      [](const void* params) { name##_body(*static_cast<const Params*>(params)); }); \
  static void name##_body([[maybe_unused]] const Params& p)
#define QUARTET_KERNEL QUARTET_EARLY_KERNEL
#define QUARTET_DYNAMIC_SHARED() ::quartet::simt::DynamicShared()
#ifndef QUARTET_ARCH
#define QUARTET_ARCH 900
#endif
#define QUARTET_DEVICE inline

#else

#include <cuda_fp16.h>

#include <cstdint>

#define QUARTET_EARLY_KERNEL(name, threads, min_blocks, Params)     \
  extern "C" __global__ void __launch_bounds__(threads, min_blocks) \
      name(const __grid_constant__ Params p)
#define QUARTET_KERNEL(name, threads, min_blocks, Params)              \
  static __device__ __forceinline__ void name##_body(const Params& p); \
  QUARTET_EARLY_KERNEL(name, threads, min_blocks, Params) {            \
    ::quartet::cuda::AwaitPrevious();                                  \
    ::quartet::cuda::LetNextIn();                                      \
    name##_body(p);                                                    \
  }                                                                    \
  static __device__ __forceinline__ void name##_body([[maybe_unused]] const Params& p)
extern __shared__ __align__(16) unsigned char quartet_dynamic_shared[];
#define QUARTET_DYNAMIC_SHARED() quartet_dynamic_shared
#ifdef __CUDA_ARCH__
#define QUARTET_ARCH __CUDA_ARCH__
#else
#define QUARTET_ARCH 900
#endif
#define QUARTET_DEVICE __device__ __forceinline__

#endif

namespace quartet::cuda {

// Waits until the kernel before this one on the stream has ended and its writes are seen.
QUARTET_DEVICE void AwaitPrevious() {
#if QUARTET_ARCH >= 900 && !defined(QUARTET_SIMT)
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
// The kernel after this one may become resident once all blocks have called this or ended.
QUARTET_DEVICE void LetNextIn() {
#if QUARTET_ARCH >= 900 && !defined(QUARTET_SIMT)
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

}  // namespace quartet::cuda

#endif  // QUARTET_KERNELS_CUDA_DEVICE_LAUNCH_CUH_
