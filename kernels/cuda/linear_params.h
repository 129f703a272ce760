#ifndef QUARTET_KERNELS_CUDA_LINEAR_PARAMS_H_
#define QUARTET_KERNELS_CUDA_LINEAR_PARAMS_H_

#include <cstdint>

namespace quartet::cuda {

struct LinearF32Params {
  const float* x;
  const float* weights;  // [out, in]
  float* y;
  int64_t x_stride;
  int64_t y_stride;
  int32_t in;
  int32_t out;
};

}  // namespace quartet::cuda

#endif  // QUARTET_KERNELS_CUDA_LINEAR_PARAMS_H_
