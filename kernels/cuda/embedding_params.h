#ifndef QUARTET_KERNELS_CUDA_EMBEDDING_PARAMS_H_
#define QUARTET_KERNELS_CUDA_EMBEDDING_PARAMS_H_

#include <cstdint>

namespace quartet::cuda {

// embedding_T (T = f32, f16, bf16): grid (ceil(width / 256), rows).
struct EmbeddingParams {
  const void* table;   // [table_rows, width] as stored
  const int32_t* ids;  // [rows]
  float* x;            // [rows, width]
  int64_t table_rows;
  int64_t vocab_begin;
  int32_t width;
};

}  // namespace quartet::cuda

#endif  // QUARTET_KERNELS_CUDA_EMBEDDING_PARAMS_H_
