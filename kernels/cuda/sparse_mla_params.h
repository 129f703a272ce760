#ifndef QUARTET_KERNELS_CUDA_SPARSE_MLA_PARAMS_H_
#define QUARTET_KERNELS_CUDA_SPARSE_MLA_PARAMS_H_

#include <cstdint>

#include "kernels/cuda/dsa_params.h"

namespace quartet::cuda {

// y_h = x_h W_h^T for every head, x and y [rows, heads, in or out]; one of them FP16, the other
// FP32, as the kernel's name says.
struct HeadLinearParams {
  const void* x;
  const uint16_t* w;  // [heads, out, in]
  void* y;
  int32_t rows;
  int32_t heads;
  int32_t in;
  int32_t out;
  SaturationCounters* saturation;
};

// The kernels for a few rows: up to 16 rows, 64 outputs a block, whose weights lie in shared
// memory.
constexpr int kHeadLinearRows = 16;
constexpr int kHeadLinearOutputs = 64;
constexpr int kHeadLinearThreads = 128;
constexpr int HeadLinearSharedBytes(int in) {
  return (kHeadLinearOutputs + kHeadLinearRows) * ((in + 15) / 16 * 16 + 8) * 2;
}

// Attention of absorbed queries over the latents of their rows' selections.
struct AttendParams {
  StepView step;
  const int32_t* pools;   // [.., topk], of row 0 of the step
  const int32_t* counts;  // [..]
  const int32_t* tails;   // [..] or null
  PagedRows latents;
  uint16_t* q;      // [rows, heads, width]: absorbed queries of rows row_begin on; becomes the
                    // weighted latents
  float* parts;     // [rows, splits, heads, width], where splits > 1: unnormalised
  float* part_max;  // [rows, splits, heads]: reference of the exponents, in units of log 2
  float* part_sum;  // [rows, splits, heads]
  int32_t row_begin;
  int32_t heads;
  int32_t kpool;
  int32_t topk;
  int32_t splits;
  int32_t split_tiles;  // tiles of kAttendKeys keys a split
  float scale_log2;     // nope^-1/2 / log 2
  SaturationCounters* saturation;
};

constexpr int kAttendKeys = 64;
constexpr int kAttendThreads = 256;
constexpr int kAttendLargeThreads = 512;  // of 64 heads and 512 columns

constexpr int kMaxSplits = 1024;

// One address for every pool that a row attends to and for the tail.
constexpr int PoolTableBytes(int topk) {
  return (topk + 2) / 2 * 2 * 8;
}
// Dynamic shared memory of an attention kernel for `heads` heads a block and `width` columns, with
// a table of `topk` pools (0: without it) and, where the next keys are fetched ahead, `raw_bytes`
// for a row of `width` stored values, else 0.
constexpr int AttendSharedBytes(int heads, int width, int topk, int raw_bytes) {
  const int queries = heads * (width + 8) * 2;
  const int latents = kAttendKeys * (width + 8) * 2;
  const int logits = heads * (kAttendKeys + 8) * 4;
  const int weights = heads * (kAttendKeys + 8) * 2;
  const int rescale = heads * 4;
  const int pools = topk > 0 ? PoolTableBytes(topk) : 0;
  return queries + latents + logits + weights + rescale + pools + kAttendKeys * raw_bytes;
}

}  // namespace quartet::cuda

#endif  // QUARTET_KERNELS_CUDA_SPARSE_MLA_PARAMS_H_
