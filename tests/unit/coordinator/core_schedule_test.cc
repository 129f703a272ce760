#include <gmock/gmock.h>

#include <algorithm>
#include <vector>

#include "services/coordinator/core/core.h"
#include "tests/unit/coordinator/core_harness.h"

// Who gets how much of which step: the time budget, the order of prompts, and who may pass whom.

namespace quartet::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// A step takes 20 ms, and half a millisecond for each token of a prompt.
TimeUs StepUs(const StepPlan& plan) {
  TimeUs us = 20000;
  for (const PlanRow& row : plan.rows) {
    if (row.kind == PlanRow::Kind::kPrefill) us += TimeUs{500} * row.n_tokens;
  }
  return us;
}

uint32_t PromptTokens(const StepPlan& plan) {
  uint32_t tokens = 0;
  for (const PlanRow& row : plan.rows) {
    if (row.kind == PlanRow::Kind::kPrefill) tokens += row.n_tokens;
  }
  return tokens;
}

CoreConfig Timed(double min_decode_share = 0) {
  CoreConfig config = CoreHarness::Config();
  config.max_model_len = 8192;
  config.pages = 128;
  config.max_num_batched_tokens = 4096;
  config.prefill_quantum_ms = 300;
  config.min_decode_share = min_decode_share;
  return config;
}

// Two streams that decode on a machine whose times are known.
void StartStreams(CoreHarness& harness) {
  harness.step_us = StepUs;
  for (int i = 0; i < 2; ++i) harness.MustSubmit(CoreHarness::Ask(600, 2000, i));
  for (int i = 0; i < 10; ++i) harness.Step();
}

// ---- time --------------------------------------------------------------------------------------

TEST(CoreTime, WithNobodyDecodingAPromptHasTheWholeTokenBudget) {
  CoreHarness harness(Timed());
  harness.step_us = StepUs;
  harness.MustSubmit(CoreHarness::Ask(5000, 1));
  EXPECT_EQ(PromptTokens(*harness.Step()), 4096u);
}

TEST(CoreTime, BesideDecodersAStepTakesNoLongerThanTheQuantum) {
  CoreHarness harness(Timed());
  StartStreams(harness);
  harness.MustSubmit(CoreHarness::Ask(5000, 1, 3));
  int steps = 0;
  for (uint32_t done = 0; done < 5000; ++steps) {
    auto plan = harness.Step();
    done += PromptTokens(*plan);
    EXPECT_LE(StepUs(*plan), 300000);
    EXPECT_THAT(plan->rows, SizeIs(3)) << "two streams and the prompt";
  }
  EXPECT_EQ(steps, 10) << "of 512 tokens, where 560 would fit";
}

TEST(CoreTime, DecodersHaveTheirShareBetweenChunks) {
  CoreHarness harness(Timed(0.5));
  StartStreams(harness);
  harness.MustSubmit(CoreHarness::Ask(5000, 1, 3));
  TimeUs with_prompt = 0;
  TimeUs alone = 0;
  for (uint32_t done = 0; done < 5000;) {
    auto plan = harness.Step();
    const uint32_t tokens = PromptTokens(*plan);
    done += tokens;
    (tokens > 0 ? with_prompt : alone) += StepUs(*plan);
  }
  EXPECT_NEAR(static_cast<double>(alone) / static_cast<double>(alone + with_prompt), 0.5, 0.06);
}

TEST(CoreTime, AQuantumThatIsTooShortStillMovesAPromptOn) {
  CoreConfig config = Timed();
  config.prefill_quantum_ms = 1;
  CoreHarness harness(config);
  StartStreams(harness);
  const uint64_t id = harness.MustSubmit(CoreHarness::Ask(300, 1, 3));
  std::vector<uint32_t> chunks;
  while (harness.told[id].terminals.empty()) chunks.push_back(PromptTokens(*harness.Step()));
  EXPECT_THAT(chunks, ElementsAre(64, 64, 64, 64, 44));
}

TEST(CoreTime, TheTextIsTheSameWhateverTheTime) {
  for (const double share : {0.0, 0.5}) {
    CoreHarness harness(Timed(share));
    StartStreams(harness);
    const Request request = CoreHarness::Ask(5000, 20, 3);
    const uint64_t id = harness.MustSubmit(request);
    harness.RunAll();
    EXPECT_EQ(harness.told[id].tokens, harness.Alone(request, 20));
  }
}

// ---- order -------------------------------------------------------------------------------------

TEST(CoreOrder, AShortPromptGoesBeforeALongOneThatIsInTheMiddle) {
  CoreHarness harness(CoreHarness::Config());
  const uint64_t long_one = harness.MustSubmit(CoreHarness::Ask(2000, 1, 1));
  harness.Step();
  const uint64_t short_one = harness.MustSubmit(CoreHarness::Ask(500, 1, 2));
  harness.Step();
  EXPECT_THAT(harness.told[short_one].tokens, SizeIs(1));
  EXPECT_THAT(harness.told[long_one].tokens, IsEmpty());
  EXPECT_EQ(harness.core.GetLedger().overtakes, 1u);
  harness.RunAll();
  EXPECT_EQ(harness.core.GetLedger().finished, 2u);
}

TEST(CoreOrder, KeysTakeTurnsAndBatchComesLast) {
  CoreConfig config = CoreHarness::Config();
  config.slots = 1;
  CoreHarness harness(config);
  const auto ask = [&](int salt, uint64_t key, RequestClass request_class) {
    Request request = CoreHarness::Ask(512, 1, salt);
    request.fair_key = key;
    request.request_class = request_class;
    harness.MustSubmit(request);
  };
  ask(1, 7, RequestClass::kBatch);
  ask(2, 7, RequestClass::kInteractive);
  ask(3, 7, RequestClass::kInteractive);
  ask(4, 7, RequestClass::kInteractive);
  ask(5, 8, RequestClass::kInteractive);
  std::vector<uint64_t> order;
  while (auto plan = harness.Step()) {
    for (const SequenceOpen& open : plan->opens) order.push_back(open.sampling.seed);
  }
  EXPECT_THAT(order, ElementsAre(2, 5, 3, 4, 1));
}

TEST(CoreOrder, AtMostFourPromptsAreInTheMiddleAtOnce) {
  CoreConfig config = CoreHarness::Config();
  config.slots = 8;
  config.pages = 64;
  config.prefill_chunk = 64;
  CoreHarness harness(config);
  for (int i = 0; i < 8; ++i) harness.MustSubmit(CoreHarness::Ask(640, 1, i));
  EXPECT_THAT(harness.Step()->rows, SizeIs(4));
  // One that is done in a step is not in the middle.
  harness.MustSubmit(CoreHarness::Ask(10, 1, 9));
}

// ---- who may pass somebody that waits for pages ------------------------------------------------

// A stream that will hold most pages for 400 tokens more, and a prompt that needs them.
class CoreBypass : public ::testing::Test {
 protected:
  CoreBypass() : harness_(Config()) {
    harness_.step_us = StepUs;
    harness_.MustSubmit(CoreHarness::Ask(1100, 500, 1));
    for (int i = 0; i < 100; ++i) harness_.Step();
    blocked_ = harness_.MustSubmit(CoreHarness::Ask(700, 10, 2));
    harness_.Step();
    EXPECT_EQ(harness_.told[blocked_].admitted, 0);
  }
  static CoreConfig Config() {
    CoreConfig config = CoreHarness::Config();
    config.pages = 8;
    config.max_queued_requests = 32;
    return config;
  }

  CoreHarness harness_;
  uint64_t blocked_ = 0;
};

TEST_F(CoreBypass, WhoIsThroughBeforeItCouldStartMayPass) {
  const uint64_t quick = harness_.MustSubmit(CoreHarness::Ask(10, 100, 3));
  harness_.Step();
  EXPECT_EQ(harness_.told[quick].admitted, 1);
  EXPECT_EQ(harness_.told[blocked_].admitted, 0);
  harness_.RunAll();
  EXPECT_THAT(harness_.told[blocked_].tokens, SizeIs(10));
}

TEST_F(CoreBypass, WhoWouldHoldItUpMayNot) {
  const uint64_t slow = harness_.MustSubmit(CoreHarness::Ask(10, 1000, 3));
  harness_.Step();
  EXPECT_EQ(harness_.told[slow].admitted, 0);
  harness_.RunAll();
  EXPECT_THAT(harness_.told[slow].tokens, SizeIs(1000));
}

TEST_F(CoreBypass, AnUnovertakableHeadIsNotPassedForEver) {
  for (int i = 0; i < 20; ++i) {
    harness_.MustSubmit(CoreHarness::Ask(10, 2, 10 + i));
    for (int step = 0; step < 3; ++step) harness_.Step();
  }
  EXPECT_EQ(harness_.core.GetLedger().overtakes, 8u);
}

}  // namespace
}  // namespace quartet::coordinator
