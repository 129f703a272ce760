#include "kernels/cuda/device/rows.cuh"
#include "kernels/cuda/rows_params.h"

namespace quartet::cuda {

QUARTET_DEVICE void CopyRow(const float* from, float* to, int width) {
  for (int q = static_cast<int>(threadIdx.x); q < width / 4; q += static_cast<int>(blockDim.x)) {
    StoreQuad(to, q, LoadQuad(from, q));
  }
}

QUARTET_KERNEL(gather_rows, kRowThreads, 1, MoveRowsParams) {
  const int64_t r = blockIdx.x;
  CopyRow(p.from + static_cast<int64_t>(p.ids[r]) * p.width, p.to + r * p.width, p.width);
}

QUARTET_KERNEL(scatter_rows, kRowThreads, 1, MoveRowsParams) {
  const int64_t r = blockIdx.x;
  CopyRow(p.from + r * p.width, p.to + static_cast<int64_t>(p.ids[r]) * p.width, p.width);
}

}  // namespace quartet::cuda
