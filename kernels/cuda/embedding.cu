#include "kernels/cuda/device/convert.cuh"
#include "kernels/cuda/embedding_params.h"

namespace quartet::cuda {
namespace {

template <class T, class Widen>
QUARTET_DEVICE void Embed(const EmbeddingParams& p, Widen widen) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= p.width) return;
  const int64_t row = p.ids[blockIdx.y] - p.vocab_begin;
  const bool mine = row >= 0 && row < p.table_rows;
  p.x[static_cast<int64_t>(blockIdx.y) * p.width + i] =
      mine ? widen(static_cast<const T*>(p.table)[row * p.width + i]) : 0.0f;
}

}  // namespace

QUARTET_KERNEL(embedding_f32, 256, 4, EmbeddingParams) {
  Embed<float>(p, [](float v) { return v; });
}
QUARTET_KERNEL(embedding_f16, 256, 4, EmbeddingParams) {
  Embed<uint16_t>(p, [](uint16_t v) { return HalfToFloat(v); });
}
QUARTET_KERNEL(embedding_bf16, 256, 4, EmbeddingParams) {
  Embed<uint16_t>(p, [](uint16_t v) { return __uint_as_float(static_cast<uint32_t>(v) << 16); });
}

}  // namespace quartet::cuda
