#ifndef QUARTET_KERNELS_CUDA_NORM_PARAMS_H_
#define QUARTET_KERNELS_CUDA_NORM_PARAMS_H_

#include <cstdint>

namespace quartet::cuda {

constexpr int kMaxPartials = 8;
constexpr int kRowThreads = 256;  // at most, of a block that norms one row

// One partial sum of every rank, added in this order.
struct Partials {
  const float* of[kMaxPartials];  // each [rows, width]
  int32_t count;
};

struct NormParams {
  const float* x;  // [rows, width]
  // Added to x before the norm; the sum goes to `sum`. None: `sum` is not written.
  Partials partials;
  float* sum;           // [rows, width], may be x
  const float* weight;  // [width]
  float* y;             // [rows, width]
  int32_t width;        // a multiple of 4
  float eps;
};

}  // namespace quartet::cuda

#endif  // QUARTET_KERNELS_CUDA_NORM_PARAMS_H_
