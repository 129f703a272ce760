// Verify windows of the miniature model on a GPU, from recordings and beside long rows.

#include <gtest/gtest.h>

#include <span>
#include <vector>

#include "tests/golden/mini_model.h"
#include "tests/unit/worker/golden_file.h"

namespace quartet {
namespace {

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

  const std::vector<int32_t> ids_ =
      GoldenFile(DataDir() + "/golden_text.safetensors").I32("b.input_ids");
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

}  // namespace
}  // namespace quartet
