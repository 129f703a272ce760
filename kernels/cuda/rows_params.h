#ifndef QUARTET_KERNELS_CUDA_ROWS_PARAMS_H_
#define QUARTET_KERNELS_CUDA_ROWS_PARAMS_H_

#include <cstdint>

namespace quartet::cuda {

struct MoveRowsParams {
  const float* from;
  const int32_t* ids;  // [rows]
  float* to;
  int32_t width;  // a multiple of 4
};

}  // namespace quartet::cuda

#endif  // QUARTET_KERNELS_CUDA_ROWS_PARAMS_H_
