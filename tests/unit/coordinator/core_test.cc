#include "services/coordinator/core/core.h"

#include <gmock/gmock.h>

#include <algorithm>

#include "services/coordinator/core/plan_hash.h"
#include "tests/unit/coordinator/core_harness.h"

namespace quartet::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

std::vector<uint32_t> ChunkSizes(CoreHarness& harness, int steps) {
  std::vector<uint32_t> sizes;
  for (int i = 0; i < steps; ++i) {
    auto plan = harness.Step();
    if (!plan.has_value()) break;
    for (const PlanRow& row : plan->rows) {
      if (row.kind == PlanRow::Kind::kPrefill) sizes.push_back(row.n_tokens);
    }
  }
  return sizes;
}

uint32_t Tokens(const StepPlan& plan) {
  uint32_t tokens = 0;
  for (const PlanRow& row : plan.rows) tokens += row.n_tokens;
  return tokens;
}

// A rule under which every sequence says 500, 501, 502, ... from the end of its prompt.
quartet::testing::TokenRule Counting(uint32_t prompt_tokens) {
  return [prompt_tokens](uint64_t, uint32_t position, const v1::SamplingParams&) {
    return static_cast<int32_t>(500 + position - prompt_tokens);
  };
}

// ---- one request -----------------------------------------------------------------------------

TEST(CoreOneRequest, SaysWhatItSaysAlone) {
  CoreHarness harness(CoreHarness::Config());
  const Request request = CoreHarness::Ask(100, 20, 1);
  const uint64_t id = harness.MustSubmit(request);
  harness.RunAll();
  const auto& told = harness.told[id];
  EXPECT_EQ(told.tokens, harness.Alone(request, 20));
  ASSERT_THAT(told.terminals, SizeIs(1));
  EXPECT_EQ(told.terminals[0].kind, Output::Kind::kFinished);
  EXPECT_EQ(told.terminals[0].reason, FinishReason::kLength);
  EXPECT_EQ(told.terminals[0].prompt_tokens, 100u);
  EXPECT_EQ(told.terminals[0].completion_tokens, 20u);
  EXPECT_EQ(told.terminals[0].cached_tokens, 0u);
}

TEST(CoreOneRequest, PrefillRowCarriesTokensAndDecodeRowTakesTheDevicesLastToken) {
  CoreHarness harness(CoreHarness::Config());
  harness.MustSubmit(CoreHarness::Ask(10, 5));
  auto first = harness.Step();
  ASSERT_TRUE(first.has_value());
  ASSERT_THAT(first->opens, SizeIs(1));
  EXPECT_EQ(first->opens[0].prompt_tokens, 10u);
  ASSERT_THAT(first->rows, SizeIs(1));
  EXPECT_EQ(first->rows[0].kind, PlanRow::Kind::kPrefill);
  EXPECT_EQ(first->rows[0].tokens, CoreHarness::Prompt(10));
  EXPECT_TRUE(first->rows[0].sample);
  EXPECT_THAT(first->rows[0].new_pages, SizeIs(1));
  auto second = harness.Step();
  ASSERT_TRUE(second.has_value());
  ASSERT_THAT(second->rows, SizeIs(1));
  EXPECT_THAT(second->opens, IsEmpty());
  EXPECT_EQ(second->rows[0].kind, PlanRow::Kind::kDecode);
  EXPECT_TRUE(second->rows[0].from_device);
  EXPECT_THAT(second->rows[0].tokens, IsEmpty());
  EXPECT_EQ(second->rows[0].position, 10u);
  EXPECT_EQ(second->rows[0].n_tokens, 1u);
  EXPECT_THAT(second->rows[0].new_pages, IsEmpty());
}

TEST(CoreOneRequest, StepIdsAreDenseAndTheEpochIsTheConfigured) {
  CoreHarness harness(CoreHarness::Config());
  harness.MustSubmit(CoreHarness::Ask(10, 5));
  for (uint64_t step = 1; step <= 5; ++step) {
    auto plan = harness.Step();
    ASSERT_TRUE(plan.has_value());
    EXPECT_EQ(plan->step_id, step);
    EXPECT_EQ(plan->epoch, 7u);
    EXPECT_EQ(plan->deadline_ms, 60000u);
    EXPECT_EQ(plan->plan_hash, PlanHash(*plan));
  }
}

TEST(CoreOneRequest, ItsCloseComesWithoutRowsWhenNothingElseIsToDo) {
  CoreHarness harness(CoreHarness::Config());
  harness.MustSubmit(CoreHarness::Ask(10, 1));
  auto step = harness.Step();
  ASSERT_TRUE(step.has_value());
  auto closing = harness.Step();
  ASSERT_TRUE(closing.has_value());
  EXPECT_THAT(closing->rows, IsEmpty());
  EXPECT_EQ(closing->step_id, 0u);
  EXPECT_THAT(closing->closes, ElementsAre(step->rows[0].seq_uid));
  EXPECT_FALSE(harness.Step().has_value());
  EXPECT_EQ(harness.workers.open_sequences(), 0u);
}

TEST(CoreOneRequest, MaxTokensZeroMeansTheRestOfTheContext) {
  CoreConfig config = CoreHarness::Config();
  config.max_model_len = 300;
  CoreHarness harness(config);
  const Request request = CoreHarness::Ask(250, 0);
  const uint64_t id = harness.MustSubmit(request);
  harness.RunAll();
  EXPECT_EQ(harness.told[id].tokens, harness.Alone(request, 50));
  EXPECT_EQ(harness.told[id].terminals[0].reason, FinishReason::kLength);
}

TEST(CoreOneRequest, TimesOfEachStageComeWithTheOutputs) {
  CoreHarness harness(CoreHarness::Config());
  const uint64_t id = harness.MustSubmit(CoreHarness::Ask(1000, 3));
  harness.RunAll();
  const RequestTimes& times = harness.told[id].terminals[0].times;
  EXPECT_EQ(times.submitted, 1000000);
  EXPECT_EQ(times.admitted, 1000000);
  EXPECT_EQ(times.first_token, 1002000);  // two chunks
  EXPECT_EQ(times.last_token, 1004000);
}

// ---- chunks and the token budget -------------------------------------------------------------

TEST(CoreChunks, APromptLongerThanTheBudgetGoesInMultiplesOf64AndARest) {
  CoreConfig config = CoreHarness::Config();
  config.max_num_batched_tokens = 500;
  CoreHarness harness(config);
  harness.MustSubmit(CoreHarness::Ask(1000, 1));
  EXPECT_THAT(ChunkSizes(harness, 10), ElementsAre(448, 448, 104));
}

TEST(CoreChunks, OnlyTheLastChunkSamples) {
  CoreHarness harness(CoreHarness::Config());
  harness.MustSubmit(CoreHarness::Ask(1000, 1));
  EXPECT_FALSE(harness.Step()->rows[0].sample);
  EXPECT_TRUE(harness.Step()->rows[0].sample);
}

TEST(CoreChunks, PrefillChunkLimitsOneSequenceBelowTheBudget) {
  CoreConfig config = CoreHarness::Config();
  config.prefill_chunk = 64;
  CoreHarness harness(config);
  const Request request = CoreHarness::Ask(200, 4);
  const uint64_t id = harness.MustSubmit(request);
  EXPECT_THAT(ChunkSizes(harness, 10), ElementsAre(64, 64, 64, 8));
  EXPECT_EQ(harness.told[id].tokens, harness.Alone(request, 4));
}

TEST(CoreChunks, DecodingSequencesComeFirstAndAPromptGetsWhatTheyLeave) {
  CoreHarness harness(CoreHarness::Config());
  harness.MustSubmit(CoreHarness::Ask(10, 50, 1));
  harness.MustSubmit(CoreHarness::Ask(10, 50, 2));
  harness.Step();
  harness.MustSubmit(CoreHarness::Ask(1000, 5, 3));
  auto plan = harness.Step();
  ASSERT_TRUE(plan.has_value());
  ASSERT_THAT(plan->rows, SizeIs(3));
  EXPECT_EQ(plan->rows[0].kind, PlanRow::Kind::kDecode);
  EXPECT_EQ(plan->rows[1].kind, PlanRow::Kind::kDecode);
  EXPECT_EQ(plan->rows[2].kind, PlanRow::Kind::kPrefill);
  EXPECT_EQ(plan->rows[2].n_tokens, 448u);  // 510 are left
}

TEST(CoreChunks, NoStepIsLargerThanTheBudget) {
  CoreConfig config = CoreHarness::Config();
  config.max_num_batched_tokens = 70;
  CoreHarness harness(config);
  for (int i = 0; i < 8; ++i) harness.MustSubmit(CoreHarness::Ask(150 + i * 20, 10, i));
  while (auto plan = harness.Step()) EXPECT_LE(Tokens(*plan), 70u);
  for (const auto& [id, told] : harness.told) EXPECT_THAT(told.tokens, SizeIs(10));
}

TEST(CoreChunks, AShortPromptFillsWhatALongOneLeaves) {
  CoreHarness harness(CoreHarness::Config());
  harness.MustSubmit(CoreHarness::Ask(600, 5, 1));
  harness.Step();  // 512 of it
  harness.MustSubmit(CoreHarness::Ask(100, 5, 2));
  auto plan = harness.Step();
  ASSERT_TRUE(plan.has_value());
  ASSERT_THAT(plan->rows, SizeIs(2));
  EXPECT_EQ(plan->rows[0].n_tokens, 88u);
  EXPECT_EQ(plan->rows[1].n_tokens, 100u);
}

TEST(CoreChunks, APromptIsAdmittedOnlyWithBudgetForItsFirstChunk) {
  CoreConfig config = CoreHarness::Config();
  config.max_num_batched_tokens = 191;  // two chunks of 64 and something
  config.prefill_chunk = 64;
  CoreHarness harness(config);
  for (int i = 0; i < 3; ++i) harness.MustSubmit(CoreHarness::Ask(640, 2, i));
  std::vector<int> rows_of(4, 0);
  for (int step = 0; step < 6; ++step) {
    auto plan = harness.Step();
    for (const PlanRow& row : plan->rows) ++rows_of[row.seq_uid];
  }
  EXPECT_EQ(rows_of[1], 6);
  EXPECT_EQ(rows_of[2], 6);
  EXPECT_EQ(rows_of[3], 0) << "admitted without budget for its first chunk";
  harness.RunAll();
  EXPECT_EQ(harness.core.GetLedger().finished, 3u);
}

// ---- slots -----------------------------------------------------------------------------------

TEST(CoreSlots, WhoComesWhenAllAreTakenWaitsForTheFirstThatIsFree) {
  CoreHarness harness(CoreHarness::Config());
  std::vector<uint64_t> ids;
  for (int i = 0; i < 6; ++i) ids.push_back(harness.MustSubmit(CoreHarness::Ask(10, 3 + i, i)));
  harness.Step();
  EXPECT_EQ(harness.core.GetLedger().running, 4u);
  EXPECT_EQ(harness.core.GetLedger().waiting, 2u);
  EXPECT_EQ(harness.told[ids[4]].admitted, 0);
  harness.Step();
  harness.Step();  // the first one ends here
  EXPECT_THAT(harness.told[ids[0]].terminals, SizeIs(1));
  auto plan = harness.Plan();
  ASSERT_TRUE(plan.has_value());
  EXPECT_EQ(harness.told[ids[4]].admitted, 1);
  EXPECT_EQ(harness.told[ids[5]].admitted, 0);
  EXPECT_THAT(plan->closes, ElementsAre(1));
  ASSERT_THAT(plan->opens, SizeIs(1));
  EXPECT_EQ(plan->opens[0].slot, 0u);
  harness.Answer();
  harness.RunAll();
  EXPECT_EQ(harness.core.GetLedger().finished, 6u);
}

TEST(CoreSlots, AdmissionKeepsTheOrderOfArrival) {
  CoreConfig config = CoreHarness::Config();
  config.slots = 1;
  CoreHarness harness(config);
  for (int i = 0; i < 5; ++i) harness.MustSubmit(CoreHarness::Ask(5, 2, i));
  std::vector<uint64_t> opened;
  while (auto plan = harness.Step()) {
    for (const SequenceOpen& open : plan->opens) opened.push_back(open.sampling.seed);
  }
  EXPECT_THAT(opened, ElementsAre(0, 1, 2, 3, 4));
}

// ---- pages and preemption --------------------------------------------------------------------

TEST(CorePages, ASequenceTakesAPageWhenItReachesIt) {
  CoreHarness harness(CoreHarness::Config());
  harness.MustSubmit(CoreHarness::Ask(255, 4));
  auto plan = harness.Step();
  EXPECT_THAT(plan->rows[0].new_pages, SizeIs(1));
  EXPECT_EQ(harness.core.GetLedger().pages_used, 1u);
  plan = harness.Step();  // absorbs position 255
  EXPECT_THAT(plan->rows[0].new_pages, IsEmpty());
  plan = harness.Step();  // position 256
  EXPECT_THAT(plan->rows[0].new_pages, SizeIs(1));
  EXPECT_EQ(harness.core.GetLedger().pages_used, 2u);
  harness.RunAll();
  EXPECT_EQ(harness.core.GetLedger().pages_used, 0u);
}

CoreConfig FourPages() {
  CoreConfig config = CoreHarness::Config();
  config.max_model_len = 1024;
  config.pages = 4;
  return config;
}

TEST(CorePages, WhenTheyRunOutTheYoungestIsPreemptedAndNothingIsSaidTwice) {
  CoreHarness harness(FourPages());
  const Request old = CoreHarness::Ask(250, 700, 1);
  const Request young = CoreHarness::Ask(250, 300, 2);
  const uint64_t old_id = harness.MustSubmit(old);
  const uint64_t young_id = harness.MustSubmit(young);
  harness.RunAll();
  EXPECT_GE(harness.core.GetLedger().preemptions, 1u);
  EXPECT_EQ(harness.told[old_id].tokens, harness.Alone(old, 700));
  EXPECT_EQ(harness.told[young_id].tokens, harness.Alone(young, 300));
  EXPECT_EQ(harness.told[young_id].admitted, 1);
  EXPECT_EQ(harness.core.GetLedger().generated_tokens, 1000u);
  EXPECT_EQ(harness.core.GetLedger().prompt_tokens, 500u);
}

TEST(CorePages, APreemptedSequenceIsRecomputedUnderANewNumberFromPromptAndSampledTokens) {
  CoreHarness harness(FourPages());
  harness.MustSubmit(CoreHarness::Ask(250, 700, 1));
  const uint64_t young = harness.MustSubmit(CoreHarness::Ask(250, 300, 2));
  while (harness.core.GetLedger().preemptions == 0) ASSERT_TRUE(harness.Step().has_value());
  EXPECT_EQ(harness.core.GetLedger().waiting, 1u);
  const size_t said = harness.told[young].tokens.size();
  std::optional<StepPlan> plan;
  do {
    plan = harness.Plan();
    ASSERT_TRUE(plan.has_value());
    if (plan->opens.empty()) harness.Answer();
  } while (plan->opens.empty());
  EXPECT_EQ(plan->opens[0].seq_uid, 3u);
  EXPECT_EQ(plan->opens[0].prompt_tokens, 250u);
  EXPECT_EQ(plan->rows.back().kind, PlanRow::Kind::kPrefill);
  EXPECT_EQ(plan->rows.back().position, 0u);
  EXPECT_EQ(harness.told[young].tokens.size(), said);
  harness.Answer();
  harness.RunAll();
  EXPECT_THAT(harness.told[young].tokens, SizeIs(300));
}

TEST(CorePages, TheOldestIsNeverPreempted) {
  CoreHarness harness(FourPages());
  const uint64_t oldest = harness.MustSubmit(CoreHarness::Ask(10, 1000, 0));
  for (int i = 1; i < 6; ++i) harness.MustSubmit(CoreHarness::Ask(200, 500, i));
  // Its tokens come one per step, without a gap, to the end.
  int steps = 0;
  while (harness.told[oldest].terminals.empty()) {
    ASSERT_TRUE(harness.Step().has_value());
    EXPECT_THAT(harness.told[oldest].tokens, SizeIs(++steps));
  }
  EXPECT_GE(harness.core.GetLedger().preemptions, 1u);
  harness.RunAll();
  EXPECT_EQ(harness.core.GetLedger().finished, 6u);
}

TEST(CorePages, AnOldPromptTakesThePageOfAYoungOneThatHadItsRowAlready) {
  // Decode rows are planned first; then the prompt needs a page, and the youngest decoder loses
  // both its place and its row of the same plan.
  CoreConfig config = CoreHarness::Config();
  config.max_model_len = 8192;
  config.page_tokens = 64;
  config.pages = 128;
  config.prefill_chunk = 64;
  CoreHarness harness(config);
  const Request old = CoreHarness::Ask(7800, 3, 9);
  const uint64_t old_id = harness.MustSubmit(old);
  std::vector<std::pair<uint64_t, Request>> young;
  for (int i = 0; i < 3; ++i) {
    Request request = CoreHarness::Ask(63, 300, i);
    young.emplace_back(harness.MustSubmit(request), request);
  }
  std::optional<StepPlan> plan;
  while (harness.core.GetLedger().preemptions == 0) {
    plan = harness.Step();
    ASSERT_TRUE(plan.has_value());
  }
  EXPECT_THAT(harness.told[old_id].tokens, IsEmpty()) << "it is still in its prompt";
  EXPECT_THAT(plan->rows, SizeIs(3));
  EXPECT_EQ(plan->rows.back().kind, PlanRow::Kind::kPrefill);
  harness.RunAll();
  EXPECT_EQ(harness.told[old_id].tokens, harness.Alone(old, 3));
  for (const auto& [id, request] : young) {
    EXPECT_EQ(harness.told[id].tokens, harness.Alone(request, 300));
  }
}

TEST(CorePages, APromptIsAdmittedOnlyWhenAllOfItHasRoom) {
  CoreHarness harness(FourPages());
  harness.MustSubmit(CoreHarness::Ask(500, 500, 1));
  harness.Step();
  const uint64_t second = harness.MustSubmit(CoreHarness::Ask(700, 10, 2));
  for (int i = 0; i < 20; ++i) harness.Step();
  EXPECT_EQ(harness.told[second].admitted, 0);
  EXPECT_EQ(harness.core.GetLedger().pages_used, 3u);
  harness.RunAll();
  EXPECT_THAT(harness.told[second].tokens, SizeIs(10));
  EXPECT_EQ(harness.core.GetLedger().preemptions, 0u);
}

// ---- stop rules ------------------------------------------------------------------------------

TEST(CoreStop, AnEndIdEndsTheAnswerAndCounts) {
  CoreHarness harness(CoreHarness::Config(), Counting(10));
  Request request = CoreHarness::Ask(10, 50);
  request.end_ids = {999, 503};
  const uint64_t id = harness.MustSubmit(request);
  harness.RunAll();
  EXPECT_THAT(harness.told[id].tokens, ElementsAre(500, 501, 502, 503));
  EXPECT_EQ(harness.told[id].terminals[0].reason, FinishReason::kEndToken);
  EXPECT_EQ(harness.told[id].terminals[0].completion_tokens, 4u);
}

TEST(CoreStop, WithIgnoreEosEndIdsAreTokensLikeOthersButStopIdsStillStop) {
  CoreHarness harness(CoreHarness::Config(), Counting(10));
  Request request = CoreHarness::Ask(10, 50);
  request.end_ids = {503};
  request.stop_ids = {506};
  request.ignore_eos = true;
  const uint64_t id = harness.MustSubmit(request);
  harness.RunAll();
  EXPECT_THAT(harness.told[id].tokens, SizeIs(7));
  EXPECT_EQ(harness.told[id].terminals[0].reason, FinishReason::kStopId);
  EXPECT_EQ(harness.told[id].terminals[0].stop_id, 506);
}

TEST(CoreStop, AnEndIdAtTheLastAllowedTokenIsAnEndNotALength) {
  CoreHarness harness(CoreHarness::Config(), Counting(10));
  Request request = CoreHarness::Ask(10, 4);
  request.end_ids = {503};
  const uint64_t id = harness.MustSubmit(request);
  harness.RunAll();
  EXPECT_EQ(harness.told[id].terminals[0].reason, FinishReason::kEndToken);
}

TEST(CoreStop, MaxTokensOneIsAnsweredByThePrefillAlone) {
  CoreHarness harness(CoreHarness::Config());
  const uint64_t id = harness.MustSubmit(CoreHarness::Ask(10, 1));
  harness.Step();
  EXPECT_THAT(harness.told[id].tokens, SizeIs(1));
  EXPECT_THAT(harness.told[id].terminals, SizeIs(1));
  EXPECT_EQ(harness.core.GetLedger().slots_used, 0u);
}

// ---- truncate --------------------------------------------------------------------------------

TEST(CoreTruncate, EndsTheRequestWithTheTokensThatCount) {
  CoreHarness harness(CoreHarness::Config());
  const uint64_t id = harness.MustSubmit(CoreHarness::Ask(10, 50));
  for (int i = 0; i < 5; ++i) harness.Step();
  EXPECT_EQ(harness.Truncate(id, 3), Core::TruncateOutcome::kDone);
  const Output& end = harness.told[id].terminals.at(0);
  EXPECT_EQ(end.reason, FinishReason::kTruncated);
  EXPECT_EQ(end.completion_tokens, 3u);
  EXPECT_EQ(harness.core.GetLedger().pages_used, 0u);
  EXPECT_EQ(harness.Truncate(id, 3), Core::TruncateOutcome::kEnded);
}

TEST(CoreTruncate, WhileAStepRunsItsTokenIsDropped) {
  CoreHarness harness(CoreHarness::Config());
  const uint64_t id = harness.MustSubmit(CoreHarness::Ask(10, 50));
  harness.Step();
  harness.Step();
  harness.Plan();
  EXPECT_EQ(harness.Truncate(id, 2), Core::TruncateOutcome::kDone);
  harness.Answer();
  EXPECT_THAT(harness.told[id].tokens, SizeIs(2));
  EXPECT_THAT(harness.told[id].terminals, SizeIs(1));
}

TEST(CoreTruncate, BeyondWhatWasSampledChangesNothing) {
  CoreHarness harness(CoreHarness::Config());
  const uint64_t id = harness.MustSubmit(CoreHarness::Ask(10, 50));
  harness.Step();
  EXPECT_EQ(harness.Truncate(id, 2), Core::TruncateOutcome::kBeyond);
  EXPECT_THAT(harness.told[id].terminals, IsEmpty());
  harness.RunAll();
  EXPECT_THAT(harness.told[id].tokens, SizeIs(50));
}

// ---- cancel ----------------------------------------------------------------------------------

TEST(CoreCancel, WhileQueuedItNeverRuns) {
  CoreConfig config = CoreHarness::Config();
  config.slots = 1;
  CoreHarness harness(config);
  harness.MustSubmit(CoreHarness::Ask(10, 5, 1));
  const uint64_t waiting = harness.MustSubmit(CoreHarness::Ask(10, 5, 2));
  harness.Step();
  harness.Cancel(waiting);
  EXPECT_EQ(harness.told[waiting].terminals.at(0).kind, Output::Kind::kCancelled);
  while (auto plan = harness.Step()) EXPECT_THAT(plan->opens, IsEmpty());
}

TEST(CoreCancel, InTheMiddleOfAPrefillThereIsNoFurtherChunk) {
  CoreHarness harness(CoreHarness::Config());
  const uint64_t id = harness.MustSubmit(CoreHarness::Ask(2000, 5));
  harness.Step();
  harness.Cancel(id);
  EXPECT_EQ(harness.core.GetLedger().pages_used, 0u);
  EXPECT_EQ(harness.core.GetLedger().slots_used, 0u);
  auto plan = harness.Step();
  ASSERT_TRUE(plan.has_value());
  EXPECT_THAT(plan->rows, IsEmpty());
  EXPECT_THAT(plan->closes, SizeIs(1));
}

TEST(CoreCancel, WhileAStepRunsItsResultIsDroppedAndItsPlaceIsFreeAtOnce) {
  CoreHarness harness(CoreHarness::Config());
  const uint64_t gone = harness.MustSubmit(CoreHarness::Ask(10, 50, 1));
  const Request kept = CoreHarness::Ask(10, 20, 2);
  const uint64_t stays = harness.MustSubmit(kept);
  harness.Step();
  harness.Plan();
  harness.Cancel(gone);
  EXPECT_EQ(harness.core.GetLedger().slots_used, 1u);
  harness.Answer();
  EXPECT_THAT(harness.told[gone].tokens, SizeIs(1));
  auto plan = harness.Step();
  EXPECT_THAT(plan->rows, SizeIs(1));
  harness.RunAll();
  EXPECT_EQ(harness.told[stays].tokens, harness.Alone(kept, 20));
}

TEST(CoreCancel, AfterAPreemptionItLeavesTheQueue) {
  CoreHarness harness(FourPages());
  harness.MustSubmit(CoreHarness::Ask(250, 700, 1));
  const uint64_t young = harness.MustSubmit(CoreHarness::Ask(250, 300, 2));
  while (harness.core.GetLedger().preemptions == 0) ASSERT_TRUE(harness.Step().has_value());
  harness.Cancel(young);
  EXPECT_EQ(harness.core.GetLedger().waiting, 0u);
  EXPECT_EQ(harness.told[young].terminals.at(0).kind, Output::Kind::kCancelled);
  harness.RunAll();
  EXPECT_EQ(harness.core.GetLedger().finished, 1u);
}

TEST(CoreCancel, AfterTheEndItIsNothing) {
  CoreHarness harness(CoreHarness::Config());
  const uint64_t id = harness.MustSubmit(CoreHarness::Ask(10, 1));
  harness.RunAll();
  harness.Cancel(id);
  harness.Cancel(12345);
  EXPECT_THAT(harness.told[id].terminals, SizeIs(1));
  EXPECT_EQ(harness.core.GetLedger().cancelled, 0u);
}

// ---- refusals --------------------------------------------------------------------------------

TEST(CoreRefuse, MoreRequestsThanTheQueueHolds) {
  CoreHarness harness(CoreHarness::Config());
  for (int i = 0; i < 8; ++i) harness.MustSubmit(CoreHarness::Ask(10, 5, i));
  const SubmitOutcome outcome = harness.Submit(CoreHarness::Ask(10, 5, 9));
  EXPECT_EQ(outcome.kind, SubmitOutcome::Kind::kQueueFull);
  EXPECT_THAT(outcome.message, HasSubstr("the limit is 8"));
  harness.Step();  // four are admitted
  harness.MustSubmit(CoreHarness::Ask(10, 5, 9));
}

TEST(CoreRefuse, MorePromptTokensThanTheQueueHoldsUnlessItIsEmpty) {
  CoreConfig config = CoreHarness::Config();
  config.max_queued_tokens = 1000;
  CoreHarness harness(config);
  harness.MustSubmit(CoreHarness::Ask(1500, 5));
  const SubmitOutcome outcome = harness.Submit(CoreHarness::Ask(10, 5));
  EXPECT_EQ(outcome.kind, SubmitOutcome::Kind::kQueueFull);
  EXPECT_THAT(outcome.message, HasSubstr("1500 prompt tokens wait"));
}

TEST(CoreRefuse, PromptAndMaxTokensThatExceedTheContextWithExactCounts) {
  CoreHarness harness(CoreHarness::Config());
  SubmitOutcome outcome = harness.Submit(CoreHarness::Ask(2000, 49));
  EXPECT_EQ(outcome.kind, SubmitOutcome::Kind::kInvalid);
  EXPECT_EQ(outcome.message,
            "prompt (2000 tokens) + max_tokens (49) = 2049 exceeds the context of 2048 tokens");
  harness.MustSubmit(CoreHarness::Ask(2000, 48));
  outcome = harness.Submit(CoreHarness::Ask(2048, 0));
  EXPECT_EQ(outcome.kind, SubmitOutcome::Kind::kInvalid);
  EXPECT_THAT(outcome.message, HasSubstr("leaves no room"));
  // No overflow either.
  EXPECT_EQ(harness.Submit(CoreHarness::Ask(10, UINT32_MAX)).kind, SubmitOutcome::Kind::kInvalid);
}

struct Invalid {
  const char* name;
  std::function<void(Request&)> spoil;
  const char* message;
};

class CoreRefuseInvalid : public ::testing::TestWithParam<Invalid> {};

TEST_P(CoreRefuseInvalid, NamesWhatIsWrong) {
  CoreHarness harness(CoreHarness::Config());
  Request request = CoreHarness::Ask(10, 5);
  GetParam().spoil(request);
  const SubmitOutcome outcome = harness.Submit(request);
  EXPECT_EQ(outcome.kind, SubmitOutcome::Kind::kInvalid);
  EXPECT_THAT(outcome.message, HasSubstr(GetParam().message));
  EXPECT_EQ(harness.core.GetLedger().accepted, 0u);
}

INSTANTIATE_TEST_SUITE_P(
    Requests, CoreRefuseInvalid,
    ::testing::Values(
        Invalid{"EmptyPrompt", [](Request& r) { r.prompt_ids.clear(); }, "the prompt is empty"},
        Invalid{"TokenBeyondVocabulary", [](Request& r) { r.prompt_ids[3] = 1000; },
                "prompt token 3 is 1000; ids are 0 to 999"},
        Invalid{"NegativeToken", [](Request& r) { r.prompt_ids[0] = -1; }, "prompt token 0 is -1"},
        Invalid{"EndId",
                [](Request& r) {
                  r.end_ids = {1, 5000};
                },
                "end_ids contains 5000"},
        Invalid{"StopId", [](Request& r) { r.stop_ids = {-7}; }, "stop_ids contains -7"},
        Invalid{"TooManyStopIds", [](Request& r) { r.stop_ids.assign(2000, 1); },
                "stop_ids has 2000 entries"},
        Invalid{"Padding", [](Request& r) { r.first_padding_id = 1001; },
                "first_padding_id is 1001"},
        Invalid{"Temperature", [](Request& r) { r.sampling.temperature = -1; }, "temperature"},
        Invalid{"TemperatureNan", [](Request& r) { r.sampling.temperature = NAN; }, "temperature"},
        Invalid{"TopP", [](Request& r) { r.sampling.top_p = 1.5; }, "top_p"},
        Invalid{"MinP", [](Request& r) { r.sampling.min_p = NAN; }, "min_p"},
        Invalid{"Presence", [](Request& r) { r.sampling.presence_penalty = 2.5; },
                "presence_penalty is 2.5"},
        Invalid{"Frequency", [](Request& r) { r.sampling.frequency_penalty = NAN; },
                "frequency_penalty"},
        Invalid{"Repetition", [](Request& r) { r.sampling.repetition_penalty = 0; },
                "repetition_penalty is 0"},
        Invalid{"BiasId",
                [](Request& r) {
                  r.sampling.logit_bias = {{1000, 1.0f}};
                },
                "logit_bias contains 1000; ids are 0 to 999"},
        Invalid{"Bias",
                [](Request& r) {
                  r.sampling.logit_bias = {{1, 101.0f}};
                },
                "logit_bias is 101"},
        Invalid{"Banned", [](Request& r) { r.sampling.banned_ids = {-1}; },
                "banned_ids contains -1"},
        Invalid{"TopLogprobs", [](Request& r) { r.top_logprobs = 21; }, "top_logprobs is 21"},
        Invalid{"Thinking", [](Request& r) { r.thinking.emplace(); }, "thinking.end_ids is empty"},
        Invalid{"TopK", [](Request& r) { r.sampling.top_k = -2; }, "top_k is -2"}),
    [](const auto& info) { return info.param.name; });

// ---- log-probabilities -----------------------------------------------------------------------

TEST(CoreLogprobs, OfThePromptCoverEveryTokenAfterTheFirstOnceAlsoInChunks) {
  for (uint32_t chunk : {0u, 64u, 128u}) {
    CoreConfig config = CoreHarness::Config();
    config.prefill_chunk = chunk;
    CoreHarness harness(config);
    Request request = CoreHarness::Ask(300, 3);
    request.prompt_logprobs = true;
    request.logprobs = true;
    const uint64_t id = harness.MustSubmit(request);
    harness.RunAll();
    std::vector<float> expected;
    uint64_t state = 1;
    for (size_t i = 0; i + 1 < request.prompt_ids.size(); ++i) {
      state = quartet::testing::HashChainAbsorb(state, request.prompt_ids[i]);
      expected.push_back(quartet::testing::HashChainLogprob(state, request.prompt_ids[i + 1]));
    }
    EXPECT_EQ(harness.told[id].prompt_logprobs, expected) << "chunk " << chunk;
    EXPECT_THAT(harness.told[id].logprobs, SizeIs(3));
  }
}

TEST(CoreLogprobs, AreNotGivenAgainAfterAPreemption) {
  CoreHarness harness(FourPages());
  harness.MustSubmit(CoreHarness::Ask(250, 700, 1));
  Request request = CoreHarness::Ask(250, 300, 2);
  request.prompt_logprobs = true;
  const uint64_t id = harness.MustSubmit(request);
  harness.RunAll();
  EXPECT_GE(harness.core.GetLedger().preemptions, 1u);
  EXPECT_THAT(harness.told[id].prompt_logprobs, SizeIs(249));
  EXPECT_EQ(harness.told[id].tokens, harness.Alone(request, 300));
}

TEST(CoreLogprobs, AreNotGivenAgainWhenThePreemptionComesInTheMiddleOfThePrompt) {
  // Three old sequences grow over three pages each while a prompt of 122 of the 128 pages goes in
  // chunks of one page beside them. Alone, later, it goes in chunks of two.
  CoreConfig config = CoreHarness::Config();
  config.max_model_len = 8192;
  config.page_tokens = 64;
  config.pages = 128;
  config.max_num_batched_tokens = 130;
  CoreHarness harness(config);
  for (int i = 0; i < 3; ++i) harness.MustSubmit(CoreHarness::Ask(40, 300, i));
  Request request = CoreHarness::Ask(7800, 3, 9);
  request.prompt_logprobs = true;
  const uint64_t id = harness.MustSubmit(request);
  while (harness.core.GetLedger().preemptions == 0) ASSERT_TRUE(harness.Step().has_value());
  EXPECT_THAT(harness.told[id].tokens, IsEmpty());
  const size_t before = harness.told[id].prompt_logprobs.size();
  EXPECT_GT(before, 7000u);
  EXPECT_LT(before, 7799u);
  EXPECT_EQ(before % 128, 64u) << "else no chunk of the second time would overlap";
  harness.RunAll();
  std::vector<float> expected;
  uint64_t state = 1;
  for (size_t i = 0; i + 1 < request.prompt_ids.size(); ++i) {
    state = quartet::testing::HashChainAbsorb(state, request.prompt_ids[i]);
    expected.push_back(quartet::testing::HashChainLogprob(state, request.prompt_ids[i + 1]));
  }
  EXPECT_EQ(harness.told[id].prompt_logprobs, expected);
  EXPECT_EQ(harness.told[id].tokens, harness.Alone(request, 3));
}

// ---- results that are not as they should be --------------------------------------------------

TEST(CoreResults, OfAnotherStepOrEpochAreIgnored) {
  CoreHarness harness(CoreHarness::Config());
  const Request request = CoreHarness::Ask(10, 5);
  const uint64_t id = harness.MustSubmit(request);
  EXPECT_FALSE(harness.core.OnStepResult({7, 1, {}}, 0)) << "no step is in flight";
  harness.Plan();
  EXPECT_FALSE(harness.core.OnStepResult({6, 1, harness.pending.front().outcome.rows}, 0));
  EXPECT_FALSE(harness.core.OnStepResult({7, 2, harness.pending.front().outcome.rows}, 0));
  EXPECT_FALSE(harness.Plan().has_value()) << "one step at a time";
  const StepOutcome first = harness.pending.front().outcome;
  harness.Answer();
  EXPECT_FALSE(harness.core.OnStepResult(first, 0)) << "a second time";
  harness.RunAll();
  EXPECT_EQ(harness.told[id].tokens, harness.Alone(request, 5));
}

TEST(CoreResults, ARowErrorFailsThatRequestOnly) {
  CoreHarness harness(CoreHarness::Config());
  const uint64_t bad = harness.MustSubmit(CoreHarness::Ask(10, 5, 1));
  const Request good = CoreHarness::Ask(10, 5, 2);
  const uint64_t good_id = harness.MustSubmit(good);
  harness.Plan();
  harness.pending.front().outcome.rows[0].error = "NaN in the logits";
  harness.Answer();
  const Output& end = harness.told[bad].terminals.at(0);
  EXPECT_EQ(end.kind, Output::Kind::kFailed);
  EXPECT_EQ(end.message, "NaN in the logits");
  EXPECT_THAT(harness.told[bad].tokens, IsEmpty());
  harness.RunAll();
  EXPECT_EQ(harness.told[good_id].tokens, harness.Alone(good, 5));
}

TEST(CoreResults, AMissingRowOrATokenOutsideTheVocabularyFailsThatRequest) {
  CoreHarness harness(CoreHarness::Config());
  const uint64_t a = harness.MustSubmit(CoreHarness::Ask(10, 5, 1));
  const uint64_t b = harness.MustSubmit(CoreHarness::Ask(10, 5, 2));
  const uint64_t c = harness.MustSubmit(CoreHarness::Ask(10, 5, 3));
  harness.Plan();
  harness.pending.front().outcome.rows[1].tokens = {1000};
  harness.pending.front().outcome.rows[2].tokens = {1, 2};
  harness.pending.front().outcome.rows.erase(harness.pending.front().outcome.rows.begin());
  harness.Answer();
  EXPECT_THAT(harness.told[a].terminals.at(0).message, HasSubstr("has no row"));
  EXPECT_THAT(harness.told[b].terminals.at(0).message, HasSubstr("drew token 1000"));
  EXPECT_THAT(harness.told[c].terminals.at(0).message, HasSubstr("2 tokens"));
  EXPECT_EQ(harness.core.GetLedger().pages_used, 0u);
}

TEST(CoreResults, WhenTheWorkersAreLostEverybodyIsTold) {
  CoreHarness harness(CoreHarness::Config());
  for (int i = 0; i < 7; ++i) harness.MustSubmit(CoreHarness::Ask(10, 5, i));
  harness.Plan();
  harness.core.FailAll("rank 2 is lost");
  harness.Drain();
  for (const auto& [id, told] : harness.told) {
    ASSERT_THAT(told.terminals, SizeIs(1));
    EXPECT_EQ(told.terminals[0].message, "rank 2 is lost");
    EXPECT_THAT(told.tokens, IsEmpty());
  }
  EXPECT_EQ(harness.told.size(), 7u);
  EXPECT_FALSE(harness.core.OnStepResult(harness.pending.front().outcome, 0));
  EXPECT_EQ(harness.Submit(CoreHarness::Ask(10, 5)).kind, SubmitOutcome::Kind::kUnavailable);
}

TEST(CoreResults, StoppedAdmissionsLetOpenRequestsFinish) {
  CoreHarness harness(CoreHarness::Config());
  const uint64_t id = harness.MustSubmit(CoreHarness::Ask(10, 5));
  harness.core.StopAdmissions();
  EXPECT_EQ(harness.Submit(CoreHarness::Ask(10, 5)).kind, SubmitOutcome::Kind::kUnavailable);
  harness.RunAll();
  EXPECT_THAT(harness.told[id].tokens, SizeIs(5));
}

// ---- configuration ---------------------------------------------------------------------------

TEST(CoreConfiguration, ABudgetThatCouldStarveAPromptIsRefused) {
  CoreConfig config = CoreHarness::Config();
  config.max_num_batched_tokens = 66;
  EXPECT_THAT(ConfigError(config), HasSubstr("at least 67"));
  config.max_num_batched_tokens = 67;
  EXPECT_EQ(ConfigError(config), "");
}

TEST(CoreConfiguration, NamesWhatIsWrong) {
  const auto error = [](auto spoil) {
    CoreConfig config = CoreHarness::Config();
    spoil(config);
    return ConfigError(config);
  };
  EXPECT_THAT(error([](CoreConfig& c) { c.pages = 7; }), HasSubstr("7 pages do not hold"));
  EXPECT_THAT(error([](CoreConfig& c) { c.prefill_chunk = 100; }), HasSubstr("prefill_chunk"));
  EXPECT_THAT(error([](CoreConfig& c) { c.slots = 0; }), HasSubstr("slot"));
  EXPECT_THAT(error([](CoreConfig& c) { c.page_tokens = 100; }), HasSubstr("page_tokens"));
  EXPECT_THAT(error([](CoreConfig& c) { c.max_queued_requests = 0; }), HasSubstr("queued"));
}

TEST(CorePlanHash, ChangesWithEverythingThatARankActsOn) {
  StepPlan plan;
  plan.epoch = 1;
  plan.step_id = 1;
  PlanRow row;
  row.seq_uid = 5;
  row.tokens = {1, 2, 3};
  row.n_tokens = 3;
  row.new_pages = {4};
  plan.rows = {row};
  const uint64_t base = PlanHash(plan);
  const auto differs = [&](auto change) {
    StepPlan other = plan;
    change(other);
    return PlanHash(other) != base;
  };
  EXPECT_TRUE(differs([](StepPlan& p) { p.epoch = 2; }));
  EXPECT_TRUE(differs([](StepPlan& p) { p.step_id = 2; }));
  EXPECT_TRUE(differs([](StepPlan& p) { p.rows[0].tokens[1] = 3; }));
  EXPECT_TRUE(differs([](StepPlan& p) { p.rows[0].new_pages = {5}; }));
  EXPECT_TRUE(differs([](StepPlan& p) { p.rows[0].sample = true; }));
  EXPECT_TRUE(differs([](StepPlan& p) { p.rows[0].position = 1; }));
  EXPECT_TRUE(differs([](StepPlan& p) { p.rows.push_back(p.rows[0]); }));
  EXPECT_TRUE(differs([](StepPlan& p) { p.rows[0].draft_tokens = 1; }));
  EXPECT_TRUE(differs([](StepPlan& p) { p.rows[0].draft_chain = 1; }));
  EXPECT_TRUE(differs([](StepPlan& p) { p.commits = {{.seq_uid = 5}}; }));
  EXPECT_FALSE(differs([](StepPlan& p) { p.deadline_ms = 9; }));
}

}  // namespace
}  // namespace quartet::coordinator
