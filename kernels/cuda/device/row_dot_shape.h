#ifndef QUARTET_KERNELS_CUDA_DEVICE_ROW_DOT_SHAPE_H_
#define QUARTET_KERNELS_CUDA_DEVICE_ROW_DOT_SHAPE_H_

// What row_dot.cuh and the host sides of its kernels agree on.

namespace quartet::cuda::row_dot {

constexpr int kRowDotOutputs = 32;  // of a warp
constexpr int kRowDotStep = 64;     // inputs that a warp takes at once

// Warps of linear_rows that a multiprocessor holds at once, which keep most bytes on their way, and
// the most of a block. On sm_70 they need more registers, and blocks are smaller.
constexpr int kRowDotWarps = 24;
constexpr int kRowDotWarpsSm70 = 8;  // of a block

}  // namespace quartet::cuda::row_dot

#endif  // QUARTET_KERNELS_CUDA_DEVICE_ROW_DOT_SHAPE_H_
