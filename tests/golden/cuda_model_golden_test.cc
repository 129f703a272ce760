// The miniature model on a GPU against numbers made by transformers in FP32. 16-bit weights and
// operands let a near tie of experts or pools fall the other way, and whatever comes after it in
// the sequence then differs; so a sequence is compared up to its first near tie.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/golden/mini_model.h"
#include "tests/golden/recording_trace.h"
#include "tests/unit/worker/golden_file.h"

namespace quartet {
namespace {

// Of FP16 operands through nine layers; logits of the miniature model are of size 1 to 4.
constexpr double kLogitTolerance = 3e-2;
// Median over the compared rows, most of which come after a choice that fell the other way
// somewhere.
constexpr double kMedianTolerance = 0.1;
// A choice whose gap in the reference is below this may fall either way.
constexpr double kSafeGap = 4e-3;

const GoldenFile& Text() {
  static const GoldenFile* file = new GoldenFile(DataDir() + "/golden_text.safetensors");
  return *file;
}

double LargestDifference(std::span<const float> got, std::span<const float> want) {
  EXPECT_EQ(got.size(), want.size());
  double worst = 0;
  for (size_t i = 0; i < std::min(got.size(), want.size()); ++i) {
    const double d = std::fabs(static_cast<double>(got[i]) - want[i]);
    if (!(d <= worst)) worst = d;
  }
  return worst;
}

// Rows before the first one whose experts or pools were chosen by less than kSafeGap.
int SafeRows(const ModelRank& rank, const GoldenFile& golden, const std::string& prompt, int rows) {
  int safe = rows;
  const size_t experts = rank.config.experts;
  for (const int layer : kMoeLayers) {
    const std::vector<float> logits =
        golden.F32(absl::StrCat(prompt, ".L", layer, ".router_logits"));
    const std::vector<float> bias = CorrectionBias(*rank.checkpoint, layer);
    for (int r = 0; r < safe; ++r) {
      const double gap =
          RouterGap({logits.data() + r * experts, experts}, bias, rank.config.experts_per_token);
      if (gap < kSafeGap) safe = r;
    }
  }
  for (const int layer : kDsaLayers) {
    const std::vector<float> gaps = golden.F32(absl::StrCat(prompt, ".L", layer, ".topk_margin"));
    for (int r = 0; r < safe; ++r) {
      if (gaps[r] < kSafeGap) safe = r;
    }
  }
  return safe;
}

// The first indexer sees inputs that are as good as the weights: it may choose differently only
// where the reference's own choice was near.
void CheckFirstSelections(RecordingTrace& trace, int rows) {
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
  std::printf("  layer %d: %d of %d selections differ\n", layer, different, rows - first);
}

class CudaModelGoldenTest : public testing::TestWithParam<KvDtype> {
 protected:
  static ModelRankOptions Options() {
    ModelRankOptions options = MiniModel();
    options.pools.kv_dtype = GetParam();
    return options;
  }
};

// The whole prompt in one step, then its last fifty tokens one by one.
TEST_P(CudaModelGoldenTest, ThreeHundredTokens) {
  constexpr int kPrompt = 250;
  ModelRank rank(Options(), MakeSingleRank());
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
  CheckFirstSelections(trace, rows);
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

  const int safe = SafeRows(rank, Text(), "b", rows);
  std::vector<double> differences;
  int safe_compared = 0;
  for (size_t i = 0; i < compared.size(); ++i) {
    const int r = compared[i];
    const std::span<const float> reference(want.data() + i * kVocab, kVocab);
    const double one = LargestDifference({whole.data() + r * kVocab, kVocab}, reference);
    const double two = LargestDifference({cut.data() + r * kVocab, kVocab}, reference);
    differences.push_back(std::max(one, two));
    if (r < safe) {
      ++safe_compared;
      EXPECT_LE(differences.back(), kLogitTolerance) << "row " << r;
    }
    EXPECT_FALSE(std::isnan(differences.back())) << "row " << r;
  }
  std::printf(
      "  %d of %d rows before the first near tie, largest difference %.2e\n", safe, rows,
      *std::max_element(differences.begin(), differences.begin() + std::max(1, safe_compared)));
  std::sort(differences.begin(), differences.end());
  const double median = differences[differences.size() / 2];
  std::printf("  over all compared rows: median %.2e, largest %.2e\n", median, differences.back());
  EXPECT_GT(safe_compared, 5);
  EXPECT_LE(median, kMedianTolerance);
}

// Windows of rows that may be taken back, of sequence 0.
class CudaWindowTest : public testing::Test {
 protected:
  void Step(Model& model, std::span<const int32_t> ids, const std::vector<ops::Segment>& segments) {
    ASSERT_TRUE(model.Trunk(ids, segments).ok());
  }
  std::vector<float> Hidden(const ModelRank& rank, int row, int rows) {
    return rank.Fetch(rank.model->activations().h + row * kHidden, rows * kHidden);
  }
  ops::Segment Part(int rows, int position, bool window, int commit) const {
    ops::Segment segment = MakeSegment(0, rows, 0, position, pages_);
    segment.window = window;
    segment.commit = commit;
    return segment;
  }

  const std::vector<int32_t> ids_ = Text().I32("b.input_ids");
  const std::vector<int32_t> pages_ = {9, 2};
};

TEST_F(CudaWindowTest, ReplayedWindowsHaveTheBitsOfThoseThatRun) {
  std::vector<std::vector<float>> hidden[2];
  for (const bool recorded : {false, true}) {
    ModelRank rank(MiniModel(), MakeSingleRank());
    Model& model = *rank.model;
    if (recorded) {
      ASSERT_TRUE(model.RecordTrunk(std::vector<int>{1}).ok());
      ASSERT_TRUE(model.RecordTrunk(std::vector<int>{3}).ok());
    }
    const auto step = [&](int rows, int position, bool window, int commit) {
      Step(model, {&ids_[position], static_cast<size_t>(rows)},
           {Part(rows, position, window, commit)});
      hidden[recorded].push_back(Hidden(rank, 0, rows));
    };
    step(20, 0, false, 0);
    step(3, 20, true, 0);
    step(3, 22, true, 2);
    step(1, 23, false, 1);
    step(3, 24, true, 0);
  }
  for (size_t i = 0; i < hidden[0].size(); ++i) EXPECT_EQ(hidden[0][i], hidden[1][i]) << i;
}

TEST_F(CudaWindowTest, ALongRowTakesInWhatIsPendingToo) {
  std::vector<float> hidden[2];
  for (const bool before : {false, true}) {
    ModelRank rank(MiniModel(), MakeSingleRank());
    Model& model = *rank.model;
    Step(model, {ids_.data(), 20}, {Part(20, 0, false, 0)});
    Step(model, {&ids_[20], 3}, {Part(3, 20, true, 0)});
    if (before) {
      ops::Segment commit = Part(0, 22, false, 2);
      ASSERT_TRUE(model.Commit({&commit, 1}).ok());
    }
    // Beside a window of another sequence, which has a form of its own.
    const std::vector<int32_t> other = {4};
    ops::Segment window = MakeSegment(140, 3, 1, 0, other);
    window.window = true;
    std::vector<int32_t> ids(ids_.begin() + 22, ids_.begin() + 162);
    ids.insert(ids.end(), ids_.begin(), ids_.begin() + 3);
    Step(model, ids, {Part(140, 22, false, before ? 0 : 2), window});
    hidden[before] = Hidden(rank, 0, 143);
  }
  EXPECT_EQ(hidden[0], hidden[1]);
}

INSTANTIATE_TEST_SUITE_P(KvDtypes, CudaModelGoldenTest,
                         testing::Values(KvDtype::kFp32, KvDtype::kFp16),
                         [](const auto& info) { return std::string(ToString(info.param)); });

}  // namespace
}  // namespace quartet
