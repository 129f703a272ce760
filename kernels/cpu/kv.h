#ifndef QUARTET_KERNELS_CPU_KV_H_
#define QUARTET_KERNELS_CPU_KV_H_

#include <cassert>
#include <cstddef>
#include <cstdint>

#include "kernels/cpu/context.h"
#include "kernels/ops/batch.h"

namespace quartet::cpu {

// The element types inside the pages.
enum class Stored : uint8_t { kF32, kF16, kE4m3 };

inline Stored LatentType(ops::KvDType dtype) {
  switch (dtype) {
    case ops::KvDType::kF32:
      return Stored::kF32;
    case ops::KvDType::kF16:
      return Stored::kF16;
    case ops::KvDType::kF8E4M3:
      return Stored::kE4m3;
  }
  return Stored::kF32;
}
inline Stored PoolKeyType(ops::KvDType dtype) {
  return dtype == ops::KvDType::kF32 ? Stored::kF32 : Stored::kF16;
}
inline int64_t StoredBytes(Stored type) {
  return type == Stored::kF32 ? 4 : type == Stored::kF16 ? 2 : 1;
}

// Row `index` of a sequence's paged array whose pages hold `page_rows` rows of `width` elements.
inline std::byte* PagedRow(const ops::KvLayer& kv, int64_t offset, std::span<const int32_t> pages,
                           int64_t page_rows, int64_t index, int64_t width, Stored type) {
  const size_t page = static_cast<size_t>(index / page_rows);
  assert(page < pages.size());
  return kv.data + pages[page] * kv.page_stride + offset +
         index % page_rows * width * StoredBytes(type);
}

inline std::byte* LatentRow(const ops::KvLayer& kv, std::span<const int32_t> pages,
                            int64_t position, int64_t width) {
  return PagedRow(kv, kv.latent_offset, pages, kv.page_tokens, position, width,
                  LatentType(kv.dtype));
}
inline std::byte* PoolKeyRow(const ops::KvLayer& kv, std::span<const int32_t> pages, int64_t pool,
                             int64_t kpool, int64_t width) {
  return PagedRow(kv, kv.pool_key_offset, pages, kv.page_tokens / kpool, pool, width,
                  PoolKeyType(kv.dtype));
}

// Rounds a row into its stored form; counts what saturates.
void StoreRow(Stored type, const float* from, size_t width, std::byte* to,
              SaturationCounters* saturation);
// Widens a stored row.
void LoadRow(Stored type, const std::byte* from, size_t width, const std::array<float, 256>& e4m3,
             float* to);

}  // namespace quartet::cpu

#endif  // QUARTET_KERNELS_CPU_KV_H_
