#ifndef QUARTET_KERNELS_CUDA_LINEAR_PARAMS_H_
#define QUARTET_KERNELS_CUDA_LINEAR_PARAMS_H_

#include <cstdint>

namespace quartet::cuda {

struct SaturationCounters;

// linear_rows_N (N = 1 .. 8 rows of x). A block has `slots` tiles of 32 outputs, each shared by
// `k_warps` warps; grid (ceil(tiles / slots), splits): split s takes inputs from
// s * k_warps * k_per_warp on. Gated: W is gate | up, out / 2 rows each, and y
// [rows, out / 2] = ClampedSwiGlu(gate, up); then a block has a tile of each, and the grid as many
// blocks as gate has tiles.
struct LinearRowsParams {
  const uint16_t* weights;  // [out, w_stride], zeros from `in` on
  const float* x;
  float* y;
  float* partial;     // [grid x][splits][slots][N][32], for more than one split
  uint32_t* arrived;  // [grid x], zeros
  SaturationCounters* saturation;
  int64_t w_stride;  // a multiple of 8
  int64_t x_stride;
  int64_t y_stride;
  int32_t in;
  int32_t out;
  int32_t slots;
  int32_t k_warps;
  int32_t k_per_warp;  // a multiple of 64
  int32_t x_aligned;   // rows of x are aligned to 16 bytes
  int32_t gated;
  float limit;
};

// linear_to_half: x rounded to FP16, grid (columns / 1024, rows).
struct LinearToHalfParams {
  const float* x;
  uint16_t* half;  // [rows, half_stride], zeros from `in` on
  SaturationCounters* saturation;
  int64_t x_stride;
  int64_t half_stride;
  int32_t in;
  int32_t rows;
};

// gemm_K (K: which tile of gemm_shape.h): grid (row tiles * out tiles, splits).
struct GemmParams {
  const uint16_t* x;        // [rows, x_stride]
  const uint16_t* weights;  // [out, w_stride]
  float* y;
  float* partial;     // [tiles][splits][tile rows][tile outs], for more than one split
  uint32_t* arrived;  // [tiles], zeros
  int64_t x_stride;   // halves, a multiple of 8 like w_stride; both hold zeros from `in` on
  int64_t w_stride;
  int64_t y_stride;
  int32_t depth;  // inputs rounded up to 8
  int32_t rows;
  int32_t out;
  int32_t row_tiles;
  int32_t out_tiles;
  int32_t depth_per_split;  // a multiple of 64
};

// linear_exact_few_T and linear_exact_many_T (T = f32, f16, bf16).
struct LinearExactParams {
  const void* weights;  // [out, w_stride] elements as stored, zeros from `in` on
  const float* x;
  float* y;
  float* partial;     // few: [tiles][slices][8][32]; many: [tiles][groups][128][64]
  uint32_t* arrived;  // [tiles], zeros
  int64_t w_stride;   // elements; rows are aligned to 16 bytes
  int64_t x_stride;
  int64_t y_stride;
  int32_t in;
  int32_t out;
  int32_t rows;
  int32_t x_aligned;
};

}  // namespace quartet::cuda

#endif  // QUARTET_KERNELS_CUDA_LINEAR_PARAMS_H_
