#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string_view>
#include <utility>
#include <variant>

#include "shard_worker/checkpoint/weights.h"
#include "tests/support/checkpoint_writer.h"
#include "tests/unit/checkpoint/weight_walk.h"

// O12: no width is assumed, of a layer or of an expert; each tensor's is that of its shape. That a
// model of these widths computes what its decoded weights do is in tests/golden/layouts_test.cc.

namespace quartet {
namespace {

using testing::CheckpointImage;
using testing::ExpertLayout;
using testing::ScratchFolder;

struct Bits {
  int gate, up, down;
  friend bool operator==(const Bits&, const Bits&) = default;
};
void PrintTo(const Bits& bits, std::ostream* out) {
  *out << bits.gate << "/" << bits.up << "/" << bits.down;
}

Bits BitsOf(const MlpWeights& expert) {
  return {std::get<Exl3View>(expert.gate).bits, std::get<Exl3View>(expert.up).bits,
          std::get<Exl3View>(expert.down).bits};
}

// The miniature model with experts of these widths, as a worker finds it.
class WidthsTest : public ::testing::Test {
 protected:
  const ModelWeights& Resolve(ExpertLayout layout, std::function<int(std::string_view)> bits_of) {
    static const CheckpointImage mini = *testing::ReadImage(testing::MiniModel());
    const auto pair = testing::ToExl3(
        mini, {.layout = layout, .bits_of = std::move(bits_of), .with_twin = false});
    EXPECT_TRUE(testing::WriteImage(pair.quantised, folder_.path()).ok());
    resolved_ = testing::ResolveFolder(folder_.path());
    EXPECT_TRUE(resolved_.ok()) << resolved_.status();
    return resolved_->weights;
  }
  static const std::vector<MlpWeights>& Experts(const ModelWeights& weights, int layer) {
    return std::get<MoeWeights>(weights.layers[layer].mlp).experts;
  }

 private:
  const ScratchFolder folder_;
  decltype(testing::ResolveFolder("")) resolved_ = absl::UnknownError("not resolved");
};

TEST_F(WidthsTest, O12_TwoBitsEverywhere) {
  for (const ExpertLayout layout : {ExpertLayout::kStacked, ExpertLayout::kPerExpert}) {
    const ModelWeights& weights = Resolve(layout, [](std::string_view) { return 2; });
    for (const int layer : {6, 7, 8}) {
      for (const MlpWeights& expert : Experts(weights, layer)) {
        EXPECT_EQ(BitsOf(expert), (Bits{2, 2, 2}));
      }
    }
    for (const MlpWeights& expert : weights.mtp->moe.experts) {
      EXPECT_EQ(BitsOf(expert), (Bits{2, 2, 2}));
    }
  }
}

TEST_F(WidthsTest, O12_ThreeBitsInSomeLayersAndFourInTheDraftLayer) {
  const ModelWeights& weights = Resolve(ExpertLayout::kStacked, [](std::string_view module) {
    if (module.find("layers.9.") != std::string_view::npos) return 4;
    return module.find("layers.6.") != std::string_view::npos ? 2 : 3;
  });
  for (const MlpWeights& expert : Experts(weights, 6)) EXPECT_EQ(BitsOf(expert), (Bits{2, 2, 2}));
  for (const int layer : {7, 8}) {
    for (const MlpWeights& expert : Experts(weights, layer)) {
      EXPECT_EQ(BitsOf(expert), (Bits{3, 3, 3}));
    }
  }
  for (const MlpWeights& expert : weights.mtp->moe.experts) {
    EXPECT_EQ(BitsOf(expert), (Bits{4, 4, 4}));
  }
}

TEST_F(WidthsTest, O12_MatricesOfOneExpertDiffer) {
  const ModelWeights& weights = Resolve(ExpertLayout::kPerExpert, [](std::string_view module) {
    return module.ends_with("layers.7.mlp.experts.2.down_proj") ? 3 : 2;
  });
  const std::vector<MlpWeights>& experts = Experts(weights, 7);
  EXPECT_EQ(BitsOf(experts[1]), (Bits{2, 2, 2}));
  EXPECT_EQ(BitsOf(experts[2]), (Bits{2, 2, 3}));
  EXPECT_EQ(BitsOf(experts[3]), (Bits{2, 2, 2}));
}

}  // namespace
}  // namespace quartet
