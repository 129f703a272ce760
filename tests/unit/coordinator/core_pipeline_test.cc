#include <gmock/gmock.h>

#include <optional>

#include "tests/unit/coordinator/core_harness.h"

// Two steps in flight: a plan is made before it is known what the one before it says.

namespace quartet::coordinator {
namespace {

using ::testing::SizeIs;

CoreConfig PipelineConfig(uint32_t drafts = 0) {
  CoreConfig config = CoreHarness::Config();
  config.steps_in_flight = 2;
  config.num_speculative_tokens = drafts;
  config.spec_dynamic = false;
  return config;
}

TEST(CorePipeline, APlanIsMadeWhileTheStepBeforeItRuns) {
  CoreHarness harness(PipelineConfig());
  const Request request = CoreHarness::Ask(100, 5);
  const uint64_t id = harness.MustSubmit(request);
  auto prompt = harness.Plan();
  auto decode = harness.Plan();
  ASSERT_TRUE(prompt.has_value() && decode.has_value());
  EXPECT_EQ(prompt->rows[0].kind, PlanRow::Kind::kPrefill);
  EXPECT_EQ(decode->rows[0].kind, PlanRow::Kind::kDecode);
  EXPECT_TRUE(decode->rows[0].from_device);
  EXPECT_EQ(decode->rows[0].position, 100u);
  EXPECT_FALSE(harness.Plan().has_value()) << "the workers hold two";
  EXPECT_THAT(harness.told[id].tokens, SizeIs(0));
  harness.Answer();
  EXPECT_THAT(harness.told[id].tokens, SizeIs(1));
  EXPECT_EQ(harness.Plan()->rows[0].position, 101u);
  harness.RunAll();
  EXPECT_EQ(harness.told[id].tokens, harness.Alone(request, 5));
}

TEST(CorePipeline, ChunksOfAPromptFollowEachOther) {
  CoreHarness harness(PipelineConfig());
  harness.MustSubmit(CoreHarness::Ask(1200, 5));
  EXPECT_EQ(harness.Plan()->rows[0].n_tokens, 512u);
  EXPECT_EQ(harness.Plan()->rows[0].position, 512u);
}

TEST(CorePipeline, BehindAWindowARowStandsAtTheFurthestPlaceWhereItMay) {
  // All drafts are wrong: a window says one token.
  CoreHarness harness(PipelineConfig(3), std::nullopt, quartet::testing::HashChainDrafts(0));
  const Request request = CoreHarness::Ask(100, 40);
  const uint64_t id = harness.MustSubmit(request);
  harness.Plan();
  const auto window = harness.Plan();
  ASSERT_EQ(window->rows[0].kind, PlanRow::Kind::kVerify);
  EXPECT_EQ(window->rows[0].position, 100u);
  EXPECT_EQ(window->rows[0].n_tokens, 4u);
  harness.Answer();
  EXPECT_EQ(harness.Plan()->rows[0].position, 104u) << "the window says 1 to 4 tokens";
  harness.RunAll();
  EXPECT_EQ(harness.told[id].tokens, harness.Alone(request, 40));
}

TEST(CorePipeline, ARowNeverStandsBehindTheContext) {
  // A window that fills the context if all of its drafts are right, and may turn out not to.
  for (const uint32_t percent : {0u, 70u, 100u}) {
    for (uint32_t prompt = 2000; prompt < 2020; ++prompt) {
      CoreHarness harness(PipelineConfig(3), std::nullopt,
                          quartet::testing::HashChainDrafts(percent));
      const Request request = CoreHarness::Ask(prompt, 0);
      const uint64_t id = harness.MustSubmit(request);
      harness.RunAll();
      EXPECT_EQ(harness.told[id].tokens, harness.Alone(request, 2048 - prompt));
    }
  }
}

TEST(CorePipeline, AnEndThatNobodyForesawCostsOneRow) {
  CoreHarness harness(PipelineConfig());
  Request request = CoreHarness::Ask(100, 50);
  request.stop_ids = {harness.Alone(request, 7).back()};
  const uint64_t id = harness.MustSubmit(request);
  harness.RunAll();
  ASSERT_THAT(harness.told[id].terminals, SizeIs(1));
  EXPECT_EQ(harness.told[id].terminals[0].reason, FinishReason::kStopId);
  const Ledger ledger = harness.core.GetLedger();
  EXPECT_EQ(ledger.void_rows, 1u);
  EXPECT_EQ(ledger.steps, 8u);
  EXPECT_EQ(ledger.pages_used, 0u);
  EXPECT_EQ(ledger.slots_used, 0u);
}

TEST(CorePipeline, AnEndThatIsForeseenCostsNone) {
  CoreHarness harness(PipelineConfig());
  const uint64_t id = harness.MustSubmit(CoreHarness::Ask(100, 7));
  harness.RunAll();
  EXPECT_THAT(harness.told[id].tokens, SizeIs(7));
  EXPECT_EQ(harness.core.GetLedger().void_rows, 0u);
  EXPECT_EQ(harness.core.GetLedger().steps, 7u);
}

TEST(CorePipeline, O9_ACancelCostsAtMostTheStepsInFlight) {
  for (const uint32_t drafts : {0u, 3u}) {
    CoreHarness harness(PipelineConfig(drafts));
    const Request other = CoreHarness::Ask(100, 60, 2);
    const uint64_t gone = harness.MustSubmit(CoreHarness::Ask(100, 60, 1));
    const uint64_t stays = harness.MustSubmit(other);
    for (int i = 0; i < 6; ++i) harness.Step();
    while (harness.core.can_plan()) harness.Plan();
    harness.Cancel(gone);
    harness.Answer();
    const auto next = harness.Plan();
    ASSERT_THAT(next->rows, SizeIs(1));
    EXPECT_THAT(next->closes, SizeIs(1));
    EXPECT_EQ(harness.core.GetLedger().void_rows, 1u);
    harness.RunAll();
    EXPECT_EQ(harness.core.GetLedger().void_rows, 2u);
    EXPECT_EQ(harness.told[stays].tokens, harness.Alone(other, 60));
  }
}

TEST(CorePipeline, TheNextTurnWaitsForTheOneBeforeItToLeave) {
  for (const uint32_t drafts : {0u, 3u}) {
    CoreConfig config = PipelineConfig(drafts);
    config.max_num_batched_tokens = 2048;
    config.snapshots = 16;
    config.page_bytes = 1;
    config.snapshot_bytes = 20;
    CoreHarness harness(config);
    Request request = CoreHarness::Ask(300, 400);
    request.stop_ids = {harness.Alone(request, 300).back()};
    CoreHarness::NameUnits(request);
    const uint64_t id = harness.MustSubmit(request);
    while (harness.told[id].terminals.empty()) harness.Step();
    EXPECT_FALSE(harness.pending.empty()) << "a row of it is in flight";
    Request next = request;
    next.prompt_ids.insert(next.prompt_ids.end(), harness.told[id].tokens.begin(),
                           harness.told[id].tokens.end());
    next.prompt_ids.push_back(1);
    next.max_tokens = 5;
    next.stop_ids.clear();
    CoreHarness::NameUnits(next);
    const uint64_t follow = harness.MustSubmit(next);
    harness.RunAll();
    EXPECT_EQ(harness.told[follow].terminals[0].cached_tokens,
              (300 + harness.told[id].tokens.size() - 1) / 256 * 256);
    EXPECT_EQ(harness.told[follow].tokens, harness.Alone(next, 5));
  }
}

TEST(CorePipeline, WhoLosesItsPlaceWhileItRunsSaysTheSameText) {
  CoreConfig config = PipelineConfig(2);
  config.pages = 9;  // one context and a page
  CoreHarness harness(config);
  const Request a = CoreHarness::Ask(600, 900, 1), b = CoreHarness::Ask(600, 900, 2);
  const uint64_t first = harness.MustSubmit(a), second = harness.MustSubmit(b);
  harness.RunAll();
  EXPECT_GT(harness.core.GetLedger().preemptions, 0u);
  EXPECT_EQ(harness.told[first].tokens, harness.Alone(a, 900));
  EXPECT_EQ(harness.told[second].tokens, harness.Alone(b, 900));
}

TEST(CorePipeline, AStepTakesFromTheResultBeforeIt) {
  // A mixed step of 300 ms by the clock of results, though both plans were made at once, makes
  // room for steps of decoding that take as long.
  CoreConfig config = PipelineConfig();
  config.max_num_batched_tokens = 256;
  config.prefill_quantum_ms = 1000;
  config.min_decode_share = 0.5;
  CoreHarness harness(config);
  harness.step_us = [](const StepPlan& plan) {
    return plan.rows.back().kind == PlanRow::Kind::kPrefill ? 300000 : 100000;
  };
  harness.MustSubmit(CoreHarness::Ask(60, 1000, 1));
  for (int i = 0; i < 10; ++i) harness.Step();
  harness.MustSubmit(CoreHarness::Ask(1900, 4, 2));
  uint32_t mixed = 0, alone = 0;
  for (int i = 0; i < 32; ++i) {
    const auto plan = harness.Step();
    if (!plan.has_value() || plan->rows.empty()) continue;
    ++(plan->rows.back().kind == PlanRow::Kind::kPrefill ? mixed : alone);
  }
  EXPECT_GE(mixed, 4u);
  EXPECT_GE(alone, 2 * mixed) << "half of the time belongs to them";
}

TEST(CorePipelineConfig, NamesTheLimit) {
  CoreConfig config = PipelineConfig();
  config.steps_in_flight = 3;
  EXPECT_THAT(ConfigError(config), ::testing::HasSubstr("steps_in_flight is 3"));
}

}  // namespace
}  // namespace quartet::coordinator
