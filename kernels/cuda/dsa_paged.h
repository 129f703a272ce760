#ifndef QUARTET_KERNELS_CUDA_DSA_PAGED_H_
#define QUARTET_KERNELS_CUDA_DSA_PAGED_H_

#include "kernels/cuda/dsa_params.h"
#include "kernels/ops/batch.h"

namespace quartet::cuda {

// The two paged arrays of a layer as kernels see them.
inline PagedRows Latents(const ops::KvLayer& kv, int rank) {
  const Stored form = kv.dtype == ops::KvDType::kF32   ? Stored::kF32
                      : kv.dtype == ops::KvDType::kF16 ? Stored::kF16
                                                       : Stored::kE4m3;
  return {reinterpret_cast<unsigned char*>(kv.data) + kv.latent_offset, kv.page_stride,
          kv.page_tokens, rank, form};
}
inline PagedRows PoolKeys(const ops::KvLayer& kv, int kpool, int dim) {
  const Stored form = kv.dtype == ops::KvDType::kF32 ? Stored::kF32 : Stored::kF16;
  return {reinterpret_cast<unsigned char*>(kv.data) + kv.pool_key_offset, kv.page_stride,
          kv.page_tokens / kpool, dim, form};
}

}  // namespace quartet::cuda

#endif  // QUARTET_KERNELS_CUDA_DSA_PAGED_H_
