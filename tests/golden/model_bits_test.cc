// A token's numbers depend on its own sequence only, bit for bit: not on how the prompt was cut
// into chunks, nor on what else is in the step, nor on who held the slot before. On the CPU always,
// on a GPU where that is asked for.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "tests/golden/mini_model.h"
#include "tests/unit/worker/golden_file.h"

namespace quartet {
namespace {

class ModelBitsTest : public testing::Test {
 protected:
  ModelBitsTest()
      : rank_(Options(), MakeSingleRank()),
        ids_(GoldenFile(DataDir() + "/golden_text.safetensors").I32("b.input_ids")) {
    if (TestBackendIsEmulated()) ids_.resize(24);  // more than the kernels for few rows take
  }
  static ModelRankOptions Options() {
    ModelRankOptions options = MiniModel();
    options.batch_invariant = true;
    return options;
  }

  Model& model() { return *rank_.model; }
  int count() const { return static_cast<int>(ids_.size()); }

  // Hidden rows of the whole prompt, run in chunks of `chunk` tokens.
  std::vector<float> InChunks(int chunk, int slot, const std::vector<int32_t>& pages) {
    std::vector<float> hidden;
    for (int p = 0; p < count(); p += chunk) {
      const int rows = std::min(chunk, count() - p);
      EXPECT_TRUE(model()
                      .Trunk({ids_.data() + p, static_cast<size_t>(rows)},
                             {{MakeSegment(0, rows, slot, p, pages)}})
                      .ok());
      const std::vector<float> h = rank_.Fetch(model().activations().h, rows * kHidden);
      hidden.insert(hidden.end(), h.begin(), h.end());
    }
    return hidden;
  }

  // Everything in a slot, layer by layer.
  std::vector<float> State(int slot) {
    std::vector<float> out;
    for (const int layer : kKdaLayers) {
      const ops::KdaState state = rank_.pools->kda_state(layer);
      for (const std::vector<float>& part :
           {rank_.Fetch(state.recurrent + slot * state.recurrent_slot_stride,
                        rank_.pools->recurrent_floats()),
            rank_.Fetch(state.conv + slot * state.conv_slot_stride, rank_.pools->conv_floats())}) {
        out.insert(out.end(), part.begin(), part.end());
      }
    }
    return out;
  }

  ModelRank rank_;
  std::vector<int32_t> ids_;
};

// Compares bits, so that -0 and NaN count too.
testing::AssertionResult SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return testing::AssertionFailure() << a.size() << " and " << b.size();
  for (size_t i = 0; i < a.size(); ++i) {
    if (std::memcmp(&a[i], &b[i], sizeof(float)) != 0) {
      return testing::AssertionFailure() << "value " << i << ": " << a[i] << " and " << b[i];
    }
  }
  return testing::AssertionSuccess();
}

TEST_F(ModelBitsTest, ChunksOfAPromptDoNotChangeABit) {
  const std::vector<float> whole = InChunks(count(), 0, {0, 1});
  const std::vector<float> state = State(0);
  for (const int chunk : {1, 7, 64}) {
    if (chunk >= count()) break;
    SCOPED_TRACE(absl::StrCat("chunks of ", chunk));
    EXPECT_TRUE(SameBits(InChunks(chunk, 1, {7, 4}), whole));
    EXPECT_TRUE(SameBits(State(1), state));
  }
}

TEST_F(ModelBitsTest, BatchMatesDoNotChangeABit) {
  const std::vector<float> alone = InChunks(64, 0, {0, 1});
  const std::vector<float> state = State(0);
  std::vector<int32_t> other(ids_.rbegin(), ids_.rend());
  std::vector<float> hidden;
  // The same chunks of 64, with one mate that decodes before and one that prefills behind.
  for (int p = 0; p < count(); p += 64) {
    const int rows = std::min(64, count() - p);
    const int mate_rows = 1 + p / 64 * 3;
    const int mate_position = p == 0 ? 0 : p / 64 * (p / 64 - 1) * 3 / 2 + p / 64;
    std::vector<int32_t> ids = {other[p / 64]};
    ids.insert(ids.end(), ids_.begin() + p, ids_.begin() + p + rows);
    ids.insert(ids.end(), other.begin() + mate_position, other.begin() + mate_position + mate_rows);
    ASSERT_TRUE(
        model()
            .Trunk(ids, {{MakeSegment(0, 1, 2, p / 64, {8}), MakeSegment(1, rows, 1, p, {3, 5}),
                          MakeSegment(1 + rows, mate_rows, 3, mate_position, {6})}})
            .ok());
    const std::vector<float> h = rank_.Fetch(model().activations().h + kHidden, rows * kHidden);
    hidden.insert(hidden.end(), h.begin(), h.end());
  }
  EXPECT_TRUE(SameBits(hidden, alone));
  EXPECT_TRUE(SameBits(State(1), state));
}

TEST_F(ModelBitsTest, ASlotAndPagesThatWereUsedBeforeLeaveNoTrace) {
  const std::vector<float> fresh = InChunks(count(), 0, {0, 1});
  std::vector<int32_t> other(ids_.rbegin(), ids_.rend());
  ASSERT_TRUE(model().Trunk(other, {{MakeSegment(0, count(), 3, 0, {9, 8})}}).ok());
  EXPECT_TRUE(SameBits(InChunks(count(), 3, {8, 9}), fresh));
  EXPECT_TRUE(SameBits(State(3), State(0)));
}

}  // namespace
}  // namespace quartet
