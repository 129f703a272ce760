#ifndef QUARTET_KERNELS_CUDA_DEVICE_COUNTERS_H_
#define QUARTET_KERNELS_CUDA_DEVICE_COUNTERS_H_

namespace quartet::cuda {

// Values that did not fit their stored form, since the backend was made. In device memory.
struct SaturationCounters {
  unsigned long long f16;
  unsigned long long e4m3;
};

}  // namespace quartet::cuda

#endif  // QUARTET_KERNELS_CUDA_DEVICE_COUNTERS_H_
