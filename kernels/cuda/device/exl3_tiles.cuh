#ifndef QUARTET_KERNELS_CUDA_DEVICE_EXL3_TILES_CUH_
#define QUARTET_KERNELS_CUDA_DEVICE_EXL3_TILES_CUH_

#include "kernels/cuda/device/exl3.cuh"

// EXL3 products for many rows: a decoded unit is multiplied with a tile of rows, so the weights are
// worth rounding to FP16 and packing two to a word.

namespace quartet::cuda::exl3 {

// Rows that a decoded unit is multiplied with, and strips that a warp decodes at once: what the
// registers of its sums allow.
#if QUARTET_ARCH >= 800
constexpr int kMostRowsAtOnce = kLargeRowTile;
constexpr int kStripsAtOnce = 2;
#else
constexpr int kMostRowsAtOnce = kSmallRowTile;
constexpr int kStripsAtOnce = 1;
#endif

// Where input k (0..63) of a unit stands in a row of activations. On sm_80 the eight halves of one
// ldmatrix row are two inputs of each of the four tiles.
QUARTET_DEVICE int PlaceOfInput(int k) {
#if QUARTET_ARCH >= 800
  const int tile = k >> 4, row = k & 15;
  return (row >> 1 & 3) * 16 + (row >> 3) * 8 + 2 * tile + (row & 1);
#else
  return k;
#endif
}

// A row of activations of a unit is 128 bytes of shared memory; its eight pieces of 16 bytes change
// places from row to row, so that eight rows' pieces lie in different banks.
QUARTET_DEVICE int PieceAt(int row, int piece) {
  return row * kUnitInputs + ((piece ^ (row & 7)) * 8);
}

// The inputs of eight rows, of which the first is a multiple of 8: v[2 h] holds inputs 2h, 2h + 1
// and v[2 h + 1] inputs 2h + 8, 2h + 9 of this lane's row and tile.
struct RowInputs {
  uint32_t v[8];
};

QUARTET_DEVICE void LoadRows(RowInputs& f, const __half* tile, int first_row) {
  const __half* rows = tile + first_row * kUnitInputs;
#if QUARTET_ARCH >= 800 && !defined(QUARTET_SIMT)
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const __half* p = rows + PieceAt(Lane() & 7, 4 * i + (Lane() >> 3));
    const unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(p));
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(f.v[4 * i]), "=r"(f.v[4 * i + 1]), "=r"(f.v[4 * i + 2]),
                   "=r"(f.v[4 * i + 3])
                 : "r"(at)
                 : "memory");
  }
#elif QUARTET_ARCH >= 800
  for (int i = 0; i < 8; ++i) {
    const __half* p = rows + PieceAt(RunOfLane(), i) + 2 * TileOfLane();
    memcpy(&f.v[i], p, sizeof(uint32_t));
  }
#else
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const __half* p = rows + PieceAt(RunOfLane(), 2 * TileOfLane() + i);
    const uint4 four = *reinterpret_cast<const uint4*>(p);
    f.v[i] = four.x, f.v[i + 2] = four.y, f.v[i + 4] = four.z, f.v[i + 6] = four.w;
  }
#endif
}

// Two weights in one word.
template <bool kMul1>
QUARTET_DEVICE uint32_t PackWeights(uint32_t a, uint32_t b) {
  const uint32_t low = __byte_perm(a, b, 0x5410);
  if constexpr (kMul1) {
    return low;  // the other halves are zero
  } else {
    const __half2 sum = __hadd2(AsHalves(low), AsHalves(__byte_perm(a, b, 0x7632)));
    uint32_t bits;
    memcpy(&bits, &sum, sizeof(bits));
    return bits;
  }
}

// A lane's weights of a unit: pairs of rows 2i, 2i + 1 of its two columns.
struct UnitWeights {
  uint32_t first[8];
  uint32_t second[8];
};

template <int kBits, bool kMul1, bool kColumnMajor>
QUARTET_DEVICE UnitWeights DecodeUnit(const Words<kBits>& words, Exl3Codebook code) {
  uint32_t w[kBits + 1];
  w[0] = __shfl_sync(kFullMask, words.v[kBits - 1], LaneOfRun((RunOfLane() + 7) & 7, TileOfLane()));
#pragma unroll
  for (int i = 0; i < kBits; ++i) w[i + 1] = words.v[i];
  uint32_t weights[32];
  DecodeRun<kBits, kMul1>(w, code, weights);
  UnitWeights unit;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    unit.first[i] = PackWeights<kMul1>(weights[PlaceInRun<kColumnMajor>(2 * i, 0)],
                                       weights[PlaceInRun<kColumnMajor>(2 * i + 1, 0)]);
    unit.second[i] = PackWeights<kMul1>(weights[PlaceInRun<kColumnMajor>(2 * i, 1)],
                                        weights[PlaceInRun<kColumnMajor>(2 * i + 1, 1)]);
  }
  return unit;
}

QUARTET_DEVICE void MultiplyRows(Sums& sums, const UnitWeights& w, const RowInputs& x) {
#pragma unroll
  for (int h = 0; h < 4; ++h) {
    MultiplyInputs(sums, w.first[h], w.second[h], w.first[h + 4], w.second[h + 4], x.v[2 * h],
                   x.v[2 * h + 1]);
  }
}

}  // namespace quartet::cuda::exl3

#endif  // QUARTET_KERNELS_CUDA_DEVICE_EXL3_TILES_CUH_
