#ifndef QUARTET_TESTS_UNIT_KERNELS_PAGED_KV_H_
#define QUARTET_TESTS_UNIT_KERNELS_PAGED_KV_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/cpu/convert.h"
#include "kernels/cpu/kv.h"
#include "kernels/ops/batch.h"

namespace quartet::testing {

// Pages of one layer for one sequence, handed out in a scrambled order with bytes in between that
// belong to nobody.
class PagedKv {
 public:
  PagedKv(ops::KvDType dtype, int page_tokens, int rank, int kpool, int index_dim, int max_context)
      : rank_(rank), kpool_(kpool), index_dim_(index_dim) {
    const int count = (max_context + page_tokens - 1) / page_tokens;
    for (int i = 0; i < count; ++i) pages_.push_back(2 * (count - 1 - i) + i % 2);
    view_.dtype = dtype;
    view_.page_tokens = page_tokens;
    view_.latent_offset = 64;
    const int64_t latent_bytes = cpu::StoredBytes(cpu::LatentType(dtype)) * page_tokens * rank;
    view_.pool_key_offset = 64 + latent_bytes + 64;
    view_.page_stride =
        view_.pool_key_offset +
        cpu::StoredBytes(cpu::PoolKeyType(dtype)) * (page_tokens / kpool) * index_dim + 64;
    bytes_.assign(static_cast<size_t>(view_.page_stride) * count * 2, std::byte{0xFF});
    view_.data = bytes_.data();
  }
  PagedKv(const PagedKv&) = delete;

  const ops::KvLayer& View() const { return view_; }
  const std::vector<int32_t>& pages() const { return pages_; }
  const std::vector<std::byte>& bytes() const { return bytes_; }

  std::vector<float> Latent(int position) const {
    std::vector<float> row(rank_);
    cpu::LoadRow(cpu::LatentType(view_.dtype), cpu::LatentRow(view_, pages_, position, rank_),
                 row.size(), cpu::E4m3Table(), row.data());
    return row;
  }
  std::vector<float> PoolKey(int pool) const {
    std::vector<float> row(index_dim_);
    cpu::LoadRow(cpu::PoolKeyType(view_.dtype),
                 cpu::PoolKeyRow(view_, pages_, pool, kpool_, index_dim_), row.size(),
                 cpu::E4m3Table(), row.data());
    return row;
  }

 private:
  int rank_, kpool_, index_dim_;
  std::vector<int32_t> pages_;
  std::vector<std::byte> bytes_;
  ops::KvLayer view_;
};

}  // namespace quartet::testing

#endif  // QUARTET_TESTS_UNIT_KERNELS_PAGED_KV_H_
