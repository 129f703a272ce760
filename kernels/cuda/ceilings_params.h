#ifndef QUARTET_KERNELS_CUDA_CEILINGS_PARAMS_H_
#define QUARTET_KERNELS_CUDA_CEILINGS_PARAMS_H_

#include <cstdint>

struct uint4;

namespace quartet::cuda {

struct CeilingReadParams {
  const uint4* data;
  int64_t count;   // of 16-byte pieces
  uint32_t* sink;  // written only if the data happens to sum to a certain value
};

struct CeilingLoopParams {
  int32_t iterations;
  uint32_t* sink;
};

}  // namespace quartet::cuda

#endif  // QUARTET_KERNELS_CUDA_CEILINGS_PARAMS_H_
