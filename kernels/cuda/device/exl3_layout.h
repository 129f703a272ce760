#ifndef QUARTET_KERNELS_CUDA_DEVICE_EXL3_LAYOUT_H_
#define QUARTET_KERNELS_CUDA_DEVICE_EXL3_LAYOUT_H_

// Sizes that the EXL3 kernels and the host that launches them agree on.

namespace quartet::cuda::exl3 {

constexpr int kBlock = 128;      // of the Hadamard transforms
constexpr int kUnitInputs = 64;  // inputs of a unit, see device/exl3.cuh
constexpr int kStrip = 16;       // outputs of a strip
constexpr int kTokens = 8;       // rows of x that one pass over the weights serves
constexpr int kWarps = 8;        // of a block
constexpr int kThreads = 32 * kWarps;
// Three blocks of products have the registers of a multiprocessor.
constexpr int kProductThreads = 3 * kThreads;

// Activations in shared memory: every one twice in a word, tiles of 16 on 20 words and rows 16
// words further, so that the lanes of a warp read from different banks.
constexpr int kTileWords = 20;
constexpr int RowWords(int inputs) {
  return inputs / 16 * kTileWords + 16;
}

// The activations of a single row: a tile's 16 as halves, then the scale of its block. Never more
// than RowWords.
constexpr int kSingleTileWords = 12;

// Products of many rows: one block multiplies a tile of rows with kColumnTile outputs. Small tiles
// waste less where an expert has few rows, large ones decode the weights less often.
constexpr int kSmallRowTile = 64;
constexpr int kLargeRowTile = 128;
constexpr int kColumnTile = 256;

}  // namespace quartet::cuda::exl3

#endif  // QUARTET_KERNELS_CUDA_DEVICE_EXL3_LAYOUT_H_
