#ifndef QUARTET_KERNELS_CUDA_DEVICE_MEMORY_CUH_
#define QUARTET_KERNELS_CUDA_DEVICE_MEMORY_CUH_

#include "kernels/cuda/device/launch.cuh"

// Loads with hints and asynchronous copies. What an architecture lacks is done in the plain way, so
// that kernels need not know.

namespace quartet::cuda {

// 16 bytes that are read once: weights. They pass the first cache by.
QUARTET_DEVICE uint4 LoadStreaming(const uint4* p) {
#ifdef QUARTET_SIMT
  return *p;
#else
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p));
  return v;
#endif
}
QUARTET_DEVICE uint2 LoadStreaming(const uint2* p) {
#ifdef QUARTET_SIMT
  return *p;
#else
  uint2 v;
  asm volatile("ld.global.nc.L1::no_allocate.v2.u32 {%0, %1}, [%2];"
               : "=r"(v.x), "=r"(v.y)
               : "l"(p));
  return v;
#endif
}
QUARTET_DEVICE uint32_t LoadStreaming(const uint32_t* p) {
#ifdef QUARTET_SIMT
  return *p;
#else
  uint32_t v;
  asm volatile("ld.global.nc.L1::no_allocate.u32 %0, [%1];" : "=r"(v) : "l"(p));
  return v;
#endif
}

QUARTET_DEVICE void PrefetchL2(const void* p) {
#ifndef QUARTET_SIMT
  asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
#else
  (void)p;
#endif
}

// 16 bytes from global to shared memory, both aligned to 16. Where !valid, zeros are written and
// nothing is read. They are there after CopyAsyncWait and a barrier.
QUARTET_DEVICE void CopyAsync16(void* shared, const void* global, bool valid = true) {
#if !defined(QUARTET_SIMT) && QUARTET_ARCH >= 800
  const unsigned to = static_cast<unsigned>(__cvta_generic_to_shared(shared));
  const int bytes = valid ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(global), "r"(bytes)
               : "memory");
#else
  *static_cast<uint4*>(shared) =
      valid ? *static_cast<const uint4*>(global) : make_uint4(0, 0, 0, 0);
#endif
}
QUARTET_DEVICE void CopyAsyncCommit() {
#if !defined(QUARTET_SIMT) && QUARTET_ARCH >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
// Waits until at most `Pending` of this thread's newest groups are under way.
template <int Pending>
QUARTET_DEVICE void CopyAsyncWait() {
#if !defined(QUARTET_SIMT) && QUARTET_ARCH >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(Pending) : "memory");
#endif
}

}  // namespace quartet::cuda

#endif  // QUARTET_KERNELS_CUDA_DEVICE_MEMORY_CUH_
