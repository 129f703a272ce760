#include "kernels/cpu/dsa.h"

#include <numeric>
#include <set>

#include "kernels/cpu/convert.h"
#include "tests/unit/kernels/golden_model.h"
#include "tests/unit/kernels/paged_kv.h"
#include "tests/unit/kernels/support.h"

namespace quartet::cpu {
namespace {

using testing::GoldenModel;
using testing::MaxDifference;
using testing::MaxMagnitude;
using testing::Must;
using testing::PagedKv;
using testing::Pieces;
using testing::RandomFloats;
using testing::Scratch;
using testing::TensorFile;

constexpr int kHeads = GoldenModel::kHeads, kNope = GoldenModel::kNope, kRank = GoldenModel::kRank;
constexpr int kQueryRank = GoldenModel::kQueryRank;
constexpr int kIndexHeads = GoldenModel::kIndexHeads, kIndexDim = GoldenModel::kIndexDim;
constexpr int kHidden = GoldenModel::kHidden, kTopk = GoldenModel::kTopkPools;

// A DSA layer with its state, run as the forward pass runs it.
class DsaLayer {
 public:
  DsaLayer(CpuBackend& backend, const ops::MlaWeights& mla, const ops::IndexerWeights& indexer,
           ops::KvDType dtype, int max_rows, int max_context)
      : kv(dtype, 16, kRank, GoldenModel::kPool, kIndexDim, max_context),
        ring(8 * 2 * kIndexDim, NAN),
        latent(max_rows * kQueryRank),
        q(max_rows * kHeads * kNope),
        index_q(max_rows * kIndexHeads * kIndexDim),
        index_w(max_rows * kIndexHeads),
        pools(max_rows * kTopk),
        counts(max_rows),
        margins(max_rows),
        project(Must(backend.PrepareDsaProject(mla, indexer))),
        q_b(Must(backend.PrepareLinear(mla.q_b))),
        wq_b(Must(backend.PrepareLinear(indexer.wq_b))),
        select(Must(backend.PrepareIndexerSelect(indexer))),
        attend(Must(backend.PrepareSparseMla(mla, indexer))),
        max_context(max_context) {}

  // Rows at `position` and after; returns the partial sum.
  std::vector<float> Run(const std::vector<float>& x, int position) {
    const int rows = static_cast<int>(x.size()) / kHidden;
    const auto segments = Pieces({rows}, 0, position, 0, kv.pages());
    const ops::DsaQueries queries{latent.data(), index_w.data()};
    project->Run(x.data(), segments, rows, kv.View(), {ring.data(), 0, 8}, queries,
                 Scratch(project->WorkspaceBytes(rows)));
    // What the two ops make of the latents for themselves.
    q_b->Run(latent.data(), rows, q.data(), Scratch(q_b->WorkspaceBytes(rows)));
    wq_b->Run(latent.data(), rows, index_q.data(), Scratch(wq_b->WorkspaceBytes(rows)));
    const ops::Selection selection{pools.data(), counts.data(), margins.data(), nullptr};
    select->Run(queries, segments, kv.View(), selection,
                Scratch(select->WorkspaceBytes(rows, max_context)));
    std::vector<float> y(rows * kHidden);
    attend->Run(queries, selection, segments, rows, kv.View(), y.data(),
                Scratch(attend->WorkspaceBytes(rows, max_context)));
    return y;
  }

  PagedKv kv;
  std::vector<float> ring, latent, q, index_q, index_w;
  std::vector<int32_t> pools, counts;
  std::vector<float> margins;
  std::unique_ptr<ops::DsaProject> project;
  std::unique_ptr<ops::Linear> q_b, wq_b;
  std::unique_ptr<ops::IndexerSelect> select;
  std::unique_ptr<ops::SparseMla> attend;
  int max_context;
};

class DsaGolden : public ::testing::Test {
 protected:
  GoldenModel model_;
  TensorFile text_{"model/golden_text.safetensors"};
  std::unique_ptr<CpuBackend> backend_ = MakeCpuBackend({});
};

TEST_F(DsaGolden, BothLayersFollowTheReference) {
  for (int layer : {3, 7}) {
    const std::string p = "a.L" + std::to_string(layer) + ".";
    DsaLayer dsa(*backend_, model_.Mla(layer), model_.Indexer(layer), ops::KvDType::kF32, 12, 64);
    const std::vector<float> y = dsa.Run(text_.Floats(p + "attn_in"), 0);
    const std::vector<float> golden = text_.Floats(p + "attn_out");
    // FP32 on both sides; the absorbed form reorders the sums of 64 x 128 products per head.
    EXPECT_LT(MaxDifference(y, golden), 2e-5 * std::max(1.0, MaxMagnitude(golden))) << layer;
    std::vector<float> latents;
    for (int t = 0; t < 12; ++t) {
      const std::vector<float> row = dsa.kv.Latent(t);
      latents.insert(latents.end(), row.begin(), row.end());
    }
    EXPECT_LT(MaxDifference(latents, text_.Floats(p + "latent")), 2e-5) << layer;
    const std::vector<double> topk = text_.Doubles(p + "topk");
    for (int t = 0; t < 12; ++t) {
      std::set<int> ours, theirs;
      for (int i = 0; i < dsa.counts[t]; ++i) {
        for (int j = 0; j < 4; ++j) ours.insert(dsa.pools[t * kTopk + i] * 4 + j);
      }
      for (int s = (t + 1) / 4 * 4; s <= t; ++s) ours.insert(s);
      for (int i = 0; i < 67; ++i) {
        if (topk[t * 67 + i] >= 0) theirs.insert(static_cast<int>(topk[t * 67 + i]));
      }
      EXPECT_EQ(ours, theirs) << "layer " << layer << " row " << t;
    }
  }
}

TEST_F(DsaGolden, PooledKeysAndScoresOfLayer3FollowTheReference) {
  DsaLayer dsa(*backend_, model_.Mla(3), model_.Indexer(3), ops::KvDType::kF32, 12, 64);
  dsa.Run(text_.Floats("a.L3.attn_in"), 0);
  std::vector<float> keys;
  for (int m = 0; m < 3; ++m) {
    const std::vector<float> key = dsa.kv.PoolKey(m);
    keys.insert(keys.end(), key.begin(), key.end());
  }
  EXPECT_LT(MaxDifference(keys, text_.Floats("a.ref.L3.dsa.pool_keys")), 2e-5);
  std::vector<float> scores(12 * 3), scratch(kIndexHeads);
  for (int t = 0; t < 12; ++t) {
    IndexScores(&dsa.index_q[t * kIndexHeads * kIndexDim], &dsa.index_w[t * kIndexHeads],
                kIndexHeads, kIndexDim, keys.data(), 3, scratch.data(), &scores[t * 3]);
  }
  EXPECT_LT(MaxDifference(scores, text_.Floats("a.ref.L3.dsa.scores")), 2e-5);
}

TEST_F(DsaGolden, CachesAfterThreeHundredTokensDoNotDependOnTheCuts) {
  // Decoding adds one row at a time; pools close across the cuts.
  const std::vector<float> x = RandomFloats(100 * kHidden, 1.0f, 3);
  DsaLayer whole(*backend_, model_.Mla(3), model_.Indexer(3), ops::KvDType::kF16, 100, 128);
  const std::vector<float> y = whole.Run(x, 0);
  DsaLayer cut(*backend_, model_.Mla(3), model_.Indexer(3), ops::KvDType::kF16, 100, 128);
  std::vector<float> pieces;
  int position = 0;
  for (int length : {1, 2, 3, 1, 1, 30, 9, 1, 52}) {
    const std::vector<float> rows(x.begin() + position * kHidden,
                                  x.begin() + (position + length) * kHidden);
    const std::vector<float> part = cut.Run(rows, position);
    pieces.insert(pieces.end(), part.begin(), part.end());
    position += length;
  }
  ASSERT_EQ(position, 100);
  EXPECT_TRUE(testing::SameBits(y, pieces));
  EXPECT_EQ(whole.kv.bytes(), cut.kv.bytes());
  EXPECT_TRUE(testing::SameBits(whole.ring, cut.ring));
}

// ---- selection

TEST(SelectPools, TakesTheBestAndOnTiesTheLowerIndex) {
  const std::vector<float> scores = {1, 3, 2, 3, -1, 2, 2};
  std::vector<int32_t> order(7), out(7);
  float margin;
  EXPECT_EQ(SelectPools(scores.data(), 7, 4, order.data(), out.data(), &margin), 4);
  EXPECT_EQ(std::vector<int32_t>(out.begin(), out.begin() + 4), (std::vector<int32_t>{1, 2, 3, 5}));
  EXPECT_EQ(margin, 0.0f);
  EXPECT_EQ(SelectPools(scores.data(), 7, 2, order.data(), out.data(), &margin), 2);
  EXPECT_EQ(margin, 1.0f);
  EXPECT_EQ(SelectPools(scores.data(), 7, 9, order.data(), out.data(), &margin), 7);
  EXPECT_TRUE(std::isinf(margin));
}

TEST(SelectPools, EqualsASortOnRandomScoresWithManyTies) {
  std::mt19937 bits(9);
  for (int round = 0; round < 200; ++round) {
    const int count = 1 + static_cast<int>(bits() % 300);
    const int keep = 1 + static_cast<int>(bits() % 64);
    std::vector<float> scores(count);
    for (float& s : scores) s = static_cast<float>(bits() % 40) - 20.0f;
    std::vector<int32_t> sorted(count);
    std::iota(sorted.begin(), sorted.end(), 0);
    std::stable_sort(sorted.begin(), sorted.end(),
                     [&](int32_t a, int32_t b) { return scores[a] > scores[b]; });
    const int taken = std::min(count, keep);
    std::vector<int32_t> expected(sorted.begin(), sorted.begin() + taken);
    const float gap = taken < count ? scores[sorted[taken - 1]] - scores[sorted[taken]]
                                    : std::numeric_limits<float>::infinity();
    std::sort(expected.begin(), expected.end());
    std::vector<int32_t> order(count), out(count);
    float margin;
    ASSERT_EQ(SelectPools(scores.data(), count, keep, order.data(), out.data(), &margin), taken);
    out.resize(taken);
    ASSERT_EQ(out, expected);
    ASSERT_EQ(margin, gap);
  }
}

TEST(SelectPools, NanComesLast) {
  const std::vector<float> scores = {NAN, -5, NAN, 2};
  std::vector<int32_t> order(4), out(4);
  float margin;
  EXPECT_EQ(SelectPools(scores.data(), 4, 2, order.data(), out.data(), &margin), 2);
  EXPECT_EQ(out[0], 1);
  EXPECT_EQ(out[1], 3);
}

// ---- sparse attention against its definition in double, every stored form

class SparseForms : public ::testing::TestWithParam<ops::KvDType> {};

TEST_P(SparseForms, SelectionAndAttentionFollowTheDefinition) {
  constexpr int kTokens = 200;  // 50 pools, 16 kept: the selection bites
  GoldenModel model;
  auto backend = MakeCpuBackend({});
  DsaLayer dsa(*backend, model.Mla(7), model.Indexer(7), GetParam(), kTokens, 256);
  const std::vector<float> y = dsa.Run(RandomFloats(kTokens * kHidden, 1.0f, 21), 0);
  const std::string p = GoldenModel::Layer(7) + "self_attn.";
  const std::vector<float> kv_b = model.file().Floats(p + "kv_b_proj.weight");
  const std::vector<float> o = model.file().Floats(p + "o_proj.weight");
  std::vector<std::vector<float>> latent, key;
  for (int t = 0; t < kTokens; ++t) latent.push_back(dsa.kv.Latent(t));
  for (int m = 0; m < kTokens / 4; ++m) key.push_back(dsa.kv.PoolKey(m));
  int bitten = 0;
  for (int t : {0, 2, 3, 63, 64, 67, 100, 150, 199}) {
    const int candidates = (t + 1) / 4;
    std::vector<double> score(candidates);
    for (int m = 0; m < candidates; ++m) {
      for (int h = 0; h < kIndexHeads; ++h) {
        double dot = 0;
        for (int c = 0; c < kIndexDim; ++c) {
          dot += double{dsa.index_q[(t * kIndexHeads + h) * kIndexDim + c]} * key[m][c];
        }
        score[m] += dsa.index_w[t * kIndexHeads + h] * std::max(0.0, dot / std::sqrt(128.0));
      }
    }
    std::vector<int> best(candidates);
    std::iota(best.begin(), best.end(), 0);
    std::stable_sort(best.begin(), best.end(), [&](int a, int b) { return score[a] > score[b]; });
    if (candidates > kTopk) {
      ++bitten;
      EXPECT_NEAR(dsa.margins[t], score[best[kTopk - 1]] - score[best[kTopk]], 1e-4) << t;
      best.resize(kTopk);
    } else {
      EXPECT_TRUE(std::isinf(dsa.margins[t])) << t;
    }
    std::sort(best.begin(), best.end());
    ASSERT_EQ(std::vector<int>(&dsa.pools[t * kTopk], &dsa.pools[t * kTopk] + dsa.counts[t]), best)
        << t;
    std::vector<int> positions;
    for (int m : best) {
      for (int j = 0; j < 4; ++j) positions.push_back(4 * m + j);
    }
    for (int s = candidates * 4; s <= t; ++s) positions.push_back(s);

    std::vector<double> heads(kHeads * kNope);
    for (int h = 0; h < kHeads; ++h) {
      const float* uk = kv_b.data() + static_cast<size_t>(h) * 2 * kNope * kRank;
      const float* uv = uk + kNope * kRank;
      std::vector<double> logit, value;
      for (int s : positions) {
        double dot = 0;
        for (int i = 0; i < kNope; ++i) {
          double k = 0;
          for (int c = 0; c < kRank; ++c) k += double{uk[i * kRank + c]} * latent[s][c];
          dot += dsa.q[(t * kHeads + h) * kNope + i] * k;
        }
        logit.push_back(dot / 8);
      }
      const double top = *std::max_element(logit.begin(), logit.end());
      double sum = 0;
      for (double& l : logit) sum += l = std::exp(l - top);
      for (int i = 0; i < kNope; ++i) {
        for (size_t s = 0; s < positions.size(); ++s) {
          double v = 0;
          for (int c = 0; c < kRank; ++c) v += double{uv[i * kRank + c]} * latent[positions[s]][c];
          heads[h * kNope + i] += logit[s] / sum * v;
        }
      }
    }
    double worst = 0;
    for (int c = 0; c < kHidden; ++c) {
      double sum = 0;
      for (int i = 0; i < kHeads * kNope; ++i) sum += heads[i] * o[c * kHeads * kNope + i];
      worst = std::max(worst, std::abs(sum - y[t * kHidden + c]));
    }
    EXPECT_LT(worst, 2e-5) << "row " << t;
  }
  EXPECT_GE(bitten, 4);
}

INSTANTIATE_TEST_SUITE_P(Stored, SparseForms,
                         ::testing::Values(ops::KvDType::kF32, ops::KvDType::kF16,
                                           ops::KvDType::kF8E4M3));

TEST(SparseMla, AListThatALaterStepReusesKeepsItsTail) {
  // Row at position 10 with the list and the tail of position 6: it sees 0..6 and nothing newer.
  GoldenModel model;
  auto backend = MakeCpuBackend({});
  const std::vector<float> x = RandomFloats(11 * kHidden, 1.0f, 31);
  DsaLayer dsa(*backend, model.Mla(3), model.Indexer(3), ops::KvDType::kF32, 11, 64);
  dsa.Run(x, 0);
  const ops::DsaQueries at10_queries{&dsa.latent[10 * kQueryRank], nullptr};
  std::vector<int32_t> pools(kTopk), counts = {1};  // pool 0, then the tail 4..6
  const int32_t tail = 6;
  std::vector<float> reused(kHidden), plain(kHidden);
  const auto at10 = Pieces({1}, 0, 10, 0, dsa.kv.pages());
  const auto at6 = Pieces({1}, 0, 6, 0, dsa.kv.pages());
  dsa.attend->Run(at10_queries, {pools.data(), counts.data(), nullptr, &tail}, at10, 1,
                  dsa.kv.View(), reused.data(), Scratch(dsa.attend->WorkspaceBytes(1, 64)));
  dsa.attend->Run(at10_queries, {pools.data(), counts.data(), nullptr, nullptr}, at6, 1,
                  dsa.kv.View(), plain.data(), Scratch(dsa.attend->WorkspaceBytes(1, 64)));
  EXPECT_TRUE(testing::SameBits(reused, plain));
}

TEST(DsaProject, ValuesTooLargeForTheStoredFormAreCounted) {
  GoldenModel model;
  ops::MlaWeights mla = model.Mla(3);
  const std::vector<float> huge(kRank, 1e4f);
  mla.kv_a_norm = {testing::VectorF32(huge), 1e-5f};
  auto backend = MakeCpuBackend({});
  DsaLayer dsa(*backend, mla, model.Indexer(3), ops::KvDType::kF8E4M3, 2, 64);
  EXPECT_EQ(backend->saturation_counts().e4m3, 0u);
  dsa.Run(RandomFloats(2 * kHidden, 1.0f, 5), 0);
  EXPECT_GT(backend->saturation_counts().e4m3, 100u);
  for (float value : dsa.kv.Latent(1)) EXPECT_LE(std::abs(value), 448.0f);
}

}  // namespace
}  // namespace quartet::cpu
