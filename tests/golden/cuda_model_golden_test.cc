// The miniature model on a GPU, as one rank and as several, against numbers made by transformers in
// FP32. 16-bit weights and operands let a near tie of experts or pools fall the other way, and
// whatever comes after it in the sequence then differs; so a sequence is compared up to its first
// near tie.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/golden/draft_chain.h"
#include "tests/golden/mini_model.h"
#include "tests/golden/recording_trace.h"
#include "tests/unit/worker/golden_file.h"

namespace quartet {
namespace {

// Of FP16 operands through nine layers, in parts of a row's largest value. Choices that fall the
// other way cost up to half of it.
constexpr double kTolerance16 = 6e-3;
// Of twelve tokens: one of them comes near a choice that goes the right way (4.3e-3), and is off by
// more than the others.
constexpr double kTwelveTolerance = 0.01;
// Median over the compared rows, most of which come after a choice that fell the other way
// somewhere.
constexpr double kMedianTolerance = 0.015;
// A choice whose gap in the reference is below this may fall either way.
constexpr double kSafeGap = 4e-3;

const GoldenFile& Text() {
  static const GoldenFile* file = new GoldenFile(DataDir() + "/golden_text.safetensors");
  return *file;
}

// In parts of the largest value that is wanted; a NaN is infinitely far.
double RowDifference(std::span<const float> got, std::span<const float> want) {
  const auto smaller = [](float a, float b) { return std::fabs(a) < std::fabs(b); };
  return MaxDiff(got, want) / std::fabs(*std::max_element(want.begin(), want.end(), smaller));
}

// The largest of all rows.
double LargestDifference(std::span<const float> got, std::span<const float> want, size_t width) {
  EXPECT_EQ(got.size(), want.size());
  double worst = 0;
  for (size_t i = 0; i + width <= std::min(got.size(), want.size()); i += width) {
    worst = std::max(worst, RowDifference(got.subspan(i, width), want.subspan(i, width)));
  }
  return worst;
}

// Rows before the first one whose experts or pools were chosen by less than kSafeGap.
int SafeRows(const ModelRank& rank, const std::string& prompt, int rows) {
  int safe = rows;
  const size_t experts = rank.config.experts;
  for (const int layer : kMoeLayers) {
    const std::vector<float> logits =
        Text().F32(absl::StrCat(prompt, ".L", layer, ".router_logits"));
    const std::vector<float> bias = CorrectionBias(*rank.checkpoint, layer);
    for (int r = 0; r < safe; ++r) {
      const double gap =
          RouterGap({logits.data() + r * experts, experts}, bias, rank.config.experts_per_token);
      if (gap < kSafeGap) safe = r;
    }
  }
  if (rows <= rank.config.index_topk) return safe;  // every pool is taken
  for (const int layer : kDsaLayers) {
    const std::vector<float> gaps = Text().F32(absl::StrCat(prompt, ".L", layer, ".topk_margin"));
    for (int r = 0; r < safe; ++r) {
      if (gaps[r] < kSafeGap) safe = r;
    }
  }
  return safe;
}

// The first indexer sees inputs that are as good as the weights: it may choose differently only
// where the reference's own choice was near. The number of rows where it does, of the last hundred.
int CheckFirstSelections(RecordingTrace& trace, int rows) {
  const int layer = kDsaLayers[0];
  const std::string name = absl::StrCat("b.L", layer, ".topk");
  const std::vector<int32_t> want = Text().I32(name);
  const std::vector<float> gaps = Text().F32(name + "_margin");
  const int first = rows - static_cast<int>(want.size()) / kTopkWidth;  // that the reference has
  int different = 0;
  for (int r = first; r < rows; ++r) {
    const std::set<int32_t> got = Positions(trace.selected(layer)[r].pools, r, kKpool);
    if (got == Positions({want.data() + (r - first) * kTopkWidth, kTopkWidth})) continue;
    ++different;
    EXPECT_LT(gaps[r], kSafeGap) << "row " << r;
  }
  return different;
}

struct Setting {
  int tp = 1;
  KvDtype kv_dtype = KvDtype::kFp32;
};

class CudaModelGoldenTest : public testing::TestWithParam<Setting> {
 protected:
  void Run(const std::function<void(ModelRank&)>& body) {
    ModelRankOptions options = MiniModel();
    options.pools.kv_dtype = GetParam().kv_dtype;
    RunRanks(options, GetParam().tp, body);
  }
};

// No pool is left out, and no choice of experts is near: every row is compared.
TEST_P(CudaModelGoldenTest, TwelveTokens) {
  Run([](ModelRank& rank) {
    Model& model = *rank.model;
    const std::vector<int32_t> ids = Text().I32("a.input_ids");
    const int rows = static_cast<int>(ids.size());
    const std::vector<int32_t> pages = {5};
    ASSERT_EQ(SafeRows(rank, "a", rows), rows);
    ASSERT_TRUE(model.Trunk(ids, {{MakeSegment(0, rows, 0, 0, pages)}}).ok());
    const double hidden = LargestDifference(rank.Fetch(model.activations().h, rows * kHidden),
                                            Text().F32("a.final_hidden"), kHidden);
    const double logits = LargestDifference(AllLogits(model, model.activations().h, rows),
                                            Text().F32("a.logits"), kVocab);
    EXPECT_LE(hidden, kTwelveTolerance);
    EXPECT_LE(logits, kTwelveTolerance);
    if (rank.collectives->rank() != 0) return;
    std::printf("  largest difference of hidden rows %.2e, of logits %.2e\n", hidden, logits);
  });
}

// The draft layer on the reference's own hidden rows, then drafts chained on each other.
TEST_P(CudaModelGoldenTest, DraftsOfTwelveTokens) {
  Run([](ModelRank& rank) {
    const GoldenFile mtp(DataDir() + "/golden_mtp.safetensors");
    const std::vector<int32_t> ids = mtp.I32("e.p12.input_ids");
    const std::vector<float> hidden = mtp.F32("e.p12.trunk_hidden_postnorm");
    std::vector<int32_t> next(ids.begin() + 1, ids.end());
    next.push_back(mtp.I32("e.p12.trunk_next")[0]);
    double worst = 0;
    for (const bool share : {false, true}) {
      const DraftChain chain =
          DraftThree(rank, next, hidden, share, PageRange(2 * share, 2), share);
      const std::string name = absl::StrCat("e.p12.", share ? "share" : "recompute", ".draft_");
      EXPECT_EQ(chain.tokens, mtp.I32(name + "tokens"));
      worst = std::max(
          {worst, LargestDifference(chain.logits, mtp.F32(name + "logits"), kVocab),
           LargestDifference(chain.hidden, mtp.F32(name + "hidden"), kHidden),
           LargestDifference(chain.prefill_hidden, mtp.F32("e.p12.prefill_hidden"), kHidden)});
    }
    EXPECT_LE(worst, kTolerance16);
    if (rank.collectives->rank() == 0) std::printf("  largest difference %.2e\n", worst);
  });
}

// The whole prompt in one step, then its last fifty tokens one by one.
TEST_P(CudaModelGoldenTest, ThreeHundredTokens) {
  if (TestBackendIsEmulated() && GetParam().tp > 1) GTEST_SKIP() << "too much for the emulator";
  Run([](ModelRank& rank) {
    constexpr int kPrompt = 250;
    Model& model = *rank.model;
    const std::vector<int32_t> ids = Text().I32("b.input_ids");
    const std::vector<float> want = Text().F32("b.logits");
    const std::vector<int32_t> compared = Text().I32("b.logits_rows");
    const int rows = static_cast<int>(ids.size());
    const std::vector<int32_t> pages = {9, 2};
    RecordingTrace trace;
    model.set_trace(&trace);
    ASSERT_TRUE(model.Trunk(ids, {{MakeSegment(0, rows, 0, 0, pages)}}).ok());
    model.set_trace(nullptr);
    const int different = CheckFirstSelections(trace, rows);
    const std::vector<float> whole = AllLogits(model, model.activations().h, rows);
    ASSERT_EQ(whole.size(), static_cast<size_t>(rows) * kVocab);
    ASSERT_EQ(want.size(), compared.size() * kVocab);

    const std::vector<int32_t> other = {3, 11};
    ASSERT_TRUE(model.Trunk({ids.data(), kPrompt}, {{MakeSegment(0, kPrompt, 1, 0, other)}}).ok());
    std::vector<float> cut = AllLogits(model, model.activations().h, kPrompt);
    for (int p = kPrompt; p < rows; ++p) {
      ASSERT_TRUE(model.Trunk({&ids[p], 1}, {{MakeSegment(0, 1, 1, p, other)}}).ok());
      const std::vector<float> row = AllLogits(model, model.activations().h, 1);
      cut.insert(cut.end(), row.begin(), row.end());
    }
    ASSERT_EQ(cut.size(), whole.size());

    const int safe = SafeRows(rank, "b", rows);
    std::vector<double> differences;
    double worst_safe = 0;
    int safe_compared = 0;
    for (size_t i = 0; i < compared.size(); ++i) {
      const int r = compared[i];
      const std::span<const float> reference(want.data() + i * kVocab, kVocab);
      const double one = RowDifference({whole.data() + r * kVocab, kVocab}, reference);
      const double two = RowDifference({cut.data() + r * kVocab, kVocab}, reference);
      differences.push_back(std::max(one, two));
      if (r < safe) {
        ++safe_compared;
        worst_safe = std::max(worst_safe, differences.back());
        EXPECT_LE(differences.back(), kTolerance16) << "row " << r;
      }
      EXPECT_TRUE(std::isfinite(differences.back())) << "row " << r;
    }
    std::sort(differences.begin(), differences.end());
    const double median = differences[differences.size() / 2];
    EXPECT_GT(safe_compared, 5);
    EXPECT_LE(median, kMedianTolerance);
    if (rank.collectives->rank() != 0) return;
    std::printf(
        "  the first indexer: %d of 100 selections differ\n"
        "  %d of %d rows before the first near tie, largest difference %.2e\n"
        "  over all compared rows: median %.2e, largest %.2e\n",
        different, safe, rows, worst_safe, median, differences.back());
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, CudaModelGoldenTest,
                         testing::Values(Setting{1, KvDtype::kFp32}, Setting{1, KvDtype::kFp16},
                                         Setting{2, KvDtype::kFp16}, Setting{4, KvDtype::kFp16}),
                         [](const auto& info) {
                           return absl::StrCat("Tp", info.param.tp, "_",
                                               std::string(ToString(info.param.kv_dtype)));
                         });

}  // namespace
}  // namespace quartet
