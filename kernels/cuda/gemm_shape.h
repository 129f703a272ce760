#ifndef QUARTET_KERNELS_CUDA_GEMM_SHAPE_H_
#define QUARTET_KERNELS_CUDA_GEMM_SHAPE_H_

#include <cstddef>

// What the kernels of gemm.cu and their host side agree on.

namespace quartet::cuda::gemm {

constexpr int kThreads = 256;
constexpr int kSplitStep = 64;     // splits begin at multiples of it
constexpr int kPadding = 8;        // halves at the end of a row in shared memory
constexpr int kToHalfCols = 1024;  // columns of a block of linear_to_half

// What a block multiplies: `rows` rows of x, `outs` rows of W, `depth` inputs a stage.
struct Tile {
  int rows;
  int outs;
  int depth;
  int stages;        // with asynchronous copies
  int plain_stages;  // without

  constexpr int Stages(bool async_copies) const { return async_copies ? stages : plain_stages; }
  constexpr size_t SharedBytes(bool async_copies) const {
    return static_cast<size_t>(rows + outs) * (depth + kPadding) * 2 * Stages(async_copies);
  }
};

// Tiles of few rows take more inputs at a time: they wait for memory, not for tensor cores.
constexpr Tile kTiles[] = {
    {16, 128, 64, 4, 2},  {32, 128, 64, 4, 2},  {64, 128, 64, 3, 2},
    {128, 128, 32, 4, 2}, {128, 256, 32, 3, 2},
};
constexpr int kTileKinds = 5;

}  // namespace quartet::cuda::gemm

#endif  // QUARTET_KERNELS_CUDA_GEMM_SHAPE_H_
