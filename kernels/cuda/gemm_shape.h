#ifndef QUARTET_KERNELS_CUDA_GEMM_SHAPE_H_
#define QUARTET_KERNELS_CUDA_GEMM_SHAPE_H_

#include <cstddef>

// What the kernels of gemm.cu and their host side agree on.

namespace quartet::cuda::gemm {

constexpr int kSplitStep = 64;     // splits begin at multiples of it
constexpr int kPadding = 8;        // halves at the end of a row in shared memory
constexpr int kToHalfCols = 1024;  // columns of a block of linear_to_half

// What a block multiplies: `rows` rows of x, `outs` rows of W, `depth` inputs a stage; its warps
// lie down x across over the tile.
struct Tile {
  int rows;
  int outs;
  int down;
  int across;
  int depth;
  int stages;        // with asynchronous copies
  int plain_stages;  // without

  constexpr int Threads() const { return 32 * down * across; }
  constexpr int Stages(bool async_copies) const { return async_copies ? stages : plain_stages; }
  constexpr size_t SharedBytes(bool async_copies) const {
    return static_cast<size_t>(rows + outs) * (depth + kPadding) * 2 * Stages(async_copies);
  }
};

// Few rows wait for memory, not for tensor cores. The last is the fastest for many rows where a
// block may have 108 KiB of shared memory; everything else fits into 96 KiB.
constexpr Tile kTiles[] = {
    {16, 128, 1, 8, 64, 4, 2},  {32, 128, 1, 8, 64, 4, 2},  {64, 128, 2, 4, 64, 3, 2},
    {128, 128, 2, 4, 32, 4, 2}, {128, 128, 2, 2, 64, 3, 1},
};
constexpr int kTileKinds = 5;
constexpr int kTallest = 2;  // of the tiles that matrices of few tiles take
constexpr int kLarge = 3;
constexpr int kLargest = 4;

}  // namespace quartet::cuda::gemm

#endif  // QUARTET_KERNELS_CUDA_GEMM_SHAPE_H_
