#ifndef QUARTET_KERNELS_CUDA_DEVICE_LAUNCH_CUH_
#define QUARTET_KERNELS_CUDA_DEVICE_LAUNCH_CUH_

// What a kernel source starts with. Kernels are written once; three things compile them: nvcc
// (sm_80 and up), clang (sm_70), and the host compiler for the emulator of tests/support/simt,
// which runs them on the CPU and defines QUARTET_SIMT.
//
//   QUARTET_KERNEL(name, threads, min_blocks, Params) { ... uses p, a const Params& ... }
//   unsigned char* shared = QUARTET_DYNAMIC_SHARED();        // 16-byte aligned
//   __shared__ float sums[32];                               // fixed size

#ifdef QUARTET_SIMT

#include "tests/support/simt/simt.h"

#define QUARTET_KERNEL(name, threads, min_blocks, Params)                            \
  static void name##_body(const Params& p);                                          \
  static const bool name##_registered = ::quartet::simt::Register(                   \
      #name, threads, sizeof(Params),                                                \
      [](const void* params) { name##_body(*static_cast<const Params*>(params)); }); \
  static void name##_body([[maybe_unused]] const Params& p)
#define QUARTET_DYNAMIC_SHARED() ::quartet::simt::DynamicShared()
#ifndef QUARTET_ARCH
#define QUARTET_ARCH 900
#endif
#define QUARTET_DEVICE inline

#else

#include <cuda_fp16.h>

#include <cstdint>

#define QUARTET_KERNEL(name, threads, min_blocks, Params)           \
  extern "C" __global__ void __launch_bounds__(threads, min_blocks) \
      name(const __grid_constant__ Params p)
extern __shared__ __align__(16) unsigned char quartet_dynamic_shared[];
#define QUARTET_DYNAMIC_SHARED() quartet_dynamic_shared
#ifdef __CUDA_ARCH__
#define QUARTET_ARCH __CUDA_ARCH__
#else
#define QUARTET_ARCH 900
#endif
#define QUARTET_DEVICE __device__ __forceinline__

#endif

#endif  // QUARTET_KERNELS_CUDA_DEVICE_LAUNCH_CUH_
