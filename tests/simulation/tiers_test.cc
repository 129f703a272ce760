#include <gmock/gmock.h>

#include <cstdio>
#include <utility>

#include "tests/simulation/scripted.h"

// The cache's tiers below the device, in a whole cluster: what a tier does wrong costs time and
// never a token (I15). That all texts are right is the auditor's business in every run.

namespace quartet::simulation {
namespace {

using coordinator::CacheTier;
using ::testing::Contains;
using ::testing::Field;
using Kind = TraceEvent::Kind;

uint64_t CopiesTo(const ScriptedRun& run, CacheTier tier) {
  return run.result.tally.copies_to[static_cast<int>(tier)];
}

// This fault for every copy of which `which` says so.
template <typename Which>
std::function<TierFault(uint32_t, const TierCopy&)> Always(TierFault fault, Which which) {
  return [fault, which](uint32_t rank, const TierCopy& copy) {
    return which(rank, copy) ? fault : TierFault::kNone;
  };
}

// The rank dies in this step of the first engine.
std::function<Fault(uint64_t, uint64_t, uint32_t)> KilledIn(uint64_t epoch, uint64_t in_step) {
  return [=](uint64_t e, uint64_t step, uint32_t rank) {
    return e == epoch && step == in_step && rank == 1 ? Fault::kKilled : Fault::kNone;
  };
}

Scenario PatientClients() {
  Scenario scenario = TieredConversations();
  scenario.next_client = [next = std::move(scenario.next_client)] {
    std::optional<ClientScript> client = next();
    if (client.has_value()) client->retries = 2;
    return client;
  };
  return scenario;
}

TEST(Tiers, ConversationsThatExceedTheDeviceComeBack) {
  const ScriptedRun run = RunScript(TieredConversations());
  EXPECT_EQ(run.result.violation, "");
  const Tally& t = run.result.tally;
  EXPECT_GT(t.resumed_restored, 10u);
  EXPECT_GT(CopiesTo(run, CacheTier::kDevice), 100u);
  EXPECT_GT(CopiesTo(run, CacheTier::kHost), 100u);
  EXPECT_GT(CopiesTo(run, CacheTier::kDisk), 100u);
  EXPECT_EQ(t.copies_checksum, 0u);

  // It is the tiers that do it.
  Scenario without = TieredConversations();
  without.config.host_pages = without.config.host_snapshots = 0;
  without.config.disk_pages = without.config.disk_snapshots = 0;
  const ScriptedRun alone = RunScript(std::move(without));
  EXPECT_EQ(alone.result.violation, "");
  EXPECT_GT(alone.result.tally.row_tokens, t.row_tokens * 5 / 4) << "computed";
}

TEST(Tiers, O6_ADamagedSnapshotIsFoundAndItsPrefixComputedAgain) {
  Scenario scenario = TieredConversations();
  uint32_t seen = 0;
  scenario.tier_fault = [&seen](uint32_t rank, const TierCopy& copy) {
    const bool stored = copy.kind == TierCopy::Kind::kSnapshot && copy.to == CacheTier::kHost &&
                        copy.from == CacheTier::kDevice;
    return rank == 1 && stored && ++seen % 4 == 0 ? TierFault::kDamaged : TierFault::kNone;
  };
  const ScriptedRun run = RunScript(std::move(scenario));
  EXPECT_EQ(run.result.violation, "");
  EXPECT_GT(run.result.tally.copies_checksum, 3u);
  EXPECT_GT(run.result.tally.resumed_restored, 10u);
}

TEST(Tiers, O6_ADamagedPageIsFoundOnEveryWayUp) {
  for (const CacheTier from : {CacheTier::kHost, CacheTier::kDisk}) {
    Scenario scenario = TieredConversations();
    // Little host memory, so that the disk is read.
    if (from == CacheTier::kDisk) scenario.config.host_pages = 40;
    uint32_t seen = 0;
    scenario.tier_fault = [&seen, from](uint32_t, const TierCopy& copy) {
      const bool read = copy.from == from && copy.to < from;
      return read && ++seen % 5 == 0 ? TierFault::kDamaged : TierFault::kNone;
    };
    const ScriptedRun run = RunScript(std::move(scenario));
    EXPECT_EQ(run.result.violation, "");
    EXPECT_GT(run.result.tally.copies_checksum, 3u) << static_cast<int>(from);
  }
}

TEST(Tiers, ATierThatTakesNothingIsAsGoodAsNone) {
  Scenario scenario = TieredConversations();
  scenario.tier_fault =
      Always(TierFault::kRefused, [](uint32_t rank, const TierCopy&) { return rank == 0; });
  const ScriptedRun run = RunScript(std::move(scenario));
  EXPECT_EQ(run.result.violation, "");
  EXPECT_EQ(run.result.tally.resumed_restored, 0u);
  EXPECT_GT(run.result.tally.copies_missing, 100u);
}

TEST(Tiers, SlowCopiesMakeSlowStepsAndEndNoEngine) {
  Scenario scenario = TieredConversations();
  scenario.tier_fault = Always(TierFault::kSlow, [](uint32_t rank, const TierCopy& copy) {
    return rank == 1 && copy.to == CacheTier::kDevice;
  });
  const ScriptedRun slow = RunScript(std::move(scenario));
  EXPECT_EQ(slow.result.violation, "");
  EXPECT_EQ(slow.result.tally.engines, 1u);
  EXPECT_GT(slow.result.time_us, 2 * RunScript(TieredConversations()).result.time_us);
}

TEST(Tiers, CopiesTakeVirtualTime) {
  Scenario slow = TieredConversations();
  slow.cost.copy_us *= 100;
  const ScriptedRun run = RunScript(std::move(slow));
  EXPECT_EQ(run.result.violation, "");
  EXPECT_GT(run.result.time_us, RunScript(TieredConversations()).result.time_us * 5 / 4);
}

TEST(Tiers, ARestartBeginsWithWhatIsOnTheDisks) {
  Scenario scenario = PatientClients();
  scenario.fault = KilledIn(1, 120);
  const ScriptedRun run = RunScript(std::move(scenario));
  EXPECT_EQ(run.result.violation, "");
  const Tally& t = run.result.tally;
  EXPECT_EQ(t.engines, 2u);
  EXPECT_GT(t.adopted, 20u);
  EXPECT_GT(t.resumed_adopted, 2u);
  const std::vector<TraceEvent> adopts = run.Of(Kind::kAdopt);
  ASSERT_EQ(adopts.size(), 2u);
  EXPECT_EQ(adopts[0].a, 0u);
  EXPECT_EQ(adopts[1].a, t.adopted);
  EXPECT_EQ(adopts[1].b, t.adopted) << "all of it hangs together";
}

TEST(Tiers, WhatACrashCutsShortIsNotUsed) {
  // The disk is far behind when one rank dies; the other has time to write.
  Scenario scenario = PatientClients();
  scenario.fault = KilledIn(1, 120);
  scenario.cost.disk_write_us = 40000;
  scenario.clean_end = [](uint32_t rank) { return rank == 0; };
  const ScriptedRun run = RunScript(std::move(scenario));
  EXPECT_EQ(run.result.violation, "");
  EXPECT_EQ(run.result.tally.engines, 2u);
  EXPECT_GT(run.result.tally.adopted, 0u);

  Scenario clean = PatientClients();
  clean.fault = KilledIn(1, 120);
  EXPECT_GT(RunScript(std::move(clean)).result.tally.adopted, run.result.tally.adopted);
}

TEST(Tiers, AWriteThatNeverCameIsMissedWhenItIsRead) {
  Scenario scenario = PatientClients();
  scenario.fault = KilledIn(1, 120);
  uint32_t seen = 0;
  scenario.tier_fault = [&seen](uint32_t rank, const TierCopy& copy) {
    return rank == 1 && copy.to == CacheTier::kDisk && ++seen % 3 == 0 ? TierFault::kLostWrite
                                                                       : TierFault::kNone;
  };
  const ScriptedRun run = RunScript(std::move(scenario));
  EXPECT_EQ(run.result.violation, "");
  EXPECT_GT(run.result.tally.adopted, 0u);
}

}  // namespace
}  // namespace quartet::simulation
