// Adjusted logits, against a plain recomputation from lists of what was said.

#include "kernels/cpu/logit_adjust.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cpu/row_sampler.h"
#include "tests/unit/kernels/support.h"

namespace quartet::cpu {
namespace {

using testing::RandomFloats;

constexpr float kNever = -std::numeric_limits<float>::infinity();
constexpr float kLargest = std::numeric_limits<float>::max();

std::vector<float> Adjusted(const std::vector<float>& logits, const ops::SampleParams& params) {
  std::vector<float> out(logits.size());
  AdjustLogits(logits.data(), static_cast<int64_t>(logits.size()), params, out.data());
  return out;
}

// One id, straight from the definition.
float Expected(float logit, int32_t id, const ops::SampleParams& p,
               const std::vector<int32_t>& prompt, const std::vector<int32_t>& output) {
  for (const ops::LogitBias& bias : p.bias) logit += bias.id == id ? bias.value : 0.0f;
  if (!p.allowed.empty() && (p.allowed[id / 32] & (1u << (id % 32))) == 0) return kNever;
  const auto times = std::count(output.begin(), output.end(), id);
  const bool said = times > 0 || std::ranges::find(prompt, id) != prompt.end();
  if (said) logit = logit > 0 ? logit / p.repetition_penalty : logit * p.repetition_penalty;
  if (times > 0) {
    logit -= p.presence_penalty + p.frequency_penalty * static_cast<float>(times);
  }
  return logit;
}

TEST(LogitAdjust, IsWhatTheDefinitionSays) {
  std::mt19937 bits(7);
  const RowSampler sampler;
  for (int round = 0; round < 300; ++round) {
    const int vocab = 2 + static_cast<int>(bits() % 100);
    const std::vector<float> logits = RandomFloats(vocab, 5.0f, bits());
    const auto ids = [&](int most) {
      std::vector<int32_t> out(bits() % (most + 1));
      for (int32_t& id : out) id = static_cast<int32_t>(bits() % vocab);
      return out;
    };
    const std::vector<int32_t> prompt = ids(40), counted = ids(30), uncounted = ids(4);
    std::vector<uint32_t> counts(vocab, 5);
    sampler.ClearCounts(counts.data(), vocab);
    ASSERT_TRUE(sampler.AddCounts(counts.data(), counted, ops::TokenOrigin::kOutput).ok());
    ASSERT_TRUE(sampler.AddCounts(counts.data(), prompt, ops::TokenOrigin::kPrompt).ok());
    std::vector<ops::LogitBias> bias;
    for (int32_t id = 0; id < vocab; id += 1 + static_cast<int32_t>(bits() % 20)) {
      bias.push_back({id, static_cast<float>(bits() % 201) - 100.0f});
    }
    std::vector<uint32_t> allowed((vocab + 31) / 32);
    for (uint32_t& word : allowed) word = bits();
    ops::SampleParams p;
    if (bits() % 2) p.bias = bias;
    if (bits() % 2) p.allowed = allowed;
    p.repetition_penalty = 0.5f + 0.25f * static_cast<float>(bits() % 6);
    p.presence_penalty = 0.5f * static_cast<float>(bits() % 9) - 2.0f;
    p.frequency_penalty = 0.5f * static_cast<float>(bits() % 9) - 2.0f;
    p.counts = counts.data();
    p.uncounted = uncounted;
    std::vector<int32_t> output = counted;
    output.insert(output.end(), uncounted.begin(), uncounted.end());
    const std::vector<float> got = Adjusted(logits, p);
    for (int32_t id = 0; id < vocab; ++id) {
      const float expected = Expected(logits[id], id, p, prompt, output);
      if (expected == kNever) {
        ASSERT_EQ(got[id], kNever);
      } else {
        ASSERT_NEAR(got[id], expected, 1e-4) << "round " << round << " id " << id;
      }
    }
  }
}

TEST(LogitAdjust, NothingThatChangesNothingIsAnAdjustment) {
  const std::vector<uint32_t> counts(8, 1);
  const std::vector<int32_t> uncounted = {3};
  EXPECT_FALSE(Adjusts({}));
  EXPECT_FALSE(Adjusts({.counts = counts.data(), .uncounted = uncounted}));
  EXPECT_FALSE(Adjusts({.presence_penalty = 1.0f}));
  EXPECT_TRUE(Adjusts({.presence_penalty = 1.0f, .counts = counts.data()}));
  EXPECT_TRUE(Adjusts({.presence_penalty = 1.0f, .uncounted = uncounted}));
  EXPECT_TRUE(Adjusts({.forced = 0}));
}

TEST(LogitAdjust, FiniteLogitsStayFiniteAndOthersStayWhatTheyAre) {
  const ops::LogitBias bias[] = {{0, 100.0f}, {1, -100.0f}, {2, 5.0f}, {3, 5.0f}, {4, 5.0f}};
  const std::vector<int32_t> uncounted = {5, 6, 2, 3};
  const std::vector<float> got =
      Adjusted({kLargest, -kLargest, kNever, INFINITY, NAN, -kLargest, kLargest},
               {.bias = bias, .repetition_penalty = 3.0f, .uncounted = uncounted});
  EXPECT_EQ(got[0], kLargest);
  EXPECT_EQ(got[1], -kLargest);
  EXPECT_EQ(got[2], kNever);
  EXPECT_EQ(got[3], INFINITY);
  EXPECT_TRUE(std::isnan(got[4]));
  EXPECT_EQ(got[5], -kLargest);
  EXPECT_EQ(got[6], kLargest / 3.0f);
}

class AdjustedDraws : public ::testing::Test {
 protected:
  ops::SampleResult Draw(const std::vector<float>& logits, const ops::SampleParams& params) {
    const auto vocab = static_cast<int64_t>(logits.size());
    std::vector<std::byte> space(sampler_.WorkspaceBytes(1, vocab));
    ops::SampleResult result;
    const absl::Status status = sampler_.Draw({logits.data(), 1, 1, vocab}, {&params, 1},
                                              {&result, 1}, {space.data(), space.size()});
    EXPECT_TRUE(status.ok()) << status;
    return result;
  }
  const RowSampler sampler_;
};

TEST_F(AdjustedDraws, LogProbabilitiesAreThoseOfTheRawRow) {
  const std::vector<float> logits = {1.0f, 3.0f, 2.0f};
  const ops::LogitBias bias = {0, 100.0f};
  const ops::SampleResult result = Draw(logits, {.bias = {&bias, 1}, .top = 3});
  EXPECT_EQ(result.token, 0);
  const double log_sum = std::log(std::exp(1.0) + std::exp(2.0) + std::exp(3.0));
  EXPECT_NEAR(result.logprob, 1.0 - log_sum, 1e-6);
  const int32_t order[] = {1, 2, 0};
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(result.top[i].token, order[i]);
    EXPECT_NEAR(result.top[i].logprob, logits[order[i]] - log_sum, 1e-6);
  }
  EXPECT_EQ(result.top[3].token, -1);
}

TEST_F(AdjustedDraws, OfEqualLogitsTheLowerIdsComeFirst) {
  const ops::SampleResult result = Draw({2, 1, 2, 3, 1, 2, 1}, {.top = 4});
  const int32_t order[] = {3, 0, 2, 5};
  for (int i = 0; i < 4; ++i) EXPECT_EQ(result.top[i].token, order[i]);
}

TEST_F(AdjustedDraws, AForcedIdIsDrawnWhateverElseIsLikely) {
  for (const float temperature : {0.0f, 1.0f}) {
    for (const int32_t draft : {-1, 1, 2}) {
      EXPECT_EQ(
          Draw({1, 9, 3}, {.temperature = temperature, .top_k = 1, .draft = draft, .forced = 2})
              .token,
          2);
    }
  }
}

TEST_F(AdjustedDraws, ADraftThatAMaskForbidsIsNotAccepted) {
  const std::vector<uint32_t> allowed = {0b101};
  for (uint32_t position = 0; position < 100; ++position) {
    const int32_t token =
        Draw({1, 9, 1}, {.temperature = 1.0f, .position = position, .draft = 1, .allowed = allowed})
            .token;
    EXPECT_NE(token, 1);
  }
  EXPECT_FALSE(Draw({1, 9, 1}, {.allowed = std::vector<uint32_t>{0}}).finite);
}

TEST_F(AdjustedDraws, PenaltiesShiftTheDistributionThatDraftsAreTestedBy) {
  // Two equal ids; one was said: its odds fall by e.
  const std::vector<int32_t> said = {0};
  int drafts = 0;
  constexpr int kDraws = 20'000;
  for (uint32_t position = 0; position < kDraws; ++position) {
    const ops::SampleParams p{.temperature = 1.0f,
                              .position = position,
                              .draft = 0,
                              .presence_penalty = 0.5f,
                              .frequency_penalty = 0.5f,
                              .uncounted = said};
    drafts += Draw({1, 1}, p).token == 0;
  }
  const double p = 1 / (1 + std::exp(1.0));
  EXPECT_NEAR(drafts, kDraws * p, 4 * std::sqrt(kDraws * p * (1 - p)));
}

}  // namespace
}  // namespace quartet::cpu
