#ifndef QUARTET_KERNELS_CUDA_CUBLAS_H_
#define QUARTET_KERNELS_CUDA_CUBLAS_H_

#include <cstdint>
#include <memory>

#include "kernels/cuda/device.h"

namespace quartet::cuda {

// The matrix library of the CUDA toolkit, where the machine has it: on wgmma it multiplies large
// matrices faster than the tile primitive can. Found at run time; nothing needs it.
class Cublas {
 public:
  // y [rows, out] = x [rows, in] w [out, in]^T; x and w FP16, y and sums FP32. Strides in elements.
  struct Product {
    const uint16_t* x;
    int64_t x_stride;
    const uint16_t* w;
    int64_t w_stride;
    float* y;
    int64_t y_stride;
    int64_t rows;
    int64_t in;
    int64_t out;
  };

  // Null where there is no libcublas.so.13 or .12, on the emulator, and with the sm_70 image, which
  // is to run what a V100 runs.
  static std::unique_ptr<Cublas> Load(Device& device);
  virtual ~Cublas() = default;

  // On the device's stream, in memory that was set aside at Load.
  virtual void Multiply(const Product& product) const = 0;
};

}  // namespace quartet::cuda

#endif  // QUARTET_KERNELS_CUDA_CUBLAS_H_
