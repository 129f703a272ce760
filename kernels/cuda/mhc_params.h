#ifndef QUARTET_KERNELS_CUDA_MHC_PARAMS_H_
#define QUARTET_KERNELS_CUDA_MHC_PARAMS_H_

#include <cstdint>

#include "kernels/cuda/norm_params.h"

struct uint4;

namespace quartet::cuda {

constexpr int kMhcStreams = 4;                                        // n
constexpr int kMhcMap = 2 * kMhcStreams + kMhcStreams * kMhcStreams;  // rows of fn
constexpr int kMhcSums = kMhcMap + 1;   // the products with fn, and the sum of squares
constexpr int kMhcSlice = 128;          // channels of all streams that one warp multiplies
constexpr int kMhcSpreadThreads = 256;  // mhc_spread: a warp has three rows of fn
constexpr int kMhcGroupRows = 16;       // mhc_group: rows of a block
constexpr int kCollapseThreads = 256;   // deal the quads of x
constexpr int kMhcCollapseBlock =
    kCollapseThreads + 32;  // mhc_collapse: one warp more, for the map

struct MhcSiteParams {
  Partials partials;  // of y; where `begin`, the embedding
  int32_t begin;      // every stream starts as a copy of y
  int32_t rows;
  int32_t hidden;   // a multiple of 4
  int32_t slices;   // ceil(hidden / kMhcSlice)
  float* streams;   // [rows, 4, hidden]
  float* post;      // [rows, 4]: the former site's, then this one's
  float* comb;      // [rows, 4, 4]
  const uint4* fn;  // [slices, kMhcMap, chunks, 32 lanes] of 16 bytes (see PackFn in mhc.cc)
  const float* base;
  const float* scale;
  const float* norm;  // [hidden]
  float* x;           // [rows, hidden]
  float* sums;        // mhc_spread, mhc_collapse: [rows, slices, kMhcSums]
  int32_t sinkhorn_iters;
  float hc_eps;
  float norm_eps;  // inside the root of z
  float site_eps;  // inside the root of x's norm
};

struct MhcFinishParams {
  Partials partials;
  int32_t hidden;
  float* streams;
  const float* post;
  const float* comb;
  const float* norm;
  float* h;  // [rows, hidden]
  float eps;
};

}  // namespace quartet::cuda

#endif  // QUARTET_KERNELS_CUDA_MHC_PARAMS_H_
