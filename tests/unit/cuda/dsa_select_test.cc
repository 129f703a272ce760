// IndexerSelect against the CPU and against its definition.

#include <numeric>
#include <set>

#include "kernels/cpu/dsa.h"
#include "tests/unit/cuda/dsa_support.h"

namespace quartet::testing {
namespace {

class IndexerOnCuda : public CudaOps {
 protected:
  struct Result {
    std::vector<std::vector<int32_t>> pools;  // per row, the valid ones
    std::vector<float> margins;
  };

  // All that this op wants of the weights.
  ops::IndexerWeights WeightsOf(const DsaShape& s) const {
    ops::IndexerWeights sizes;
    sizes.heads = s.index_heads;
    sizes.dim = s.index_dim;
    sizes.kpool = s.kpool;
    sizes.topk_pools = s.topk;
    sizes.wq_b = DenseF32(wq_b_, s.index_heads * s.index_dim, rank_);
    return sizes;
  }

  // Normal queries.
  void Draw(const DsaShape& s, int rows, uint32_t seed) {
    rank_ = s.q_rank;
    latents_ = RandomFloats(rows * rank_, 1.0f, seed);
    w_ = RandomFloats(rows * s.index_heads, 0.2f, seed + 1);
    wq_b_ = RandomFloats(s.index_heads * s.index_dim * rank_, 1.0f / std::sqrt(rank_), seed + 2);
    for (float& v : wq_b_) v = cpu::F16ToF32(cpu::F32ToF16(v, &saturated_));
    MakeQueries(s, rows);
  }
  // Queries that are small integers in the first channels of a head and zero in the others.
  void DrawIntegers(const DsaShape& s, int rows, uint32_t seed) {
    rank_ = kIntegerChannels * s.index_heads;
    latents_ = RandomFloats(rows * rank_, 1.5f, seed);
    w_ = RandomFloats(rows * s.index_heads, 1.5f, seed + 1);
    for (float& v : latents_) v = std::round(v);
    for (float& v : w_) v = std::round(v);
    wq_b_.assign(s.index_heads * s.index_dim * rank_, 0.0f);
    for (int i = 0; i < rank_; ++i) {
      const int head = i / kIntegerChannels;
      wq_b_[(head * s.index_dim + i % kIntegerChannels) * rank_ + i] = 1.0f;
    }
    MakeQueries(s, rows);
  }

  Result RunCuda(const DsaShape& s, const std::vector<ops::Segment>& segments, const TwinPages& kv,
                 int max_context, bool want_margins = true) {
    const int rows = static_cast<int>(w_.size()) / s.index_heads;
    const auto op = Must(cuda_->PrepareIndexerSelect(WeightsOf(s)));
    const auto dlatents = Upload(latents_), dw = Upload(w_);
    const auto pools = Poisoned<int32_t>(rows * s.topk);
    const auto counts = Poisoned<int32_t>(rows);
    const auto margins = Poisoned<float>(rows);
    Must(cuda_->BeginStep({}, segments));
    op->Run({dlatents.as<float>(), dw.as<float>()}, segments, kv.device(),
            {pools.as<int32_t>(), counts.as<int32_t>(),
             want_margins ? margins.as<float>() : nullptr, nullptr},
            Workspace(op->WorkspaceBytes(rows, max_context)));
    return Collect(s, Download<int32_t>(pools, rows * s.topk), Download<int32_t>(counts, rows),
                   Download<float>(margins, rows));
  }

  Result RunCpu(const DsaShape& s, const std::vector<ops::Segment>& segments, const TwinPages& kv,
                int max_context) {
    const int rows = static_cast<int>(w_.size()) / s.index_heads;
    const auto op = Must(cpu_->PrepareIndexerSelect(WeightsOf(s)));
    std::vector<int32_t> pools(rows * s.topk), counts(rows);
    std::vector<float> margins(rows);
    op->Run({latents_.data(), w_.data()}, segments, kv.host(),
            {pools.data(), counts.data(), margins.data(), nullptr},
            Scratch(op->WorkspaceBytes(rows, max_context)));
    return Collect(s, pools, counts, margins);
  }

  std::vector<float> ScoresOf(const DsaShape& s, const TwinPages& kv, int sequence, int row,
                              int count) {
    std::vector<float> keys, scores(count), scratch(s.index_heads);
    for (int m = 0; m < count; ++m) {
      const auto key = kv.PoolKey(sequence, m);
      keys.insert(keys.end(), key.begin(), key.end());
    }
    cpu::IndexScores(&q_[row * s.index_heads * s.index_dim], &w_[row * s.index_heads],
                     s.index_heads, s.index_dim, keys.data(), count, scratch.data(), scores.data());
    return scores;
  }

  // The same set, but for pools whose score is about that of the last selected one. Margins close.
  void ExpectSelectionsAgree(const DsaShape& s, const std::vector<ops::Segment>& segments,
                             const TwinPages& kv, const Result& cuda, const Result& cpu) {
    int exact = 0;
    for (size_t i = 0; i < segments.size(); ++i) {
      for (int t = 0; t < segments[i].rows; ++t) {
        const int row = segments[i].row_begin + t;
        const int candidates = (segments[i].position + t + 1) / s.kpool;
        const auto& ours = cuda.pools[row];
        ASSERT_EQ(ours.size(), cpu.pools[row].size()) << row;
        ASSERT_TRUE(std::is_sorted(ours.begin(), ours.end())) << row;
        if (candidates <= s.topk) {
          EXPECT_EQ(ours, cpu.pools[row]) << row;
          EXPECT_TRUE(std::isinf(cuda.margins[row])) << row;
          continue;
        }
        const auto scores = ScoresOf(s, kv, static_cast<int>(i), row, candidates);
        float cut = INFINITY;
        for (int32_t m : cpu.pools[row]) cut = std::min(cut, scores[m]);
        // FP16 queries move a score by this at most, on either side of the cut.
        const float slack = 2e-3f * static_cast<float>(MaxMagnitude(scores));
        const std::set<int32_t> theirs(cpu.pools[row].begin(), cpu.pools[row].end());
        const std::set<int32_t> mine(ours.begin(), ours.end());
        ASSERT_EQ(mine.size(), ours.size()) << row;
        for (int32_t m = 0; m < candidates; ++m) {
          if (mine.count(m) != theirs.count(m)) {
            ASSERT_NEAR(scores[m], cut, slack) << "row " << row << ", pool " << m;
          }
        }
        exact += mine == theirs;
        EXPECT_NEAR(cuda.margins[row], cpu.margins[row], slack) << row;
      }
    }
    EXPECT_GE(exact, exact_at_least_);
  }

  static constexpr int kIntegerChannels = 3;

  std::vector<float> q_, w_;  // what the scores are made of
  int exact_at_least_ = 0;    // rows whose sets must agree without any allowance

 private:
  // q_ = latents_ wq_b_^T.
  void MakeQueries(const DsaShape& s, int rows) {
    const int width = s.index_heads * s.index_dim;
    q_.assign(rows * width, 0.0f);
    for (int r = 0; r < rows; ++r) {
      for (int o = 0; o < width; ++o) {
        q_[r * width + o] = std::inner_product(&latents_[r * rank_], &latents_[r * rank_] + rank_,
                                               &wq_b_[o * rank_], 0.0f);
      }
    }
  }

  static Result Collect(const DsaShape& s, const std::vector<int32_t>& pools,
                        const std::vector<int32_t>& counts, const std::vector<float>& margins) {
    Result result;
    for (size_t row = 0; row < counts.size(); ++row) {
      if (counts[row] < 0 || counts[row] > s.topk) throw std::runtime_error("count out of range");
      const auto begin = pools.begin() + static_cast<int64_t>(row) * s.topk;
      result.pools.emplace_back(begin, begin + counts[row]);
    }
    result.margins = margins;
    return result;
  }

  int rank_ = 0;
  std::vector<float> latents_, wq_b_;
  bool saturated_ = false;
};

class IndexerForms : public IndexerOnCuda, public ::testing::WithParamInterface<ops::KvDType> {
 protected:
  void Compare(const DsaShape& s, const std::vector<std::pair<int, int>>& places /*position, rows*/,
               uint32_t seed) {
    int rows = 0;
    int context = 0;
    for (const auto& [position, count] : places) {
      rows += count;
      context = std::max(context, position + count);
    }
    TwinPages kv(*device_, s, GetParam(), static_cast<int>(places.size()), context);
    std::vector<ops::Segment> segments;
    int row = 0;
    for (size_t i = 0; i < places.size(); ++i) {
      kv.FillRandom(static_cast<int>(i), places[i].first + places[i].second, seed + 10 * i);
      segments.push_back({row, places[i].second, static_cast<int>(i), places[i].first,
                          kv.pages(static_cast<int>(i))});
      row += places[i].second;
    }
    Draw(s, rows, seed);
    SCOPED_TRACE(NameOf(GetParam()) + ", " + std::to_string(rows) + " rows");
    ExpectSelectionsAgree(s, segments, kv, RunCuda(s, segments, kv, context),
                          RunCpu(s, segments, kv, context));
  }
};

TEST_P(IndexerForms, SelectsWhatTheCpuSelects) {
  exact_at_least_ = 1;
  Compare(kMini, {{250, 1}}, 1);                     // one row
  Compare(kMini, {{200, 4}, {90, 3}, {333, 1}}, 2);  // windows of three sequences
  Compare(kMini, {{120, 9}, {61, 11}, {0, 5}}, 3);   // more rows than a window, and dense ones
  Compare(kOdd, {{140, 3}, {35, 6}}, 4);             // no tile of the tensor cores fits
  Compare(kMini, {{20'000, 2}}, 11);                 // more pools than a block lists
}

TEST_P(IndexerForms, TakesEverythingUpToTheLimit) {
  // 16 pools are kept: the rows before position 67 have at most 16 candidates.
  Compare(kMini, {{0, 12}}, 5);
  exact_at_least_ = 1;
  Compare(kMini, {{60, 12}}, 6);
}

TEST_P(IndexerForms, SelectsWhatTheCpuSelectsInTheRealShape) {
  if (TestDeviceIsEmulated()) GTEST_SKIP() << "takes a GPU";
  Compare(kReal, {{2040, 20}}, 7);   // the dense limit
  Compare(kReal, {{39'999, 1}}, 8);  // 10,000 pools
  Compare(kReal, {{39'990, 4}, {9'000, 3}, {20'000, 1}}, 9);
  Compare(kReal, {{12'000, 60}, {5'000, 9}}, 10);
}

INSTANTIATE_TEST_SUITE_P(Stored, IndexerForms,
                         ::testing::Values(ops::KvDType::kF32, ops::KvDType::kF16,
                                           ops::KvDType::kF8E4M3),
                         [](const auto& info) { return NameOf(info.param); });

// Integers: every sum is exact, so the selection is that of the definition, ties included.
TEST_F(IndexerOnCuda, BreaksTiesByTheLowerIndex) {
  for (const DsaShape& s : {kMini, kOdd, kReal}) {
    if (s.topk == kReal.topk && TestDeviceIsEmulated()) continue;
    int ties = 0;
    for (const int rows : {1, 6, 20}) {
      // More pools than a block lists, and fewer.
      const int tokens = rows == 1 || s.topk == kReal.topk ? 20'003 : 403;
      TwinPages kv(*device_, s, ops::KvDType::kF16, 1, tokens);
      kv.FillRandom(0, tokens, 40, true);
      // Few different scores, so that many pools tie at the cut.
      DrawIntegers(s, rows, 50 + rows);
      const int position = tokens - rows;
      const std::vector<ops::Segment> segments = {{0, rows, 0, position, kv.pages(0)}};
      const Result result = RunCuda(s, segments, kv, tokens);
      for (int row = 0; row < rows; ++row) {
        const int candidates = (position + row + 1) / s.kpool;
        std::vector<int64_t> score(candidates);
        for (int m = 0; m < candidates; ++m) {
          const auto key = kv.PoolKey(0, m);
          for (int h = 0; h < s.index_heads; ++h) {
            int64_t dot = 0;
            for (int c = 0; c < kIntegerChannels; ++c) {
              dot += std::lround(q_[(row * s.index_heads + h) * s.index_dim + c]) *
                     std::lround(key[c]);
            }
            score[m] += std::lround(w_[row * s.index_heads + h]) * std::max<int64_t>(dot, 0);
          }
        }
        std::vector<int32_t> best(candidates);
        std::iota(best.begin(), best.end(), 0);
        std::stable_sort(best.begin(), best.end(),
                         [&](int32_t a, int32_t b) { return score[a] > score[b]; });
        const int64_t gap = score[best[s.topk - 1]] - score[best[s.topk]];
        ties += gap == 0;
        best.resize(s.topk);
        std::sort(best.begin(), best.end());
        EXPECT_EQ(result.pools[row], best) << rows << " rows, row " << row;
        EXPECT_NEAR(result.margins[row], gap / std::sqrt(static_cast<double>(s.index_dim)),
                    1e-3 * std::abs(static_cast<double>(score[best[0]])) + 1e-5)
            << row;
      }
    }
    EXPECT_GT(ties, 0);
  }
}

// Also where more scores are equal than a block lists, and where a row has more than a block holds.
TEST_F(IndexerOnCuda, NanScoresComeLastAndEqualScoresAreTakenInOrder) {
  DsaShape s = kMini;
  for (const int tokens : {400, 20'003, 150'003}) {
    s.page_tokens = tokens > 100'000 ? 64 : kMini.page_tokens;  // a step has so many pages at most
    TwinPages kv(*device_, s, ops::KvDType::kF16, 1, tokens);
    kv.FillRandom(0, tokens, 60);
    const std::vector<ops::Segment> segments = {{0, 3, 0, tokens - 3, kv.pages(0)}};
    Draw(s, 3, 61);
    std::fill(w_.begin(), w_.begin() + s.index_heads, 0.0f);  // row 0: all scores zero
    w_[s.index_heads] = NAN;                                  // row 1: all NaN
    const Result result = RunCuda(s, segments, kv, tokens);
    const Result expected = RunCpu(s, segments, kv, tokens);
    EXPECT_EQ(result.pools[0], expected.pools[0]) << tokens;
    EXPECT_EQ(result.margins[0], 0.0f) << tokens;
    EXPECT_EQ(result.pools[1], expected.pools[1]) << tokens;
    EXPECT_NE(expected.pools[2], expected.pools[0]) << tokens;
    EXPECT_EQ(RunCuda(s, segments, kv, tokens, false).pools, result.pools) << tokens;
  }
}

}  // namespace
}  // namespace quartet::testing
