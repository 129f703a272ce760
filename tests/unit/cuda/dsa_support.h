#ifndef QUARTET_TESTS_UNIT_CUDA_DSA_SUPPORT_H_
#define QUARTET_TESTS_UNIT_CUDA_DSA_SUPPORT_H_

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "kernels/cpu/convert.h"
#include "kernels/cpu/kv.h"
#include "tests/unit/cuda/support.h"

namespace quartet::testing {

struct DsaShape {
  int heads, nope, v, rank;
  int hidden, q_rank;
  int index_heads, index_dim, kpool, topk;
  int page_tokens;
};

// The shape of the miniature model, of the demo model, one that is a multiple of nothing much, and
// the real one (with fewer outputs, which the other tests of projections cover).
constexpr DsaShape kMini = {.heads = 4,
                            .nope = 64,
                            .v = 64,
                            .rank = 128,
                            .hidden = 128,
                            .q_rank = 96,
                            .index_heads = 16,
                            .index_dim = 128,
                            .kpool = 4,
                            .topk = 16,
                            .page_tokens = 16};
constexpr DsaShape kDemo = {.heads = 8,
                            .nope = 32,
                            .v = 32,
                            .rank = 128,
                            .hidden = 128,
                            .q_rank = 64,
                            .index_heads = 4,
                            .index_dim = 128,
                            .kpool = 4,
                            .topk = 64,
                            .page_tokens = 256};
constexpr DsaShape kOdd = {.heads = 3,
                           .nope = 24,
                           .v = 40,
                           .rank = 64,
                           .hidden = 72,
                           .q_rank = 40,
                           .index_heads = 5,
                           .index_dim = 32,
                           .kpool = 4,
                           .topk = 9,
                           .page_tokens = 32};
constexpr DsaShape kReal = {.heads = 64,
                            .nope = 256,
                            .v = 256,
                            .rank = 512,
                            .hidden = 256,
                            .q_rank = 1536,
                            .index_heads = 32,
                            .index_dim = 128,
                            .kpool = 4,
                            .topk = 512,
                            .page_tokens = 256};

inline std::string NameOf(ops::KvDType dtype) {
  return dtype == ops::KvDType::kF32 ? "F32" : dtype == ops::KvDType::kF16 ? "F16" : "E4M3";
}

// Random weights of a layer.
class DsaWeights {
 public:
  explicit DsaWeights(const DsaShape& s, uint32_t seed = 1) {
    mla_.heads = s.heads;
    mla_.nope_dim = s.nope;
    mla_.v_dim = s.v;
    mla_.q_a = Matrix(s.q_rank, s.hidden, seed + 1);
    mla_.kv_a = Matrix(s.rank, s.hidden, seed + 2);
    mla_.q_b = Matrix(s.heads * s.nope, s.q_rank, seed + 3);
    mla_.kv_b = Matrix(s.heads * (s.nope + s.v), s.rank, seed + 4);
    mla_.o = Matrix(s.hidden, s.heads * s.v, seed + 5);
    mla_.q_a_norm = {Vector(s.q_rank, 1.0f, seed + 6), 1e-5f};
    mla_.kv_a_norm = {Vector(s.rank, 1.0f, seed + 7), 1e-5f};
    indexer_.heads = s.index_heads;
    indexer_.dim = s.index_dim;
    indexer_.kpool = s.kpool;
    indexer_.topk_pools = s.topk;
    indexer_.wq_b = Matrix(s.index_heads * s.index_dim, s.q_rank, seed + 8);
    indexer_.wk = Matrix(s.index_dim, s.hidden, seed + 9);
    indexer_.gate = Matrix(s.index_dim, s.hidden, seed + 10);
    indexer_.head_weights = Matrix(s.index_heads, s.hidden, seed + 11);
    indexer_.k_norm_weight = Vector(s.index_dim, 1.0f, seed + 12);
    indexer_.k_norm_bias = Vector(s.index_dim, 0.0f, seed + 13);
    indexer_.ape = Vector(s.kpool * s.index_dim, 0.0f, seed + 14);
  }
  DsaWeights(const DsaWeights&) = delete;

  const ops::MlaWeights& mla() const { return mla_; }
  const ops::IndexerWeights& indexer() const { return indexer_; }

 private:
  // Values that FP16 holds, so that only activations are rounded.
  ops::DenseMatrix Matrix(int rows, int cols, uint32_t seed) {
    auto& data = storage_.emplace_back(std::make_unique<std::vector<float>>(
        RandomFloats(rows * cols, 1.0f / std::sqrt(cols), seed)));
    for (float& v : *data) {
      bool saturated = false;
      v = cpu::F16ToF32(cpu::F32ToF16(v, &saturated));
    }
    return DenseF32(*data, rows, cols);
  }
  ops::VectorView Vector(int size, float mean, uint32_t seed) {
    auto& data =
        storage_.emplace_back(std::make_unique<std::vector<float>>(RandomFloats(size, 0.3f, seed)));
    for (float& v : *data) v += mean;
    return VectorF32(*data);
  }

  std::vector<std::unique_ptr<std::vector<float>>> storage_;
  ops::MlaWeights mla_;
  ops::IndexerWeights indexer_;
};

// The pages of several sequences in one pool, in a scrambled order and with bytes between the parts
// that belong to nobody; twice, on the host and on the device, equal at first.
class TwinPages {
 public:
  TwinPages(cuda::Device& device, const DsaShape& shape, ops::KvDType dtype, int sequences,
            int max_context)
      : device_(device), shape_(shape) {
    const int each = (max_context + shape.page_tokens - 1) / shape.page_tokens;
    const int count = sequences * each;
    std::vector<int32_t> order(count);
    for (int i = 0; i < count; ++i) order[i] = i;
    std::mt19937 bits = Random(17);
    std::shuffle(order.begin(), order.end(), bits);
    for (int s = 0; s < sequences; ++s) {
      pages_.emplace_back(order.begin() + s * each, order.begin() + (s + 1) * each);
    }
    host_.dtype = dtype;
    host_.page_tokens = shape.page_tokens;
    host_.latent_offset = 64;
    host_.pool_key_offset = 64 + Align(latent_row_bytes() * shape.page_tokens) + 64;
    host_.page_stride =
        host_.pool_key_offset + Align(key_row_bytes() * (shape.page_tokens / shape.kpool)) + 64;
    bytes_.assign(static_cast<size_t>(host_.page_stride) * count, std::byte{0xFF});
    host_.data = bytes_.data();
    memory_ = Must(device.Allocate(bytes_.size(), "pages"));
    Send();
  }

  const std::vector<int32_t>& pages(int sequence) const { return pages_[sequence]; }
  const ops::KvLayer& host() const { return host_; }
  ops::KvLayer device() const {
    ops::KvLayer layer = host_;
    layer.data = memory_.as<std::byte>();
    return layer;
  }

  // Random latents and pooled keys (or small integers) at every position of a sequence, on both
  // sides.
  void FillRandom(int sequence, int tokens, uint32_t seed, bool integers = false) {
    std::mt19937 bits = Random(seed);
    std::normal_distribution<float> normal(0.0f, 1.0f);
    const auto draw = [&] {
      return integers ? static_cast<float>(static_cast<int>(bits() % 5) - 2) : normal(bits);
    };
    cpu::SaturationCounters counters;
    std::vector<float> row(std::max(shape_.rank, shape_.index_dim));
    for (int t = 0; t < tokens; ++t) {
      for (float& v : row) v = draw();
      cpu::StoreRow(cpu::LatentType(host_.dtype), row.data(), shape_.rank,
                    cpu::LatentRow(host_, pages_[sequence], t, shape_.rank), &counters);
      if ((t + 1) % shape_.kpool != 0) continue;
      for (float& v : row) v = draw();
      cpu::StoreRow(cpu::PoolKeyType(host_.dtype), row.data(), shape_.index_dim,
                    cpu::PoolKeyRow(host_, pages_[sequence], t / shape_.kpool, shape_.kpool,
                                    shape_.index_dim),
                    &counters);
    }
    Send();
  }

  std::vector<float> PoolKey(int sequence, int pool) const {
    return Widened(cpu::PoolKeyType(host_.dtype),
                   cpu::PoolKeyRow(host_, pages_[sequence], pool, shape_.kpool, shape_.index_dim),
                   shape_.index_dim);
  }

  // What the device holds now, as a layer on the host.
  class Snapshot {
   public:
    Snapshot(const TwinPages& twin) : twin_(twin), bytes_(twin.bytes_.size()), layer_(twin.host_) {
      MustOk(twin.device_.CopyOut(bytes_.data(), twin.memory_.data(), bytes_.size()));
      layer_.data = bytes_.data();
    }
    const ops::KvLayer& layer() const { return layer_; }
    const std::vector<std::byte>& bytes() const { return bytes_; }

   private:
    const TwinPages& twin_;
    std::vector<std::byte> bytes_;
    ops::KvLayer layer_;
  };

  // All latents, then all pooled keys of the first `tokens` positions.
  std::vector<float> Latents(const ops::KvLayer& layer, int sequence, int tokens) const {
    std::vector<float> all;
    for (int t = 0; t < tokens; ++t) {
      const auto row =
          Widened(cpu::LatentType(layer.dtype),
                  cpu::LatentRow(layer, pages_[sequence], t, shape_.rank), shape_.rank);
      all.insert(all.end(), row.begin(), row.end());
    }
    return all;
  }
  std::vector<float> PoolKeys(const ops::KvLayer& layer, int sequence, int tokens) const {
    std::vector<float> all;
    for (int m = 0; m < tokens / shape_.kpool; ++m) {
      const auto row =
          Widened(cpu::PoolKeyType(layer.dtype),
                  cpu::PoolKeyRow(layer, pages_[sequence], m, shape_.kpool, shape_.index_dim),
                  shape_.index_dim);
      all.insert(all.end(), row.begin(), row.end());
    }
    return all;
  }
  // How many bytes that belong to no latent and no complete pool of the first `tokens[s]` positions
  // of sequence s were written. For pages that were never filled.
  size_t StrayBytes(const Snapshot& now, const std::vector<int>& tokens) const {
    std::vector<bool> owned(bytes_.size());
    const auto own = [&](const std::byte* from, int64_t bytes) {
      std::fill_n(owned.begin() + (from - bytes_.data()), bytes, true);
    };
    for (size_t s = 0; s < tokens.size(); ++s) {
      for (int t = 0; t < tokens[s]; ++t) {
        own(cpu::LatentRow(host_, pages_[s], t, shape_.rank), latent_row_bytes());
      }
      for (int m = 0; m < tokens[s] / shape_.kpool; ++m) {
        own(cpu::PoolKeyRow(host_, pages_[s], m, shape_.kpool, shape_.index_dim), key_row_bytes());
      }
    }
    size_t stray = 0;
    for (size_t i = 0; i < owned.size(); ++i) {
      stray += !owned[i] && now.bytes()[i] != std::byte{0xFF};
    }
    return stray;
  }

 private:
  static int64_t Align(int64_t bytes) { return (bytes + 63) / 64 * 64; }
  int64_t latent_row_bytes() const {
    return cpu::StoredBytes(cpu::LatentType(host_.dtype)) * shape_.rank;
  }
  int64_t key_row_bytes() const {
    return cpu::StoredBytes(cpu::PoolKeyType(host_.dtype)) * shape_.index_dim;
  }
  static std::vector<float> Widened(cpu::Stored type, const std::byte* from, int width) {
    std::vector<float> row(width);
    cpu::LoadRow(type, from, row.size(), cpu::E4m3Table(), row.data());
    return row;
  }
  void Send() { MustOk(device_.CopyIn(memory_.data(), bytes_.data(), bytes_.size())); }

  cuda::Device& device_;
  const DsaShape shape_;
  std::vector<std::vector<int32_t>> pages_;
  ops::KvLayer host_;
  std::vector<std::byte> bytes_;
  cuda::Buffer memory_;
};

}  // namespace quartet::testing

#endif  // QUARTET_TESTS_UNIT_CUDA_DSA_SUPPORT_H_
