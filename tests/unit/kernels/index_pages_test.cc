#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <random>
#include <set>

#include "kernels/cpu/convert.h"
#include "kernels/cpu/dsa.h"
#include "kernels/cpu/kv.h"
#include "tests/unit/kernels/support.h"

// O13: the indexer has an entry for every kpool tokens, in pages that are counted in tokens. Over
// page tables in any order, every entry has a place of its own, and the last one can be selected.
//
// The layer below is as small as it can be and transparent: a token's key and latent are the
// number of its pool, as signs, and a query asks for one number. So what the ops write, select and
// read says where they went.

namespace quartet::cpu {
namespace {

using testing::DenseF32;
using testing::Must;
using testing::Pieces;
using testing::Scratch;
using testing::VectorF32;

constexpr int kContext = 131072;
constexpr int kPageTokens = 256;
constexpr int kPool = 4;
constexpr int kPools = kContext / kPool;
constexpr int kPagePools = kPageTokens / kPool;
constexpr int kPages = kContext / kPageTokens + 1;  // the last one for the query
constexpr int kBits = 15;                           // of a pool's number: 2^15 = kPools
constexpr int kWidth = 32;  // of keys and latents: every bit and its opposite, and two zeros
constexpr int kHidden = 2 * kWidth;  // what a token is, then what it asks for
constexpr int kRing = 8;
static_assert(1 << kBits == kPools);

// One bit a pair of opposite signs, so that means are zero and norms change nothing else.
void WriteCode(int number, float* out) {
  for (int bit = 0; bit < kBits; ++bit) {
    out[2 * bit] = (number >> bit & 1) != 0 ? 1.0f : -1.0f;
    out[2 * bit + 1] = -out[2 * bit];
  }
}
// -1 if it is none.
int ReadCode(const float* values) {
  int number = 0;
  for (int bit = 0; bit < kBits; ++bit) {
    const float sign = values[2 * bit];
    if (!(std::abs(sign) > 0.01f) || std::signbit(sign) == std::signbit(values[2 * bit + 1])) {
      return -1;
    }
    if (sign > 0) number |= 1 << bit;
  }
  return number;
}

// [kWidth, kHidden]: takes one half of the input.
std::vector<float> Half(int begin) {
  std::vector<float> matrix(kWidth * kHidden);
  for (int i = 0; i < kWidth; ++i) matrix[i * kHidden + begin + i] = 1;
  return matrix;
}
std::vector<float> Identity() {
  std::vector<float> matrix(kWidth * kWidth);
  for (int i = 0; i < kWidth; ++i) matrix[i * kWidth + i] = 1;
  return matrix;
}

// Weights of the transparent layer: one head, one indexer head, one pool selected.
struct Layer {
  Layer() {
    // The query's last input is the constant that makes its indexer weight positive.
    head_weights[kHidden - 1] = 1;
    // Keys for scores do not matter, values are the latents themselves; then the hidden width.
    for (int i = 0; i < kWidth; ++i) {
      kv_b[(kWidth + i) * kWidth + i] = 1;
      o[i * kWidth + i] = 1;
    }
    mla = {.q_a = DenseF32(query_half, kWidth, kHidden),
           .q_a_norm = {VectorF32(ones), 1e-6f},
           .q_b = DenseF32(zeros, kWidth, kWidth),
           .kv_a = DenseF32(token_half, kWidth, kHidden),
           .kv_a_norm = {VectorF32(ones), 1e-6f},
           .kv_b = DenseF32(kv_b, 2 * kWidth, kWidth),
           .o = DenseF32(o, kHidden, kWidth),
           .heads = 1,
           .nope_dim = kWidth,
           .v_dim = kWidth};
    indexer = {.wq_b = DenseF32(identity, kWidth, kWidth),
               .wk = DenseF32(token_half, kWidth, kHidden),
               .k_norm_weight = VectorF32(ones),
               .k_norm_bias = VectorF32(no_bias),
               .gate = DenseF32(no_gate, kWidth, kHidden),
               .ape = VectorF32(no_ape),
               .head_weights = DenseF32(head_weights, 1, kHidden),
               .heads = 1,
               .dim = kWidth,
               .kpool = kPool,
               .topk_pools = 1};
  }

  const std::vector<float> token_half = Half(0), query_half = Half(kWidth), identity = Identity();
  const std::vector<float> ones = std::vector<float>(kWidth, 1.0f);
  const std::vector<float> no_bias = std::vector<float>(kWidth),
                           zeros = std::vector<float>(kWidth * kWidth);
  const std::vector<float> no_gate = std::vector<float>(kWidth * kHidden),
                           no_ape = std::vector<float>(kPool * kWidth);
  std::vector<float> head_weights = std::vector<float>(kHidden);
  std::vector<float> kv_b = std::vector<float>(2 * kWidth * kWidth);
  std::vector<float> o = std::vector<float>(kHidden * kWidth);
  ops::MlaWeights mla;
  ops::IndexerWeights indexer;
};

// A pool of pages of which other sequences have had some, and a table over it in no order.
class FragmentedPool {
 public:
  FragmentedPool(ops::KvDType dtype, uint32_t seed) {
    std::vector<int32_t> all(kPages + kPages / 2);
    std::iota(all.begin(), all.end(), 0);
    std::mt19937 bits(seed);
    for (size_t i = all.size(); i > 1; --i) std::swap(all[i - 1], all[bits() % i]);
    table.assign(all.begin(), all.begin() + kPages);
    view.dtype = dtype;
    view.page_tokens = kPageTokens;
    view.latent_offset = 192;
    view.pool_key_offset =
        view.latent_offset + StoredBytes(LatentType(dtype)) * kPageTokens * kWidth;
    view.page_stride =
        view.pool_key_offset + StoredBytes(PoolKeyType(dtype)) * kPagePools * kWidth + 64;
    bytes.assign(static_cast<size_t>(view.page_stride) * all.size(), std::byte{0xFF});
    view.data = bytes.data();
  }

  std::vector<int32_t> table;
  std::vector<std::byte> bytes;
  ops::KvLayer view;
};

class IndexPages : public ::testing::TestWithParam<std::tuple<ops::KvDType, uint32_t>> {
 protected:
  IndexPages() { Prefill(); }

  // Every token of the context says the number of its pool.
  void Prefill() {
    constexpr int kChunk = 4096;
    for (int at = 0; at < kContext; at += kChunk) {
      std::vector<float> x(kChunk * kHidden);
      for (int t = 0; t < kChunk; ++t) WriteCode((at + t) / kPool, &x[t * kHidden]);
      Project(x, at);
    }
  }
  void Project(const std::vector<float>& x, int position) {
    const int rows = static_cast<int>(x.size()) / kHidden;
    latent_.resize(rows * kWidth);
    index_w_.resize(rows);
    project_->Run(x.data(), Pieces({rows}, 0, position, 0, pool_.table), rows, pool_.view,
                  {ring_.data(), 0, kRing}, {latent_.data(), index_w_.data()},
                  Scratch(project_->WorkspaceBytes(rows)));
  }

  struct Found {
    int selected = -1;  // by the indexer
    int read = -1;      // by attention
  };
  // A token at `position` that is nothing itself and asks for a pool.
  Found Ask(int position, int wanted) {
    std::vector<float> x(kHidden);
    WriteCode(wanted, &x[kWidth]);
    x[kHidden - 1] = 1;
    Project(x, position);
    int32_t selected = -1, count = 0;
    const ops::DsaQueries queries{latent_.data(), index_w_.data()};
    const ops::Selection selection{&selected, &count, nullptr, nullptr};
    const auto segments = Pieces({1}, 0, position, 0, pool_.table);
    select_->Run(queries, segments, pool_.view, selection,
                 Scratch(select_->WorkspaceBytes(1, kContext + kPageTokens)));
    std::vector<float> y(kHidden);
    attend_->Run(queries, selection, segments, 1, pool_.view, y.data(),
                 Scratch(attend_->WorkspaceBytes(1, kContext + kPageTokens)));
    return {count == 1 ? selected : -1, ReadCode(y.data())};
  }

  const Layer layer_;
  std::unique_ptr<CpuBackend> backend_ = MakeCpuBackend({});
  FragmentedPool pool_{std::get<0>(GetParam()), std::get<1>(GetParam())};
  std::unique_ptr<ops::DsaProject> project_ =
      Must(backend_->PrepareDsaProject(layer_.mla, layer_.indexer));
  std::unique_ptr<ops::IndexerSelect> select_ =
      Must(backend_->PrepareIndexerSelect(layer_.indexer));
  std::unique_ptr<ops::SparseMla> attend_ =
      Must(backend_->PrepareSparseMla(layer_.mla, layer_.indexer));
  std::vector<float> ring_ = std::vector<float>(kRing * 2 * kWidth);
  std::vector<float> latent_, index_w_;
  const std::array<float, 256> e4m3_ = E4m3Table();
};

TEST_P(IndexPages, O13_EveryEntryHasAPlaceOfItsOwn) {
  std::set<const std::byte*> places;
  std::vector<float> row(kWidth);
  for (int m = 0; m < kPools; ++m) {
    const std::byte* place = PoolKeyRow(pool_.view, pool_.table, m, kPool, kWidth);
    ASSERT_TRUE(places.insert(place).second) << "entry " << m;
    LoadRow(PoolKeyType(pool_.view.dtype), place, kWidth, e4m3_, row.data());
    ASSERT_EQ(ReadCode(row.data()), m);
  }
  for (int t = 0; t < kContext; ++t) {
    LoadRow(LatentType(pool_.view.dtype), LatentRow(pool_.view, pool_.table, t, kWidth), kWidth,
            e4m3_, row.data());
    ASSERT_EQ(ReadCode(row.data()), t / kPool) << "token " << t;
  }
  // And nothing else was written: of the pages that the table does not name, not a byte.
  const std::set<int32_t> own(pool_.table.begin(), pool_.table.end());
  for (int page = 0; page < kPages + kPages / 2; ++page) {
    if (own.contains(page)) continue;
    const auto begin = pool_.bytes.begin() + page * pool_.view.page_stride;
    ASSERT_TRUE(std::all_of(begin, begin + pool_.view.page_stride,
                            [](std::byte b) { return b == std::byte{0xFF}; }))
        << "page " << page;
  }
}

TEST_P(IndexPages, O13_EveryPoolCanBeSelectedUpToTheLastCompleteOne) {
  std::vector<int> wanted = {0,
                             1,
                             kPagePools - 1,
                             kPagePools,
                             52476 / kPool,
                             52480 / kPool,
                             kPools - kPagePools,
                             kPools - 2,
                             kPools - 1};
  std::mt19937 bits(7);
  for (int i = 0; i < 40; ++i) wanted.push_back(static_cast<int>(bits() % kPools));
  for (const int m : wanted) {
    const Found found = Ask(kContext, m);
    EXPECT_EQ(found.selected, m);
    EXPECT_EQ(found.read, m) << "its latents";
  }
}

TEST_P(IndexPages, O13_APoolIsVisibleWhenItsLastTokenIs) {
  // Positions that complete nothing, so that asking writes no entry.
  for (const int position : {5, 1022, 40001, 80002, 120000}) {
    const int last = (position + 1) / kPool - 1;
    EXPECT_EQ(Ask(position, last).selected, last) << position;
    EXPECT_NE(Ask(position, last + 1).selected, last + 1) << position;
    EXPECT_LE(Ask(position, kPools - 1).selected, last) << position;
  }
}

INSTANTIATE_TEST_SUITE_P(Tables, IndexPages,
                         ::testing::Values(std::tuple(ops::KvDType::kF32, 1u),
                                           std::tuple(ops::KvDType::kF16, 2u),
                                           std::tuple(ops::KvDType::kF8E4M3, 3u),
                                           std::tuple(ops::KvDType::kF8E4M3, 4u)));

}  // namespace
}  // namespace quartet::cpu
