#ifndef QUARTET_KERNELS_CUDA_KDA_DEVICE_CUH_
#define QUARTET_KERNELS_CUDA_KDA_DEVICE_CUH_

#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/kda_params.h"

// How the blocks of the KDA kernels find their rows. The host knows only how many rows and segments
// there are, so grids are upper bounds and blocks without work end at once.

namespace quartet::cuda {

QUARTET_DEVICE const StepSegment* FirstSegment(const KdaSegments& s) {
  return s.step.segments + (s.first_row == 0 ? 0 : s.step.row_segments[s.first_row]);
}

// Segments cut into tiles of `tile_rows` rows (the last one shorter), all in one list.
struct SegmentTile {
  StepSegment segment;
  int row;  // first row of the tile, counted from the segment's first
};

// Tile `index` of the list. False where the list is shorter.
QUARTET_DEVICE bool FindTile(const KdaSegments& s, int tile_rows, int index, SegmentTile& tile) {
  const StepSegment* segments = FirstSegment(s);
  if (s.rows <= tile_rows) {  // every segment is one tile: no search in the decode path
    if (index >= s.count) return false;
    tile = {segments[index], 0};
    return true;
  }
  for (int i = 0; i < s.count; ++i) {
    const int tiles = (segments[i].rows + tile_rows - 1) / tile_rows;
    if (index < tiles) {
      tile = {segments[i], index * tile_rows};
      return true;
    }
    index -= tiles;
  }
  return false;
}

// The index in the list of the first tile of segment `index`.
QUARTET_DEVICE int FirstTile(const KdaSegments& s, int tile_rows, int index) {
  const StepSegment* segments = FirstSegment(s);
  int tiles = 0;
  for (int i = 0; i < index; ++i) tiles += (segments[i].rows + tile_rows - 1) / tile_rows;
  return tiles;
}

QUARTET_DEVICE float4 LoadFloat4(const float* p) {
  return *reinterpret_cast<const float4*>(p);
}
QUARTET_DEVICE void StoreFloat4(float* p, float4 v) {
  *reinterpret_cast<float4*>(p) = v;
}
QUARTET_DEVICE float4 ZeroFloat4() {
  return make_float4(0.0f, 0.0f, 0.0f, 0.0f);
}

// Count floats (2 or a multiple of 4) from memory that is aligned to min(Count, 4) of them.
template <int Count>
QUARTET_DEVICE void LoadFloats(float (&to)[Count], const float* from) {
  if constexpr (Count == 2) {
    const float2 v = *reinterpret_cast<const float2*>(from);
    to[0] = v.x, to[1] = v.y;
  } else {
#pragma unroll
    for (int i = 0; i < Count; i += 4) {
      const float4 v = LoadFloat4(from + i);
      to[i] = v.x, to[i + 1] = v.y, to[i + 2] = v.z, to[i + 3] = v.w;
    }
  }
}
// The same where nobody writes to the memory while the kernel runs, so that the compiler may move
// the loads before stores.
template <int Count>
QUARTET_DEVICE void LoadConstants(float (&to)[Count], const float* from) {
  static_assert(Count % 4 == 0);
#pragma unroll
  for (int i = 0; i < Count; i += 4) {
    const float4 v = __ldg(reinterpret_cast<const float4*>(from + i));
    to[i] = v.x, to[i + 1] = v.y, to[i + 2] = v.z, to[i + 3] = v.w;
  }
}
QUARTET_DEVICE void StoreFloats(float* to, const float (&from)[4]) {
  StoreFloat4(to, make_float4(from[0], from[1], from[2], from[3]));
}

}  // namespace quartet::cuda

#endif  // QUARTET_KERNELS_CUDA_KDA_DEVICE_CUH_
