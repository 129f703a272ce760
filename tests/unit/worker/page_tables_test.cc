#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/kv.h"
#include "shard_worker/memory/pools.h"
#include "tests/unit/worker/model_rank.h"

// O13, through the pools and the model: whatever pages a sequence has, in whatever order, its
// layers find what is theirs.

namespace quartet {
namespace {

constexpr char kMini[] = QUARTET_SOURCE_DIR "/tests/data/model";

// So many pages of a pool, in no order.
std::vector<int32_t> FragmentedTable(int pages, int pool, uint32_t seed) {
  std::vector<int32_t> all(pool);
  std::iota(all.begin(), all.end(), 0);
  std::mt19937 bits(seed);
  for (size_t i = all.size(); i > 1; --i) std::swap(all[i - 1], all[bits() % i]);
  all.resize(pages);
  return all;
}

// What is written into a row in the place of its values.
struct Mark {
  int32_t layer = 0;
  int32_t index = 0;  // of the token or the pool
  friend bool operator==(const Mark&, const Mark&) = default;
};

TEST(PageTables, O13_EveryRowOfEveryLayerHasAPlaceOfItsOwn) {
  constexpr int kContext = 131072, kPages = kContext / kTokensPerPage;
  const ModelConfig config = ReadModelConfig(kMini).value();
  const int kpool = static_cast<int>(config.index_kpool);
  const auto backend = cpu::MakeCpuBackend({});
  const auto pools =
      Pools::Create(config, 1, {.slots = 1, .pages = kPages + 100, .kv_dtype = KvDtype::kFp8E4m3},
                    *backend)
          .value();
  std::vector<int> layers;
  for (int layer = 0; layer < config.layers; ++layer) {
    if (config.attention[layer] == AttentionKind::kDsa) layers.push_back(layer);
  }
  layers.push_back(static_cast<int>(config.layers));  // the draft layer's
  ASSERT_EQ(layers.size(), 3u);

  for (const uint32_t seed : {1, 2, 3}) {
    const std::vector<int32_t> table = FragmentedTable(kPages, kPages + 100, seed);
    // Latents as token -1 - t, so that they are no pool's.
    const auto for_each_row = [&](auto visit) {
      for (const int layer : layers) {
        const ops::KvLayer kv = pools->kv(layer);
        for (int t = 0; t < kContext; ++t) {
          visit(cpu::LatentRow(kv, table, t, config.kv_lora_rank), Mark{layer, -1 - t});
        }
        for (int m = 0; m < kContext / kpool; ++m) {
          visit(cpu::PoolKeyRow(kv, table, m, kpool, config.index_head_dim), Mark{layer, m});
        }
      }
    };
    for_each_row([](std::byte* row, const Mark& mark) { std::memcpy(row, &mark, sizeof(mark)); });
    int wrong = 0;
    for_each_row([&](const std::byte* row, const Mark& mark) {
      Mark read;
      std::memcpy(&read, row, sizeof(read));
      wrong += read != mark;
    });
    EXPECT_EQ(wrong, 0) << "seed " << seed;
  }
}

// Logits of a prompt's last token, and of one token behind it.
std::vector<float> LogitsOver(const std::vector<int32_t>& table, int pool) {
  constexpr int kPrompt = 1500, kChunk = 300;
  ModelRankOptions options;
  options.dir = kMini;
  options.pools.pages = pool;
  ModelRank rank(options, MakeSingleRank());
  std::mt19937 bits(5);
  std::vector<float> out;
  for (int at = 0; at <= kPrompt;) {
    const int rows = at == kPrompt ? 1 : kChunk;
    std::vector<int32_t> ids(rows);
    for (int32_t& id : ids) id = static_cast<int32_t>(bits() % 500);
    const ops::Segment segments[] = {MakeSegment(0, rows, 0, at, table)};
    EXPECT_TRUE(rank.model->Trunk(ids, segments).ok());
    at += rows;
    if (at < kPrompt) continue;
    const int last[] = {rows - 1};
    EXPECT_TRUE(rank.model
                    ->Logits(rank.model->activations().h, last,
                             [&](int, std::span<const float> logits) {
                               out.insert(out.end(), logits.begin(), logits.end());
                             })
                    .ok());
  }
  return out;
}

TEST(PageTables, O13_TheModelSaysTheSameOverAnyPages) {
  std::vector<int32_t> in_order(6);
  std::iota(in_order.begin(), in_order.end(), 0);
  const std::vector<float> plain = LogitsOver(in_order, 6);
  ASSERT_FALSE(plain.empty());
  EXPECT_EQ(LogitsOver(FragmentedTable(6, 40, 1), 40), plain);
  EXPECT_EQ(LogitsOver(FragmentedTable(6, 40, 2), 40), plain);
}

}  // namespace
}  // namespace quartet
