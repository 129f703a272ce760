#ifndef QUARTET_KERNELS_CUDA_DEVICE_REDUCE_CUH_
#define QUARTET_KERNELS_CUDA_DEVICE_REDUCE_CUH_

#include "kernels/cuda/device/mma.cuh"
#include "kernels/cuda/device/warp.cuh"

// Many sums over lanes at once: each exchange halves the number of values a lane holds, so that N
// sums cost about N exchanges instead of five each. Fixed order.

namespace quartet::cuda {

namespace reduce_detail {

// Adds the values of the lane whose index differs by `mask`; of N values the lane with that bit
// keeps the upper half, the other one the lower half, in v[0 .. N / 2).
template <int N>
QUARTET_DEVICE void Halve(float* v, int mask) {
  const bool upper = (Lane() & mask) != 0;
#pragma unroll
  for (int i = 0; i < N / 2; ++i) {
    const float sent = upper ? v[i] : v[i + N / 2];
    const float kept = upper ? v[i + N / 2] : v[i];
    v[i] = kept + __shfl_xor_sync(kFullMask, sent, mask);
  }
}

template <int N, int Mask>
QUARTET_DEVICE float SumStep(float* v) {
  if constexpr (Mask == 0) {
    return v[0];
  } else if constexpr (N > 1) {
    Halve<N>(v, Mask);
    return SumStep<N / 2, Mask / 2>(v);
  } else {
    v[0] += __shfl_xor_sync(kFullMask, v[0], Mask);
    return SumStep<1, Mask / 2>(v);
  }
}

}  // namespace reduce_detail

// Lane l gets the sum over the warp of v[l / (32 / N)]. N a power of two, at most 32. Overwrites v.
template <int N>
QUARTET_DEVICE float WarpSums(float (&v)[N]) {
  return reduce_detail::SumStep<N, 16>(v);
}

// Sums over the 16 rows of C tiles. A lane holds parts of four columns of a tile: value j of it
// belongs to column ColumnOfPart(j) and is the sum of the lane's two rows of it.
QUARTET_DEVICE int RegisterOfPart(int j, int row_half) {
  return (j & 1) + 2 * row_half + 4 * (j >> 1);
}
QUARTET_DEVICE int ColumnOfPart(int j) {
  return ColOfC(RegisterOfPart(j, 0));
}
// v[4 n + j]: part j of tile n. Returns the sum of the column that `tile` and `column` then name;
// lanes may share one.
template <int Tiles>
QUARTET_DEVICE float SumRowsOfC(float (&v)[4 * Tiles], int* tile, int* column) {
  static_assert(Tiles == 1 || Tiles == 2);
#if QUARTET_ARCH >= 800
  constexpr int kMasks[3] = {4, 8, 16};
#else
  constexpr int kMasks[3] = {1, 4, 16};
#endif
  int part = 0;
  if constexpr (Tiles == 2) {
    reduce_detail::Halve<8>(v, kMasks[0]);
    reduce_detail::Halve<4>(v, kMasks[1]);
    reduce_detail::Halve<2>(v, kMasks[2]);
    part = ((Lane() & kMasks[0]) != 0 ? 4 : 0) + ((Lane() & kMasks[1]) != 0 ? 2 : 0) +
           ((Lane() & kMasks[2]) != 0 ? 1 : 0);
  } else {
    reduce_detail::Halve<4>(v, kMasks[0]);
    reduce_detail::Halve<2>(v, kMasks[1]);
    v[0] += __shfl_xor_sync(kFullMask, v[0], kMasks[2]);
    part = ((Lane() & kMasks[0]) != 0 ? 2 : 0) + ((Lane() & kMasks[1]) != 0 ? 1 : 0);
  }
  *tile = part / 4;
  *column = ColumnOfPart(part % 4);
  return v[0];
}

}  // namespace quartet::cuda

#endif  // QUARTET_KERNELS_CUDA_DEVICE_REDUCE_CUH_
