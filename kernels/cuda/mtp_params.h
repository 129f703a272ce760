#ifndef QUARTET_KERNELS_CUDA_MTP_PARAMS_H_
#define QUARTET_KERNELS_CUDA_MTP_PARAMS_H_

#include <cstdint>

#include "kernels/cuda/norm_params.h"

namespace quartet::cuda {

// Row r of `y` becomes [RMSNorm(embedding[r]), RMSNorm(h[r])], the first half zero at position 0.
struct MtpNormParams {
  const float* embedding;  // [rows, hidden]
  const float* h;          // [rows, hidden]
  const int32_t* positions;
  const float* enorm;  // [hidden]
  const float* hnorm;
  float* y;        // [rows, 2, hidden]
  int32_t hidden;  // a multiple of 4
  float enorm_eps;
  float hnorm_eps;
};

}  // namespace quartet::cuda

#endif  // QUARTET_KERNELS_CUDA_MTP_PARAMS_H_
