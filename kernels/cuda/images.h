#ifndef QUARTET_KERNELS_CUDA_IMAGES_H_
#define QUARTET_KERNELS_CUDA_IMAGES_H_

#include <cstddef>
#include <span>

namespace quartet::cuda {

// The compiled form of one kernel source, as linked into the program. Made by
// cmake/QuartetCuda.cmake.
struct KernelImage {
  const char* source;         // such as "kda"
  const unsigned char* data;  // fat binary of nvcc, or PTX text (ends with a zero)
  size_t bytes;
};

// What nvcc made, for the architectures of QUARTET_CUDA_ARCHS.
std::span<const KernelImage> NativeImages();
// PTX for sm_70. Empty where the build had no compiler for it.
std::span<const KernelImage> Sm70Images();

}  // namespace quartet::cuda

#endif  // QUARTET_KERNELS_CUDA_IMAGES_H_
