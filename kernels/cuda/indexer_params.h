#ifndef QUARTET_KERNELS_CUDA_INDEXER_PARAMS_H_
#define QUARTET_KERNELS_CUDA_INDEXER_PARAMS_H_

#include <cstdint>

#include "kernels/cuda/dsa_params.h"

namespace quartet::cuda {

// Scores of the rows row_begin .. row_begin + rows - 1 into scores [rows, stride]. Only rows with
// more than `topk` candidates are scored: of the others everything is selected.
struct IndexScoreParams {
  StepView step;
  const float* q;         // [.., heads, dim], of row 0 of the step
  const float* w;         // [.., heads]
  const uint16_t* q_f16;  // [rows, heads, dim], of row row_begin; where a kernel wants it
  PagedRows keys;
  float* scores;
  int64_t stride;
  int32_t row_begin;
  int32_t rows;
  int32_t heads;
  int32_t kpool;
  int32_t topk;
  int32_t group_rows;  // rows a block scores
  float scale;         // dim^-1/2
  SaturationCounters* saturation;
};

struct IndexRoundParams {
  const float* q;
  uint16_t* q_f16;
  int64_t count;  // of float4
  SaturationCounters* saturation;
};

struct IndexSelectParams {
  StepView step;
  const float* scores;  // [rows, stride]
  int64_t stride;
  int32_t row_begin;
  int32_t kpool;
  int32_t topk;
  int32_t* pools;  // [.., topk], of row 0 of the step
  int32_t* counts;
  float* margins;  // or null
};

}  // namespace quartet::cuda

#endif  // QUARTET_KERNELS_CUDA_INDEXER_PARAMS_H_
