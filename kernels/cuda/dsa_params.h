#ifndef QUARTET_KERNELS_CUDA_DSA_PARAMS_H_
#define QUARTET_KERNELS_CUDA_DSA_PARAMS_H_

#include <cstdint>

#include "kernels/cuda/step_params.h"

namespace quartet::cuda {

struct SaturationCounters;

// The element types inside the pages.
enum class Stored : int32_t { kF32, kF16, kE4m3 };

constexpr int32_t StoredBytes(Stored form) {
  return form == Stored::kF32 ? 4 : form == Stored::kF16 ? 2 : 1;
}

// One layer's paged array of rows, latents or pooled keys: row i of a sequence lies in page
// pages[i / page_rows] of its table.
struct PagedRows {
  unsigned char* data;  // this array's part of page 0
  int64_t page_stride;  // bytes
  int32_t page_rows;
  int32_t width;  // elements of a row
  Stored form;
};

// What follows the projections from x: norms, and the appends to the caches.
struct DsaAppendParams {
  StepView step;
  const float* u;  // [rows, q_rank | rank | dim | dim]: q_a, latent, index key, gate logits
  int64_t u_stride;
  float* q_latent;         // [rows, q_rank]: q_a after its norm
  const float* q_weight;   // [q_rank]
  const float* kv_weight;  // [rank]
  const float* k_weight;   // [dim]
  const float* k_bias;     // [dim]
  const float* ape;        // [kpool, dim]
  float* index_w;          // [rows, index_heads]
  PagedRows latents;
  PagedRows pool_keys;
  float* ring;  // [slots][ring_rows, 2, dim]
  int64_t slot_stride;
  int32_t ring_rows;
  int32_t q_rank;
  int32_t kpool;
  int32_t index_heads;
  float q_eps;
  float kv_eps;
  float head_scale;
  SaturationCounters* saturation;
};

}  // namespace quartet::cuda

#endif  // QUARTET_KERNELS_CUDA_DSA_PARAMS_H_
