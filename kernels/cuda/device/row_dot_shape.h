#ifndef QUARTET_KERNELS_CUDA_DEVICE_ROW_DOT_SHAPE_H_
#define QUARTET_KERNELS_CUDA_DEVICE_ROW_DOT_SHAPE_H_

#include <cstddef>

// What row_dot.cuh and the host sides of its kernels agree on.

namespace quartet::cuda::row_dot {

constexpr int kRowDotOutputs = 32;  // of a warp
constexpr int kRowDotStep = 64;     // inputs that a warp takes at once
constexpr int kRowDotStages = 3;    // steps of W under way (with asynchronous copies)

// Shared memory of a warp: W of all stages; the sums lie there afterwards. Without asynchronous
// copies the sums alone.
constexpr size_t RingBytes() {
  return size_t{kRowDotStages} * kRowDotOutputs * kRowDotStep * 2;
}
constexpr size_t SumBytes(int rows) {
  return size_t{kRowDotOutputs} * rows * sizeof(float);
}
// A block of more warps than this has too few registers for the FP32 form.
constexpr int kMaxWarpsAsync = 16;
constexpr int kMaxWarpsPlain = 8;

}  // namespace quartet::cuda::row_dot

#endif  // QUARTET_KERNELS_CUDA_DEVICE_ROW_DOT_SHAPE_H_
