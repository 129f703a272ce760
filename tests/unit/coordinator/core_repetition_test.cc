#include "services/coordinator/core/repetition.h"
#include "tests/unit/coordinator/cache_requests.h"
#include "tests/unit/coordinator/core_harness.h"

// O6: a loop that lasts as long as the cached prefix that it began behind.

namespace quartet::coordinator {
namespace {

TEST(Repetition, IsTheShortestNgramThatTheTextConsistsOf) {
  const auto ngram = [](std::vector<int32_t> tokens) { return RepeatedNgram(tokens); };
  EXPECT_EQ(ngram({}), 0u);
  EXPECT_EQ(ngram({7}), 1u);
  EXPECT_EQ(ngram({7, 7, 7}), 1u);
  EXPECT_EQ(ngram({1, 2, 1, 2, 1}), 2u) << "the last one may be cut short";
  EXPECT_EQ(ngram({1, 2, 3, 1, 2, 4}), 6u);
  EXPECT_EQ(ngram({1, 1, 2, 1, 1, 2, 1, 1, 1}), 7u);
}

TEST(Repetition, IsALoopWhenItCoversTheEndAndComesFourTimes) {
  const auto text = [](size_t before, size_t ngram, size_t loop) {
    std::vector<int32_t> tokens;
    for (size_t i = 0; i < before; ++i) tokens.push_back(1000 + static_cast<int32_t>(i));
    for (size_t i = 0; i < loop; ++i) tokens.push_back(static_cast<int32_t>(i % ngram));
    return tokens;
  };
  EXPECT_TRUE(EndsInLoop(text(0, 1, 256)));
  EXPECT_TRUE(EndsInLoop(text(500, 64, 256)));
  EXPECT_FALSE(EndsInLoop(text(500, 65, 256)));
  EXPECT_FALSE(EndsInLoop(text(500, 3, 255)));
  std::vector<int32_t> ended = text(10, 3, 400);
  ended.push_back(5000);
  EXPECT_FALSE(EndsInLoop(ended));
}

// Requests of this seed say one token for ever.
constexpr uint64_t kLoops = 99;

class CoreRepetitionTest : public ::testing::TestWithParam<uint32_t> {
 protected:
  static CoreConfig Config(uint32_t host_pages) {
    CoreConfig config = CacheConfig();
    config.host_pages = host_pages;
    config.host_snapshots = host_pages / 4;
    config.steps_in_flight = 2;
    return config;
  }
  static quartet::testing::TokenRule Rule() {
    return [normal = quartet::testing::HashChainRule(1000)](uint64_t state, uint32_t position,
                                                            const v1::SamplingParams& sampling) {
      return sampling.seed() == kLoops ? 5 : normal(state, position, sampling);
    };
  }
  // The next turn of the conversation, alone. Says how much of it came from the cache.
  uint32_t Say(uint32_t max_tokens, uint64_t seed = 1) {
    const std::vector<int32_t> more = CoreHarness::Prompt(300, ++turns_);
    text_.insert(text_.end(), more.begin(), more.end());
    const Request request = Ask(text_, max_tokens, seed);
    const uint64_t id = harness.MustSubmit(request);
    harness.RunAll();
    const CoreHarness::Told& told = harness.told[id];
    EXPECT_EQ(told.terminals.size(), 1u);
    right_ = told.tokens == harness.Alone(request, max_tokens);
    text_.insert(text_.end(), told.tokens.begin(), told.tokens.end());
    return told.terminals.front().cached_tokens;
  }
  Ledger ledger() const { return harness.core.GetLedger(); }

  CoreHarness harness{Config(GetParam()), Rule()};
  bool right_ = true;  // what was said last is what it says alone

 private:
  std::vector<int32_t> text_;
  int32_t turns_ = 0;
};

INSTANTIATE_TEST_SUITE_P(HostPages, CoreRepetitionTest, ::testing::Values(0, 200));

TEST_P(CoreRepetitionTest, O6_ALoopBehindACachedPrefixHasTheNextTurnComputedAndCompared) {
  Say(300);
  EXPECT_EQ(Say(10), 512u);
  EXPECT_EQ(Say(400, kLoops), 768u);
  EXPECT_EQ(ledger().repetitions_suspected, 1u) << "once for an answer, however long";
  EXPECT_EQ(Say(10), 0u);
  EXPECT_TRUE(right_);
  // Nothing was wrong, so it is used again.
  EXPECT_GT(Say(10), 768u);
  EXPECT_TRUE(right_);
  EXPECT_EQ(ledger().states_condemned, 0u);
  EXPECT_EQ(ledger().repetitions_suspected, 1u);
}

TEST_P(CoreRepetitionTest, O6_AStateThatBelongsToAnotherTextIsFoundAndNothingCachedIsUsedAgain) {
  Say(300);
  Say(10);
  harness.workers.SpoilSnapshots();
  EXPECT_GT(Say(400, kLoops), 0u);
  EXPECT_EQ(Say(10), 0u);
  EXPECT_TRUE(right_);
  EXPECT_EQ(ledger().states_condemned, 1u);
  EXPECT_EQ(Say(10), 0u) << "of what was cached before";
  EXPECT_TRUE(right_);
  EXPECT_GT(Say(10), 1024u) << "the cache is as useful as before";
  EXPECT_TRUE(right_);
  EXPECT_EQ(ledger().states_condemned, 1u);
}

TEST_P(CoreRepetitionTest, ALoopWithoutACachedPrefixIsCountedAndNothingElse) {
  EXPECT_EQ(Say(300, kLoops), 0u);
  EXPECT_EQ(ledger().repetitions_suspected, 1u);
  EXPECT_EQ(Say(10), 512u);
}

TEST_P(CoreRepetitionTest, AnAnswerThatIsNoLoopIsNotSuspected) {
  Say(600);
  Say(600);
  EXPECT_EQ(ledger().repetitions_suspected, 0u);
}

TEST(CoreRepetition, WhereThereIsNoRoomForBothTheSuspectGoes) {
  CoreConfig config = CacheConfig();
  config.max_model_len = 4096;
  config.pages = 16;
  config.snapshots = 8;
  CoreHarness harness(config, [](uint64_t, uint32_t, const v1::SamplingParams&) { return 5; });
  std::vector<int32_t> text = CoreHarness::Prompt(2600);
  const auto say = [&](uint32_t max_tokens) {
    const uint64_t id = harness.MustSubmit(Ask(text, max_tokens));
    harness.RunAll();
    text.insert(text.end(), harness.told[id].tokens.begin(), harness.told[id].tokens.end());
    return harness.told[id].terminals.front().cached_tokens;
  };
  say(10);
  EXPECT_EQ(say(300), 2560u);
  EXPECT_EQ(harness.core.GetLedger().repetitions_suspected, 1u);
  EXPECT_LT(say(10), 2560u);
  EXPECT_GE(say(10), 2560u);
}

}  // namespace
}  // namespace quartet::coordinator
