#include "tests/unit/coordinator/cache_requests.h"
#include "tests/unit/coordinator/core_harness.h"

// Who loses its place, and what it has to compute again when it gets one back.

namespace quartet::coordinator {
namespace {

// Two answers that end with more pages than there are.
CoreConfig TightConfig() {
  CoreConfig config = CacheConfig();
  config.max_model_len = 6144;
  config.pages = 24;
  config.snapshots = 8;
  config.host_pages = 100;
  config.host_snapshots = 20;
  return config;
}

class CorePreemptTest : public ::testing::TestWithParam<uint32_t> {
 protected:
  CoreConfig Config() const {
    CoreConfig config = TightConfig();
    config.steps_in_flight = GetParam();
    return config;
  }
  static Request Batch(Request request) {
    request.request_class = RequestClass::kBatch;
    return request;
  }
  // Both at once, to their ends, as they are alone.
  static Ledger RunTwo(CoreHarness& harness) {
    const Request old = Ask(Prompt(0, 2000, 1), 2500, 1);
    const Request young = Ask(Prompt(0, 2000, 2), 2500, 2);
    const uint64_t old_id = harness.MustSubmit(old);
    const uint64_t young_id = harness.MustSubmit(young);
    harness.RunAll();
    EXPECT_EQ(harness.told[old_id].tokens, harness.Alone(old, 2500));
    EXPECT_EQ(harness.told[young_id].tokens, harness.Alone(young, 2500));
    EXPECT_EQ(harness.told[young_id].admitted, 1);
    return harness.core.GetLedger();
  }
};

INSTANTIATE_TEST_SUITE_P(StepsInFlight, CorePreemptTest, ::testing::Values(1, 2));

TEST_P(CorePreemptTest, WithAHostTierWhoLosesItsPlaceGoesOnWhereItWas) {
  CoreHarness harness(Config());
  const Ledger ledger = RunTwo(harness);
  EXPECT_GE(ledger.preemptions, 1u);
  // The last snapshot of an answer is less than a unit old, or two if the last is just being taken.
  EXPECT_LT(ledger.recomputed_tokens, ledger.preemptions * 2 * kUnit);
  EXPECT_GE(ledger.host_tier.snapshots_restored, 1u);
}

TEST_P(CorePreemptTest, WithoutOneItKeepsWhatTheOthersDoNotNeed) {
  CoreConfig config = Config();
  config.host_pages = config.host_snapshots = 0;
  CoreHarness harness(config);
  const Ledger ledger = RunTwo(harness);
  EXPECT_GE(ledger.preemptions, 1u);
  EXPECT_GT(ledger.recomputed_tokens, 0u);
  EXPECT_LT(ledger.recomputed_tokens, ledger.preemptions * 4500);
}

TEST_P(CorePreemptTest, AHostTierThatIsFullCostsTimeAndNotText) {
  CoreConfig config = Config();
  config.host_pages = 2;
  config.host_snapshots = 1;
  CoreHarness harness(config);
  EXPECT_GE(RunTwo(harness).preemptions, 1u);
}

TEST_P(CorePreemptTest, CachesOfNobodyAreComputedAgain) {
  CoreConfig config = Config();
  config.snapshots = config.host_pages = config.host_snapshots = 0;
  CoreHarness harness(config);
  const Ledger ledger = RunTwo(harness);
  EXPECT_GE(ledger.recomputed_tokens, ledger.preemptions * 2000);
}

TEST_P(CorePreemptTest, ABatchRequestMakesWayForASlotAndGoesOnLater) {
  CoreConfig config = Config();
  config.slots = 2;
  CoreHarness harness(config);
  const Request first = Batch(Ask(Prompt(0, 1000, 1), 900, 1));
  const Request second = Batch(Ask(Prompt(0, 1000, 2), 900, 2));
  const uint64_t first_id = harness.MustSubmit(first);
  const uint64_t second_id = harness.MustSubmit(second);
  while (harness.told[second_id].tokens.size() < 400) harness.Step();
  const uint64_t urgent = harness.MustSubmit(Ask(Prompt(0, 300, 3), 20, 3));
  for (int step = 0; step < 6; ++step) harness.Step();
  EXPECT_FALSE(harness.told[urgent].tokens.empty());
  harness.RunAll();
  const Ledger ledger = harness.core.GetLedger();
  EXPECT_EQ(ledger.preemptions, 1u);
  EXPECT_LT(ledger.recomputed_tokens, 2 * kUnit);
  EXPECT_EQ(harness.told[first_id].tokens, harness.Alone(first, 900));
  EXPECT_EQ(harness.told[second_id].tokens, harness.Alone(second, 900));
}

TEST_P(CorePreemptTest, ABatchRequestMakesWayForPages) {
  CoreConfig config = Config();
  CoreHarness harness(config);
  for (int salt = 1; salt <= 2; ++salt) {
    harness.MustSubmit(Batch(Ask(Prompt(0, 2500, salt), 300, salt)));
  }
  while (harness.core.GetLedger().generated_tokens < 20) harness.Step();
  const uint64_t urgent = harness.MustSubmit(Ask(Prompt(0, 2500, 3), 20, 3));
  for (int step = 0; step < 8; ++step) harness.Step();
  EXPECT_FALSE(harness.told[urgent].tokens.empty());
  EXPECT_EQ(harness.core.GetLedger().preemptions, 1u) << "as many as it needs, not all";
  harness.RunAll();
  EXPECT_EQ(harness.core.GetLedger().finished, 3u);
}

TEST_P(CorePreemptTest, AnOlderBatchRequestGivesUpItsPlaceBeforeAYoungerInteractiveOne) {
  CoreHarness harness(Config());
  const Request batch = Batch(Ask(Prompt(0, 2000, 1), 2500, 1));
  const Request urgent = Ask(Prompt(0, 2000, 2), 2500, 2);
  const uint64_t batch_id = harness.MustSubmit(batch);
  const uint64_t urgent_id = harness.MustSubmit(urgent);
  while (harness.told[urgent_id].terminals.empty()) harness.Step();
  EXPECT_TRUE(harness.told[batch_id].terminals.empty());
  harness.RunAll();
  EXPECT_EQ(harness.told[batch_id].tokens, harness.Alone(batch, 2500));
  EXPECT_EQ(harness.told[urgent_id].tokens, harness.Alone(urgent, 2500));
}

TEST_P(CorePreemptTest, WhoIsCutOrCancelledWhileItWaitsLeavesNothingBehind) {
  for (const bool cut : {false, true}) {
    CoreHarness harness(Config());
    harness.MustSubmit(Ask(Prompt(0, 2000, 1), 2500, 1));
    const uint64_t young = harness.MustSubmit(Ask(Prompt(0, 2000, 2), 2500, 2));
    while (harness.core.GetLedger().preemptions == 0) harness.Step();
    if (cut) {
      EXPECT_EQ(harness.Truncate(young, 7), Core::TruncateOutcome::kDone);
    } else {
      harness.Cancel(young);
    }
    harness.RunAll();
    const Ledger ledger = harness.core.GetLedger();
    EXPECT_EQ(ledger.pages_used, ledger.evictable_pages);
    EXPECT_EQ(ledger.slots_used, 0u);
    EXPECT_EQ(ledger.copies_waiting, 0u);
  }
}

}  // namespace
}  // namespace quartet::coordinator
