#include <gtest/gtest.h>

#include <iostream>

#include "services/coordinator/simulation/abort_note.h"
#include "services/coordinator/simulation/report.h"

namespace quartet::simulation {
namespace {

using coordinator::CacheTier;

constexpr uint64_t kSteps = 400;
constexpr uint64_t kSeedsPerTest = 500;

class SimulationSeeds : public ::testing::TestWithParam<uint64_t> {};

TEST_P(SimulationSeeds, EveryInvariantHoldsAndEverythingThatCanHappenDoes) {
  Totals totals;
  const uint64_t first = GetParam() * kSeedsPerTest + 1;
  for (uint64_t seed = first; seed < first + kSeedsPerTest; ++seed) {
    const AbortNote note(seed, kSteps);
    const Result result = Simulation(RandomScenario(seed)).Run(kSteps);
    ASSERT_TRUE(result.ok()) << DescribeFailure(seed, result);
    totals.Add(result);
  }
  // Seeds in which nothing happens would prove nothing.
  const Tally& t = totals.tally;
  EXPECT_GE(t.steps, kSteps * kSeedsPerTest * 3 / 4);
  EXPECT_GT(t.preemptions, 50u);
  EXPECT_GT(t.refused, 1000u);
  EXPECT_GT(t.void_rows, 1000u);
  EXPECT_GT(t.cancelled_queued, 1000u);
  EXPECT_GT(t.cancelled_prefill, 500u);
  EXPECT_GT(t.cancelled_decode, 500u);
  EXPECT_GT(t.failed_rows, 50u);
  EXPECT_GT(t.failed_engine, 500u);
  EXPECT_GT(t.resumed, 300u);
  EXPECT_GT(t.resumed_in_answers, 50u);
  EXPECT_GT(t.exports, 1000u);
  EXPECT_GT(t.answer_exports, 500u);
  EXPECT_GT(t.last_exports, 5u);
  for (const uint64_t windows : t.windows) EXPECT_GT(windows, 5000u);
  EXPECT_GT(t.cut_windows, 100u);
  for (const CacheTier tier : {CacheTier::kDevice, CacheTier::kHost, CacheTier::kDisk}) {
    EXPECT_GT(t.copies_to[static_cast<int>(tier)], 200u) << static_cast<int>(tier);
  }
  EXPECT_GT(t.copies_missing, 50u);
  EXPECT_GT(t.copies_checksum, 10u);
  EXPECT_GT(t.adopted, 100u);
  EXPECT_GT(t.resumed_restored, 50u);
  EXPECT_GT(t.resumed_adopted, 0u);
  for (const uint64_t finished : t.finished) EXPECT_GT(finished, 100u);
  for (int fault = 1; fault < kFaultKinds; ++fault) {
    EXPECT_GT(totals.faults[fault], 10u) << Name(static_cast<Fault>(fault));
  }
  for (int fault = 1; fault < kTierFaultKinds; ++fault) {
    EXPECT_GT(totals.tier_faults[fault], 10u) << Name(static_cast<TierFault>(fault));
  }
  if (HasFailure()) std::cout << Summary(totals);
}

INSTANTIATE_TEST_SUITE_P(Ranges, SimulationSeeds,
                         ::testing::Range(uint64_t{0}, QUARTET_SIMULATION_SEEDS / kSeedsPerTest));

}  // namespace
}  // namespace quartet::simulation
