// The layouts without reference data of their own: the miniature model, written in each, gives the
// logits of the same weights stored as F32.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string_view>

#include "tests/golden/mini_model.h"
#include "tests/support/checkpoint_writer.h"
#include "tests/unit/worker/golden_file.h"

namespace quartet {
namespace {

using testing::CheckpointImage;

class LayoutsTest : public ::testing::Test {
 protected:
  LayoutsTest() : ids_(GoldenFile(DataDir() + "/golden_text.safetensors").I32("b.input_ids")) {
    absl::StatusOr<CheckpointImage> image = testing::ReadImage(DataDir());
    EXPECT_TRUE(image.ok()) << image.status();
    if (image.ok()) mini_ = *std::move(image);
  }

  // Logits of the 300-token prompt, [300, vocab], then draft logits of the same rows.
  std::vector<float> Logits(const CheckpointImage& image, int shards = 1) const {
    testing::ScratchFolder folder;
    const absl::Status written = testing::WriteImage(image, folder.path(), shards);
    EXPECT_TRUE(written.ok()) << written;
    ModelRankOptions options = MiniModel();
    options.dir = folder.path();
    ModelRank rank(options, MakeSingleRank());
    const int rows = static_cast<int>(ids_.size());
    const std::vector<int32_t> pages = {0, 1};
    const ops::Segment segments[] = {MakeSegment(0, rows, 0, 0, pages)};
    EXPECT_TRUE(rank.model->Trunk(ids_, segments).ok());
    Activations& a = rank.model->activations();
    std::vector<float> out = AllLogits(*rank.model, a.h, rows);
    std::copy_n(a.h, rows * kHidden, a.mtp_h);
    std::vector<int32_t> next(ids_.begin() + 1, ids_.end());
    next.push_back(ids_[0]);
    EXPECT_TRUE(rank.model->Draft(next, segments).ok());
    const std::vector<float> draft = AllLogits(*rank.model, a.mtp_o, rows);
    out.insert(out.end(), draft.begin(), draft.end());
    EXPECT_EQ(out.size(), 2 * ids_.size() * kVocab);
    return out;
  }

  CheckpointImage mini_;
  const std::vector<int32_t> ids_;
};

double LargestDifference(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size() || a.empty()) return INFINITY;
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double d = std::abs(static_cast<double>(a[i]) - b[i]);
    if (!(d <= largest)) largest = d;  // a NaN counts
  }
  return largest;
}

TEST_F(LayoutsTest, StorageTypesMeanTheirWidenedValuesExactly) {
  EXPECT_EQ(LargestDifference(Logits(mini_), Logits(testing::Widen(mini_))), 0) << "BF16";
  const CheckpointImage half = testing::ToHalf(mini_);
  EXPECT_EQ(LargestDifference(Logits(half), Logits(testing::Widen(half))), 0) << "F16";
  const CheckpointImage fp8 = testing::ToFp8(mini_);
  EXPECT_EQ(LargestDifference(Logits(fp8), Logits(testing::Widen(fp8))), 0) << "FP8";
  // The three are different weights, or the comparisons above would prove nothing.
  EXPECT_GT(LargestDifference(Logits(mini_), Logits(fp8)), 1e-2);
}

TEST_F(LayoutsTest, Fp8ScaleBlocksSmallerThanAMatrix) {
  const CheckpointImage fp8 = testing::ToFp8(mini_, 64, 32);
  EXPECT_EQ(LargestDifference(Logits(fp8), Logits(testing::Widen(fp8))), 0);
}

TEST_F(LayoutsTest, FusedAndRenamedAndSharded) {
  const std::vector<float> plain = Logits(mini_);
  EXPECT_EQ(LargestDifference(Logits(testing::FuseKda(mini_)), plain), 0) << "fused";
  EXPECT_EQ(LargestDifference(Logits(testing::Rename(mini_, "model.", "lm_head")), plain), 0);
  EXPECT_EQ(
      LargestDifference(
          Logits(testing::Rename(mini_, "language_model.model.", "language_model.lm_head")), plain),
      0);
  EXPECT_EQ(LargestDifference(Logits(mini_, 3), plain), 0) << "three shards";
}

struct Exl3Case {
  const char* name;
  testing::Exl3Options options;
};

class Exl3LayoutsTest : public LayoutsTest, public ::testing::WithParamInterface<Exl3Case> {};

// The twin multiplies with the whole matrix, the quantised form goes through two Hadamard
// transforms, so the two agree up to FP32 rounding.
TEST_P(Exl3LayoutsTest, AgreesWithTheDecodedWeights) {
  const testing::Exl3Pair pair = testing::ToExl3(mini_, GetParam().options);
  const double largest = LargestDifference(Logits(pair.quantised), Logits(pair.widened));
  std::printf("largest difference of a logit, %s: %.2e\n", GetParam().name, largest);
  EXPECT_LT(largest, kTolerance);
}

testing::Exl3Options Options(Exl3Codebook codebook, Exl3TileOrder order,
                             testing::ExpertLayout layout) {
  testing::Exl3Options options;
  options.codebook = codebook;
  options.tile_order = order;
  options.layout = layout;
  return options;
}

// O12: the width of each tensor is its own.
testing::Exl3Options Widths(testing::ExpertLayout layout, int (*bits_of)(std::string_view)) {
  testing::Exl3Options options = Options(Exl3Codebook::kMcg, Exl3TileOrder::kColumnMajor, layout);
  options.bits_of = bits_of;
  return options;
}

int TwoBits(std::string_view) {
  return 2;
}
int BitsOfLayer(std::string_view module) {
  if (module.find("layers.9.") != std::string_view::npos) return 4;  // the draft layer
  return module.find("layers.7.") != std::string_view::npos ? 3 : 2;
}
int ThreeBitsForOneMatrix(std::string_view module) {
  return module.ends_with("layers.7.mlp.experts.2.down_proj") ? 3 : 2;
}

INSTANTIATE_TEST_SUITE_P(
    All, Exl3LayoutsTest,
    ::testing::Values(
        Exl3Case{"O12_TwoBitsEverywhere", Widths(testing::ExpertLayout::kStacked, TwoBits)},
        Exl3Case{"O12_ThreeBitsInALayerAndFourInTheDraftLayer",
                 Widths(testing::ExpertLayout::kStacked, BitsOfLayer)},
        Exl3Case{"O12_AnExpertOfTwoWidths",
                 Widths(testing::ExpertLayout::kPerExpert, ThreeBitsForOneMatrix)},
        Exl3Case{"McgSm80PerExpert", Options(Exl3Codebook::kMcg, Exl3TileOrder::kSm80,
                                             testing::ExpertLayout::kPerExpert)},
        Exl3Case{"Mul1Sm80PerExpert", Options(Exl3Codebook::kMul1, Exl3TileOrder::kSm80,
                                              testing::ExpertLayout::kPerExpert)},
        Exl3Case{"DefaultSm80PerExpert", Options(Exl3Codebook::k3Inst, Exl3TileOrder::kSm80,
                                                 testing::ExpertLayout::kPerExpert)},
        Exl3Case{"Mul1ColumnMajorStacked", Options(Exl3Codebook::kMul1, Exl3TileOrder::kColumnMajor,
                                                   testing::ExpertLayout::kStacked)},
        Exl3Case{"DefaultColumnMajorStacked",
                 Options(Exl3Codebook::k3Inst, Exl3TileOrder::kColumnMajor,
                         testing::ExpertLayout::kStacked)}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace quartet
