#include <gmock/gmock.h>

#include <algorithm>
#include <string>
#include <vector>

#include "services/coordinator/core/core.h"
#include "tests/unit/coordinator/core_harness.h"

// What is refused, what is promised, what expires, and who is paused.

namespace quartet::coordinator {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using Kind = SubmitOutcome::Kind;

// 1 ms for each token of a prompt, 10 ms for a step.
TimeUs StepUs(const StepPlan& plan) {
  TimeUs us = 10000;
  for (const PlanRow& row : plan.rows) {
    if (row.kind == PlanRow::Kind::kPrefill) us += TimeUs{1000} * row.n_tokens;
  }
  return us;
}

// One place, and a queue of four; the times of steps are known.
class CoreAdmission : public ::testing::Test {
 protected:
  explicit CoreAdmission(CoreConfig config = Config()) : harness_(config) {
    harness_.step_us = StepUs;
    for (int i = 1; i <= 8; ++i) harness_.MustSubmit(CoreHarness::Ask(100 * i, 1, i));
    harness_.RunAll();
  }
  static CoreConfig Config() {
    CoreConfig config = CoreHarness::Config();
    config.slots = 1;
    config.max_num_batched_tokens = 512;
    return config;
  }
  // Prompts of 1,000 tokens: each takes about a second.
  void FillQueue() {
    while (harness_.core.GetLedger().waiting < 8) {
      harness_.MustSubmit(CoreHarness::Ask(1000, 1, next_salt_++));
    }
  }

  CoreHarness harness_;
  int next_salt_ = 100;
};

TEST_F(CoreAdmission, AFullQueueSaysWhenWhatIsBeforeWillBeDone) {
  FillQueue();
  const TimeUs asked = harness_.now;
  const SubmitOutcome outcome = harness_.Submit(CoreHarness::Ask(10, 1, 50));
  ASSERT_EQ(outcome.kind, Kind::kQueueFull);
  harness_.RunAll();
  const double took_ms = static_cast<double>(harness_.now - asked) / 1000;
  EXPECT_NEAR(outcome.retry_after_ms, took_ms, 0.3 * took_ms);
}

TEST_F(CoreAdmission, NotAllRefusedAreSentBackAtTheSameTimeButEachAlwaysAtItsOwn) {
  FillQueue();
  std::vector<uint32_t> after;
  for (int i = 0; i < 100; ++i) {
    Request request = CoreHarness::Ask(10, 1, i);
    after.push_back(harness_.Submit(request).retry_after_ms);
    EXPECT_EQ(harness_.Submit(request).retry_after_ms, after.back());
  }
  const auto [least, most] = std::minmax_element(after.begin(), after.end());
  EXPECT_GT(*most, *least * 1.3);
  EXPECT_LE(*most, *least * 1.5);
}

TEST_F(CoreAdmission, RetryAfterIsASecondAtLeastAndAMinuteAtMost) {
  CoreConfig config = Config();
  config.max_queued_requests = 1;
  CoreHarness quick(config);
  quick.MustSubmit(CoreHarness::Ask(1, 1));
  EXPECT_EQ(quick.Submit(CoreHarness::Ask(1, 1)).retry_after_ms, 1000u);

  harness_.step_us = [](const StepPlan&) { return TimeUs{100000000}; };
  FillQueue();
  for (int i = 0; i < 3; ++i) harness_.Step();
  FillQueue();
  EXPECT_EQ(harness_.Submit(CoreHarness::Ask(10, 1, 50)).retry_after_ms, 60000u);
}

TEST_F(CoreAdmission, WhatCannotMakeItsDeadlineIsNotLetIn) {
  for (int i = 0; i < 4; ++i) harness_.MustSubmit(CoreHarness::Ask(1000, 1, i));
  Request late = CoreHarness::Ask(1000, 1, 9);
  late.first_token_deadline_ms = 3000;
  SubmitOutcome outcome = harness_.Submit(late);
  EXPECT_EQ(outcome.kind, Kind::kTooLate);
  EXPECT_THAT(outcome.message, HasSubstr("its deadline is 3000 ms"));
  EXPECT_GE(outcome.retry_after_ms, 1000u);
  late.first_token_deadline_ms = 0;
  late.total_deadline_ms = 4500;
  EXPECT_EQ(harness_.Submit(late).kind, Kind::kTooLate);
  late.total_deadline_ms = 8000;
  EXPECT_EQ(harness_.Submit(late).kind, Kind::kAccepted);
  // A short one passes the others.
  Request brief = CoreHarness::Ask(100, 1, 10);
  brief.first_token_deadline_ms = 3000;
  EXPECT_EQ(harness_.Submit(brief).kind, Kind::kAccepted);
}

TEST_F(CoreAdmission, TheExpectedTimeOfTheFirstTokenIsRight) {
  std::vector<Output> first_tokens;
  for (int i = 0; i < 6; ++i) harness_.MustSubmit(CoreHarness::Ask(1000, 1, i));
  harness_.RunAll();
  for (const auto& [id, told] : harness_.told) {
    if (id <= 8) continue;  // from before anything was known
    ASSERT_TRUE(told.first_token.has_value());
    const RequestTimes& times = told.first_token->times;
    const auto took = static_cast<double>(times.first_token - times.submitted);
    EXPECT_NEAR(static_cast<double>(told.first_token->expected_first_token - times.submitted), took,
                0.2 * took);
  }
}

TEST(CoreAdmissionAtStart, BeforeAnyPromptWasSeenNobodyIsRefusedForItsDeadline) {
  CoreHarness harness(CoreHarness::Config());
  Request request = CoreHarness::Ask(2000, 1);
  request.first_token_deadline_ms = 1;
  EXPECT_EQ(harness.Submit(request).kind, Kind::kAccepted);
}

// ---- deadlines ---------------------------------------------------------------------------------

CoreConfig WithTimeouts() {
  CoreConfig config = CoreHarness::Config();
  config.slots = 1;
  config.queue_timeout_ms = 2000;
  config.total_timeout_ms = 10000;
  return config;
}

TEST(CoreDeadlines, WhoWaitsTooLongForItsPlaceIsTold) {
  CoreHarness harness(WithTimeouts());
  harness.MustSubmit(CoreHarness::Ask(10, 1000, 1));
  harness.Step();
  harness.now += 1000000;
  const uint64_t waits = harness.MustSubmit(CoreHarness::Ask(10, 5, 2));
  const TimeUs deadline = harness.now + 2000000;
  EXPECT_EQ(harness.core.NextDeadline(), deadline);
  harness.core.ExpireDeadlines(deadline - 1);
  harness.Drain();
  EXPECT_THAT(harness.told[waits].terminals, IsEmpty());
  harness.core.ExpireDeadlines(deadline);
  harness.Drain();
  ASSERT_THAT(harness.told[waits].terminals, SizeIs(1));
  EXPECT_EQ(harness.told[waits].terminals[0].kind, Output::Kind::kExpired);
  EXPECT_EQ(harness.told[waits].terminals[0].message,
            "its deadline of 2000 ms passed after 0 tokens");
  EXPECT_EQ(harness.core.GetLedger().expired, 1u);
  EXPECT_EQ(harness.core.GetLedger().waiting, 0u);
}

TEST(CoreDeadlines, TheTotalEndsAnAnswerInItsMiddleAlsoWhileAStepRuns) {
  CoreHarness harness(WithTimeouts());
  const uint64_t id = harness.MustSubmit(CoreHarness::Ask(10, 1000, 1));
  for (int i = 0; i < 3; ++i) harness.Step();
  harness.Plan();
  harness.core.ExpireDeadlines(harness.now + 10000000);
  harness.Drain();
  EXPECT_EQ(harness.told[id].terminals.at(0).message,
            "its deadline of 10000 ms passed after 3 tokens");
  EXPECT_EQ(harness.core.GetLedger().slots_used, 0u);
  harness.Answer();
  EXPECT_THAT(harness.told[id].tokens, SizeIs(3)) << "the step in flight is void";
  EXPECT_EQ(harness.core.NextDeadline(), std::nullopt);
}

TEST(CoreDeadlines, AFirstTokenKeepsTheFirstDeadlineAndTheTotalOfTheRequestCounts) {
  CoreHarness harness(WithTimeouts());
  Request request = CoreHarness::Ask(10, 1000, 1);
  request.first_token_deadline_ms = 500;
  request.total_deadline_ms = 5000;
  const TimeUs submitted = harness.now;
  harness.MustSubmit(request);
  EXPECT_EQ(harness.core.NextDeadline(), submitted + 500000);
  harness.Step();
  EXPECT_EQ(harness.core.NextDeadline(), submitted + 5000000);
}

TEST(CoreDeadlines, WithoutTimeoutsNothingExpires) {
  CoreHarness harness(CoreHarness::Config());
  harness.MustSubmit(CoreHarness::Ask(10, 5, 1));
  EXPECT_EQ(harness.core.NextDeadline(), std::nullopt);
  harness.core.ExpireDeadlines(harness.now + 1000000000000);
  harness.RunAll();
  EXPECT_EQ(harness.core.GetLedger().finished, 1u);
}

// ---- clients that do not read ------------------------------------------------------------------

TEST(CorePause, APausedSequenceHasNoRowsAndKeepsItsPlaceAndItsText) {
  CoreHarness harness(CoreHarness::Config());
  const Request request = CoreHarness::Ask(10, 30, 1);
  const uint64_t id = harness.MustSubmit(request);
  const uint64_t other = harness.MustSubmit(CoreHarness::Ask(10, 30, 2));
  for (int i = 0; i < 5; ++i) harness.Step();
  harness.core.OnPause(id, true);
  for (int i = 0; i < 10; ++i) EXPECT_THAT(harness.Step()->rows, SizeIs(1));
  EXPECT_THAT(harness.told[id].tokens, SizeIs(5));
  EXPECT_THAT(harness.told[other].tokens, SizeIs(15));
  EXPECT_EQ(harness.core.GetLedger().paused, 1u);
  EXPECT_EQ(harness.core.GetLedger().slots_used, 2u);
  harness.core.OnPause(id, false);
  harness.RunAll();
  EXPECT_EQ(harness.told[id].tokens, harness.Alone(request, 30));
}

TEST(CorePause, WhileAStepRunsItsTokenStillCounts) {
  CoreHarness harness(CoreHarness::Config());
  const uint64_t id = harness.MustSubmit(CoreHarness::Ask(10, 30, 1));
  harness.Step();
  harness.Plan();
  harness.core.OnPause(id, true);
  harness.Answer();
  EXPECT_THAT(harness.told[id].tokens, SizeIs(2));
  EXPECT_FALSE(harness.Step().has_value()) << "nothing else is to do";
}

TEST(CorePause, APausedSequenceCanBeCancelledAndTruncated) {
  CoreHarness harness(CoreHarness::Config());
  const uint64_t cancelled = harness.MustSubmit(CoreHarness::Ask(10, 30, 1));
  const uint64_t truncated = harness.MustSubmit(CoreHarness::Ask(10, 30, 2));
  harness.Step();
  harness.core.OnPause(cancelled, true);
  harness.core.OnPause(truncated, true);
  harness.Cancel(cancelled);
  EXPECT_EQ(harness.Truncate(truncated, 1), Core::TruncateOutcome::kDone);
  EXPECT_EQ(harness.core.GetLedger().slots_used, 0u);
  harness.core.OnPause(cancelled, true);  // it has ended: nothing
}

TEST(CorePause, OnlyPausedDecodersCountAsNone) {
  CoreConfig config = CoreHarness::Config();
  config.prefill_quantum_ms = 1;
  CoreHarness harness(config);
  const uint64_t id = harness.MustSubmit(CoreHarness::Ask(10, 30, 1));
  harness.Step();
  harness.core.OnPause(id, true);
  harness.MustSubmit(CoreHarness::Ask(1000, 1, 2));
  EXPECT_EQ(harness.Step()->rows.at(0).n_tokens, 512u);
}

}  // namespace
}  // namespace quartet::coordinator
