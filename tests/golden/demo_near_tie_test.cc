// Where sums depend on how rows are batched (not --batch-invariant), a text may part from itself
// only where the model's own choice was near: the experts of a row, the pools of a row, or the
// token. Here a text is run in hundreds of ways, beside other rows, and every choice of every row
// is compared. Its last row chooses two of its experts by 3e-4, and by them the next token.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/golden/demo_model.h"
#include "tests/golden/mini_model.h"
#include "tests/golden/recording_trace.h"

namespace quartet {
namespace {

constexpr int kWays = 400;
constexpr int kSlots = 8;
constexpr int kPagesOfSlot = 8;
constexpr int kLastSlot = kSlots - 1;
// A choice whose gap is below this may fall either way (scores of experts after the sigmoid, scores
// of pools).
constexpr double kSafeGap = 4e-3;
// Of a logit, as long as all choices are the same.
constexpr double kRounding = 3e-2;

// What one row chose in one layer.
struct Choice {
  std::string name;
  std::vector<int32_t> chosen;  // sorted
  double gap = 0;               // to what was not chosen
};

struct Outcome {
  std::vector<Choice> choices;  // in the order in which they depend on each other
  std::vector<float> logits;    // of the last row
};

class DemoNearTieTest : public testing::Test {
 protected:
  DemoNearTieTest() {
    const std::string path = QUARTET_SOURCE_DIR "/tests/data/demo/near_tie.json";
    const boost::json::object text =
        ParseJsonText(ReadTextFile(path, 1 << 20).value(), path).value().as_object();
    ids_ = JsonInts(text.at("prompt_ids"));
    prompt_ = static_cast<int>(ids_.size());
    const std::vector<int32_t> answer = JsonInts(text.at("answer_ids"));
    ids_.insert(ids_.end(), answer.begin(), answer.end());
    next_ = JsonInts(text.at("next_ids"));
    for (int i = 0; i < kDemoModelLen; ++i) others_.push_back(300 + draw_() % 1600);
  }

  static ModelRankOptions Options(bool batch_invariant) {
    ModelRankOptions options = DemoModel("quartet-demo-exl3");
    options.pools = {.slots = kSlots, .pages = kSlots * kPagesOfSlot, .kv_dtype = KvDtype::kFp16};
    options.limits = {.max_rows = kDemoModelLen, .max_context = kDemoModelLen};
    options.batch_invariant = batch_invariant;
    return options;
  }

  int Below(int bound) { return static_cast<int>(draw_() % bound); }

  // The prompt whole and its answer row by row, nothing beside them.
  Outcome Alone(ModelRank& rank) {
    Outcome outcome;
    Step(rank, 0, prompt_, 0, 0, outcome);
    for (int p = prompt_; p < count(); ++p) Step(rank, p, 1, 0, 0, outcome);
    return outcome;
  }

  // The prompt whole or cut at multiples of 64, every step beside some rows of others.
  Outcome Beside(ModelRank& rank) {
    Outcome outcome;
    const int most = std::vector<int>{prompt_, 64, 64 * (1 + Below(12))}[Below(3)];
    for (int p = 0; p < count();) {
      const int rows = p < prompt_ ? std::min(most, prompt_ - p) : 1;
      Step(rank, p, rows, Below(kLastSlot), Below(2) * Below(700), outcome);
      p += rows;
    }
    return outcome;
  }

  // Rows [position, position + rows) of the text, one row each of `single` other sequences, and a
  // prompt of `prompt` rows.
  void Step(ModelRank& rank, int position, int rows, int single, int prompt, Outcome& outcome) {
    std::vector<int32_t> ids(ids_.begin() + position, ids_.begin() + position + rows);
    std::vector<std::vector<int32_t>> pages;
    for (int slot = 0; slot < kSlots; ++slot) {
      pages.push_back(PageRange(slot * kPagesOfSlot, kPagesOfSlot));
    }
    std::vector<ops::Segment> segments = {MakeSegment(0, rows, 0, position, pages[0])};
    const auto add = [&](int count, int slot) {
      if (count == 0) return;
      segments.push_back(MakeSegment(static_cast<int>(ids.size()), count, slot, 0, pages[slot]));
      ids.insert(ids.end(), others_.begin(), others_.begin() + count);
    };
    for (int slot = 1; slot <= std::min(single, kLastSlot - 1); ++slot) add(1, slot);
    add(prompt, kLastSlot);

    RecordingTrace trace;
    rank.model->set_trace(&trace);
    ASSERT_TRUE(rank.model->Trunk(ids, segments).ok());
    rank.model->set_trace(nullptr);
    for (int r = 0; r < rows; ++r) AddChoices(rank, trace, r, position + r, outcome);
    if (position + rows < count()) return;
    ASSERT_TRUE(rank.model
                    ->Logits(rank.model->activations().h, std::vector<int>{rows - 1},
                             [&](int, std::span<const float> logits) {
                               outcome.logits.assign(logits.begin(), logits.end());
                             })
                    .ok());
  }

  static void AddChoices(const ModelRank& rank, RecordingTrace& trace, int row, int position,
                         Outcome& outcome) {
    const auto add = [&](int layer, const char* what, std::vector<int32_t> chosen, double gap) {
      std::sort(chosen.begin(), chosen.end());
      outcome.choices.push_back(
          {absl::StrCat(what, " of row ", position, " in layer ", layer), std::move(chosen), gap});
    };
    for (int layer = 0; layer < rank.config.layers; ++layer) {
      if (!trace.selected(layer).empty()) {
        const RecordingTrace::SelectedRow& pools = trace.selected(layer)[row];
        add(layer, "pools", pools.pools, pools.margin);
      }
      if (!trace.routed(layer).empty()) {
        const RecordingTrace::RoutedRow& routed = trace.routed(layer)[row];
        add(layer, "experts", routed.experts,
            RouterGap(routed.logits, CorrectionBias(*rank.checkpoint, layer),
                      rank.config.experts_per_token));
      }
    }
  }

  int count() const { return static_cast<int>(ids_.size()); }

  std::mt19937 draw_{7};
  std::vector<int32_t> ids_, others_, next_;
  int prompt_ = 0;
};

double LargestDifference(const std::vector<float>& a, const std::vector<float>& b) {
  double worst = 0;
  for (size_t i = 0; i < a.size(); ++i) worst = std::max<double>(worst, std::fabs(a[i] - b[i]));
  return worst;
}

TEST_F(DemoNearTieTest, WhatPartsWasNear) {
  ModelRank rank(Options(/*batch_invariant=*/false), MakeSingleRank());
  const Outcome alone = Alone(rank);
  ASSERT_FALSE(alone.logits.empty());
  double same = 0, parted = 0, widest = 0;
  int ways_parted = 0, other_token = 0, by_last_row = 0;
  for (int way = 0; way < kWays; ++way) {
    const Outcome beside = Beside(rank);
    ASSERT_EQ(beside.choices.size(), alone.choices.size());
    const double difference = LargestDifference(beside.logits, alone.logits);
    const auto [mine, first] =
        std::mismatch(beside.choices.begin(), beside.choices.end(), alone.choices.begin(),
                      [](const Choice& a, const Choice& b) { return a.chosen == b.chosen; });
    const bool other = beside.logits[next_[1]] > beside.logits[next_[0]];
    other_token += other;
    if (first == alone.choices.end()) {
      EXPECT_LE(difference, kRounding) << "although all choices are the same";
      EXPECT_FALSE(other);
      same = std::max(same, difference);
      continue;
    }
    // All that it depends on was chosen alike, so that only rounding can have turned it.
    EXPECT_LE(first->gap, kSafeGap) << first->name;
    widest = std::max(widest, first->gap);
    parted = std::max(parted, difference);
    ++ways_parted;
    by_last_row += other && beside.choices.back().chosen != alone.choices.back().chosen;
  }
  std::printf(
      "  %d ways: in %d all choices are the same, logits within %.1e; in %d some differ, the first "
      "by "
      "at most %.1e, logits by up to %.2f\n  %d end in the other token, in %d of them the last row "
      "has "
      "other experts in the last layer (alone they are chosen by %.1e)\n",
      kWays, kWays - ways_parted, same, ways_parted, widest, parted, other_token, by_last_row,
      alone.choices.back().gap);
  EXPECT_GT(ways_parted, 0) << "nothing was tried: no way chose anything differently";
  EXPECT_EQ(by_last_row, other_token);
}

TEST_F(DemoNearTieTest, NothingPartsInTheBatchInvariantForm) {
  ModelRank rank(Options(/*batch_invariant=*/true), MakeSingleRank());
  const Outcome alone = Alone(rank);
  ASSERT_FALSE(alone.logits.empty());
  for (int way = 0; way < kWays / 10; ++way) {
    const Outcome beside = Beside(rank);
    ASSERT_EQ(beside.logits, alone.logits);
    for (size_t i = 0; i < alone.choices.size(); ++i) {
      ASSERT_EQ(beside.choices[i].chosen, alone.choices[i].chosen) << alone.choices[i].name;
    }
  }
}

}  // namespace
}  // namespace quartet
