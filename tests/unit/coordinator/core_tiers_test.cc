#include <cstdio>
#include <random>

#include "tests/unit/coordinator/cache_requests.h"
#include "tests/unit/coordinator/core_harness.h"

// The core with host memory below the device's pools. The workers are the hash-chain model, which
// refuses a copy of anything but what was stored in its place under its name, and says something
// else over a page or state of another text.

namespace quartet::coordinator {
namespace {

CoreConfig TierConfig() {
  CoreConfig config = CacheConfig();
  config.max_model_len = 8192;
  config.pages = 40;
  config.snapshots = 6;
  config.host_pages = 400;
  config.host_snapshots = 60;
  return config;
}

class CoreTiersTest : public ::testing::Test {
 protected:
  // Runs a request to its end, alone, and checks its text. Returns its cached tokens.
  static uint32_t Run(CoreHarness& harness, const Request& request) {
    const uint64_t id = harness.MustSubmit(request);
    harness.RunAll();
    const CoreHarness::Told& told = harness.told[id];
    EXPECT_EQ(told.tokens, harness.Alone(request, request.max_tokens));
    EXPECT_EQ(told.terminals.size(), 1u);
    if (told.terminals.empty()) return 0;
    EXPECT_EQ(told.terminals.front().kind, Output::Kind::kFinished);
    return told.terminals.front().cached_tokens;
  }
  uint32_t Run(const Request& request) { return Run(harness, request); }

  // Other texts, until the device holds nothing of what came before.
  void Overwrite() {
    for (int32_t salt = 0; salt < 3; ++salt) Run(Ask(Prompt(0, 6000, 100 + next_salt_++), 2));
  }

  // Conversations of long context that take turns; what of their shared whole units was not
  // computed again.
  struct Turns {
    uint64_t shared_tokens = 0;
    uint64_t hit_tokens = 0;
    double share() const {
      return static_cast<double>(hit_tokens) / static_cast<double>(shared_tokens);
    }
  };
  static Turns TakeTurns(CoreHarness& harness, int sessions, int turns) {
    std::vector<std::vector<int32_t>> texts;
    for (int32_t s = 0; s < sessions; ++s) texts.push_back(Prompt(0, 4000, 10 * s));
    Turns sum;
    for (int turn = 0; turn < turns; ++turn) {
      for (int s = 0; s < sessions; ++s) {
        std::vector<int32_t>& text = texts[s];
        const uint64_t before = turn == 0 ? 0 : text.size() - 400;
        sum.shared_tokens += before / kUnit * kUnit;
        sum.hit_tokens += Run(harness, Ask(text, 8));
        const std::vector<int32_t> more = CoreHarness::Prompt(400, 1000 + 100 * turn + s);
        text.insert(text.end(), more.begin(), more.end());
      }
    }
    return sum;
  }

  CoreHarness harness{TierConfig()};

 private:
  int32_t next_salt_ = 0;
};

TEST_F(CoreTiersTest, FourConversationsThatExceedTheDeviceHitFromHostMemory) {
  const Turns turns = TakeTurns(harness, 4, 8);
  const Ledger ledger = harness.core.GetLedger();
  std::printf("  hit %llu of %llu tokens of shared whole units: %.1f %%, %llu pages came back\n",
              static_cast<unsigned long long>(turns.hit_tokens),
              static_cast<unsigned long long>(turns.shared_tokens), 100 * turns.share(),
              static_cast<unsigned long long>(ledger.host_tier.pages_restored));
  EXPECT_GE(turns.share(), 0.95);
  EXPECT_GT(ledger.host_tier.pages_restored * kUnit, turns.hit_tokens / 2);
  EXPECT_GE(ledger.host_tier.snapshots_restored, 4u * 6);
  EXPECT_EQ(ledger.copies_given_up, 0u);

  // It is the host tier that does it.
  CoreConfig config = TierConfig();
  config.host_pages = config.host_snapshots = 0;
  CoreHarness without(config);
  EXPECT_LT(TakeTurns(without, 4, 8).share(), 0.5);
}

TEST_F(CoreTiersTest, AnAnswerGoesToHostMemoryAsWell) {
  const Request request = Ask(Prompt(0, 3000, 1), 3000);
  Run(request);
  Request next = request;
  const std::vector<int32_t> answer = harness.Alone(request, 3000);
  next.prompt_ids.insert(next.prompt_ids.end(), answer.begin(), answer.end());
  Overwrite();
  const Ledger before = harness.core.GetLedger();
  EXPECT_EQ(Run(Ask(next.prompt_ids, 4)), 5888u);
  const Ledger after = harness.core.GetLedger();
  EXPECT_EQ(after.host_tier.snapshots_restored, before.host_tier.snapshots_restored + 1);
  EXPECT_GE(after.host_tier.pages_restored,
            before.host_tier.pages_restored + (5888 - 3000) / kUnit);
}

TEST_F(CoreTiersTest, ARestoreCopiesWhatTheDeviceLacksAndOneSnapshot) {
  const Request request = Ask(Prompt(0, 6000, 1), 4);
  Run(request);
  Overwrite();
  const Ledger before = harness.core.GetLedger();
  EXPECT_EQ(Run(request), 5888u);
  const Ledger after = harness.core.GetLedger();
  EXPECT_LE(after.host_tier.pages_restored - before.host_tier.pages_restored, 23u);
  EXPECT_GT(after.host_tier.pages_restored, before.host_tier.pages_restored);
  EXPECT_EQ(after.host_tier.snapshots_restored, before.host_tier.snapshots_restored + 1);
  // Now it is on the device.
  EXPECT_EQ(Run(request), 5888u);
  EXPECT_EQ(harness.core.GetLedger().host_tier.pages_restored, after.host_tier.pages_restored);
}

TEST_F(CoreTiersTest, WhatIsPublishedIsWrittenThroughByItself) {
  harness.MustSubmit(Ask(Prompt(0, 3000, 1), 1));
  harness.RunAll();
  const Ledger ledger = harness.core.GetLedger();
  EXPECT_EQ(ledger.host_tier.pages, 11u);
  EXPECT_EQ(ledger.host_tier.snapshots, 2u);  // at 2,304 and 2,816
  EXPECT_EQ(ledger.host_tier.snapshots_published, 2u);
  EXPECT_EQ(ledger.evictable_pages, ledger.cached_pages);  // nothing is held for copies
}

TEST_F(CoreTiersTest, CopiesGoBesideRowsAndInAStepOfTheirOwnWhereThereAreNone) {
  const Request request = Ask(Prompt(0, 6000, 1), 1);
  harness.MustSubmit(request);
  EXPECT_TRUE(harness.Step()->copies.empty());
  const std::optional<StepPlan> second = harness.Step();
  EXPECT_EQ(second->rows.size(), 1u);
  EXPECT_EQ(second->copies.size(), 10u);  // of the first block: nine pages and a snapshot
  harness.RunAll();
  Overwrite();
  harness.MustSubmit(request);
  const std::optional<StepPlan> restore = harness.Step();
  EXPECT_TRUE(restore->rows.empty());
  EXPECT_EQ(restore->copies.front().to, CacheTier::kDevice);
  EXPECT_NE(restore->step_id, 0u);
  harness.RunAll();
}

TEST_F(CoreTiersTest, AStepCopiesNoMoreThanItsBudget) {
  CoreConfig config = TierConfig();
  config.copy_bytes_per_step = 5;  // pages, of one byte
  CoreHarness slow(config);
  const Request request = Ask(Prompt(0, 6000, 1), 4);
  Run(slow, request);
  for (int32_t salt = 0; salt < 3; ++salt) Run(slow, Ask(Prompt(0, 6000, 50 + salt), 2));
  const uint64_t id = slow.MustSubmit(request);
  int copy_steps = 0;
  while (std::optional<StepPlan> plan = slow.Step()) {
    uint64_t bytes = 0;
    for (const TierCopy& copy : plan->copies) {
      bytes += copy.kind == TierCopy::Kind::kPage ? config.page_bytes : config.snapshot_bytes;
    }
    EXPECT_TRUE(bytes <= 5 || plan->copies.size() == 1) << bytes;
    copy_steps += !plan->copies.empty() && plan->copies.front().to == CacheTier::kDevice;
  }
  EXPECT_GE(copy_steps, 3);
  EXPECT_EQ(slow.told[id].terminals.front().cached_tokens, 5888u);
  EXPECT_EQ(slow.told[id].tokens, slow.Alone(request, 4));
}

TEST_F(CoreTiersTest, WhoRunsIsNotHeldUpByARestore) {
  Run(Ask(Prompt(0, 6000, 1), 4));
  Overwrite();
  harness.MustSubmit(Ask(Prompt(0, 300, 7), 200));
  for (int step = 0; step < 3; ++step) harness.Step();
  harness.MustSubmit(Ask(Prompt(0, 6000, 1), 4));
  const std::optional<StepPlan> plan = harness.Step();
  ASSERT_EQ(plan->rows.size(), 1u);
  EXPECT_EQ(plan->rows.front().kind, PlanRow::Kind::kDecode);
  EXPECT_FALSE(plan->copies.empty());
  EXPECT_EQ(harness.Step()->opens.size(), 1u);
  harness.RunAll();
}

TEST_F(CoreTiersTest, O6_ADamagedSnapshotIsDiscardedAndThePrefixComputedAgain) {
  // The state after the last unit of the first text.
  harness.workers.DamageCopies([](const v1::Copy& copy) {
    return copy.kind() == v1::Copy::KIND_SNAPSHOT && copy.name().n_tokens() == 5888;
  });
  const Request request = Ask(Prompt(0, 6000, 1), 4);
  Run(request);
  harness.workers.DamageCopies(nullptr);
  Overwrite();
  EXPECT_EQ(Run(request), 4608u);  // from the one before it
  const Ledger ledger = harness.core.GetLedger();
  EXPECT_EQ(ledger.host_tier.snapshots_checksum_failed, 1u);
  EXPECT_EQ(ledger.host_tier.snapshots_discarded, 1u);
  EXPECT_EQ(ledger.failed, 0u);
  // What was computed again has been stored again.
  Overwrite();
  EXPECT_EQ(Run(request), 5888u);
}

TEST_F(CoreTiersTest, O6_ADamagedPageCostsItselfAndWhatComesAfterIt) {
  harness.workers.DamageCopies([](const v1::Copy& copy) {
    return copy.kind() == v1::Copy::KIND_PAGE && copy.name().n_tokens() == 2560;
  });
  const Request request = Ask(Prompt(0, 6000, 1), 4);
  Run(request);
  harness.workers.DamageCopies(nullptr);
  Overwrite();
  const uint32_t pages = harness.core.GetLedger().host_tier.pages;
  EXPECT_EQ(Run(request), 2304u);  // where the last snapshot before it is
  const Ledger ledger = harness.core.GetLedger();
  EXPECT_EQ(ledger.host_tier.pages_checksum_failed, 1u);
  EXPECT_EQ(ledger.host_tier.pages_discarded, 23u - 9u);
  EXPECT_GE(ledger.host_tier.snapshots_discarded, 1u);
  EXPECT_EQ(ledger.host_tier.pages, pages);  // stored again
  Overwrite();
  EXPECT_EQ(Run(request), 5888u);
}

TEST_F(CoreTiersTest, ACancelledRestoreLeavesTheCacheFullAndNothingHeld) {
  const Request request = Ask(Prompt(0, 6000, 1), 4);
  Run(request);
  Overwrite();
  const uint64_t id = harness.MustSubmit(request);
  harness.Plan();
  harness.Cancel(id);
  harness.Answer();
  harness.RunAll();
  EXPECT_EQ(harness.core.GetLedger().pages_used, harness.core.GetLedger().cached_pages);
  EXPECT_EQ(harness.core.GetLedger().evictable_pages, harness.core.GetLedger().cached_pages);
  EXPECT_EQ(Run(request), 5888u);
}

TEST_F(CoreTiersTest, ALostEngineHoldsNothingForCopies) {
  const Request request = Ask(Prompt(0, 6000, 1), 4);
  Run(request);
  Overwrite();
  harness.MustSubmit(request);
  EXPECT_FALSE(harness.Plan()->copies.empty());
  harness.core.FailAll("lost");
  harness.Drain();
  const Ledger ledger = harness.core.GetLedger();
  EXPECT_EQ(ledger.pages_used, ledger.cached_pages);
  EXPECT_EQ(ledger.evictable_pages, ledger.cached_pages);
}

TEST_F(CoreTiersTest, WorkersThatAnswerNoCopiesCostTime) {
  const Request request = Ask(Prompt(0, 6000, 1), 4);
  Run(request);
  Overwrite();
  const uint64_t id = harness.MustSubmit(request);
  harness.Plan();
  harness.pending.front().outcome.copies.clear();
  harness.Answer();
  harness.RunAll();
  EXPECT_EQ(harness.told[id].tokens, harness.Alone(request, 4));
}

// ---- the disk ----------------------------------------------------------------------------------

CoreConfig DiskConfig() {
  CoreConfig config = TierConfig();
  config.disk_pages = 600;
  config.disk_snapshots = 100;
  return config;
}

// The next life of an engine over the disk that the one before has left.
uint32_t Restart(CoreHarness& before, CoreHarness& after) {
  after.workers.TakeDiskOf(before.workers);
  std::vector<CacheEntry> entries;
  const v1::CacheInventory inventory = after.workers.DiskInventory();
  for (const v1::CacheEntry& entry : inventory.entries()) {
    entries.push_back(ToCacheEntry(entry));
  }
  return after.core.AdoptCached(std::move(entries));
}

TEST_F(CoreTiersTest, AConversationHitsAfterARestart) {
  CoreHarness before(DiskConfig());
  const Request request = Ask(Prompt(0, 6000, 1), 4);
  Run(before, request);
  Run(before, Ask(Prompt(3000, 2000, 2), 4));
  const Ledger left = before.core.GetLedger();
  EXPECT_EQ(left.disk_tier.pages, left.host_tier.pages);
  EXPECT_EQ(left.disk_tier.snapshots, left.host_tier.snapshots);

  CoreHarness after(DiskConfig());
  EXPECT_EQ(Restart(before, after), left.disk_tier.pages + left.disk_tier.snapshots);
  EXPECT_EQ(Run(after, request), 5888u);
  const Ledger ledger = after.core.GetLedger();
  EXPECT_EQ(ledger.disk_tier.pages_restored, 23u);
  EXPECT_EQ(ledger.disk_tier.snapshots_restored, 1u);
  EXPECT_EQ(ledger.host_tier.pages_restored, 23u);
  EXPECT_EQ(ledger.disk_tier.pages, left.disk_tier.pages);  // nothing is written twice
}

TEST_F(CoreTiersTest, WhatHostMemoryHasGivenUpComesFromTheDisk) {
  CoreConfig config = DiskConfig();
  config.host_pages = 40;
  config.host_snapshots = 8;
  CoreHarness small(config);
  const Turns turns = TakeTurns(small, 4, 6);
  EXPECT_GE(turns.share(), 0.95);
  EXPECT_GT(small.core.GetLedger().disk_tier.pages_restored, 100u);
}

TEST_F(CoreTiersTest, ADamagedRecordCostsTime) {
  CoreHarness before(DiskConfig());
  before.workers.DamageCopies([](const v1::Copy& copy) {
    return copy.to() == v1::Copy::TIER_DISK && copy.name().n_tokens() == 5888;
  });
  const Request request = Ask(Prompt(0, 6000, 1), 4);
  Run(before, request);
  CoreHarness after(DiskConfig());
  Restart(before, after);
  EXPECT_EQ(Run(after, request), 4608u);
  EXPECT_EQ(after.core.GetLedger().disk_tier.pages_checksum_failed, 1u);
  EXPECT_EQ(after.core.GetLedger().disk_tier.pages_discarded, 1u);
}

TEST_F(CoreTiersTest, WhatDoesNotHangTogetherIsForgotten) {
  CoreHarness before(DiskConfig());
  Run(before, Ask(Prompt(0, 6000, 1), 4));
  CoreHarness after(DiskConfig());
  after.workers.TakeDiskOf(before.workers);
  std::vector<CacheEntry> entries;
  const v1::CacheInventory inventory = after.workers.DiskInventory();
  for (const v1::CacheEntry& entry : inventory.entries()) {
    if (entry.kind() == v1::Copy::KIND_PAGE && entry.name().n_tokens() == 2560) continue;
    entries.push_back(ToCacheEntry(entry));
  }
  CacheEntry other = entries.front();
  other.place = 600;  // does not exist
  entries.push_back(other);
  other.place = 599;
  other.n_tokens += kUnit;  // not where its parent says
  entries.push_back(other);
  other = entries.front();
  other.origin.tokens.pop_back();
  entries.push_back(other);
  entries.push_back(entries.front());  // twice
  EXPECT_EQ(after.core.AdoptCached(std::move(entries)), 9u + 1u);
  EXPECT_EQ(after.core.CheckIndex(), "");
  EXPECT_EQ(after.core.GetLedger().disk_tier.pages, 9u);
  EXPECT_EQ(Run(after, Ask(Prompt(0, 6000, 1), 4)), 2304u);
}

TEST(CoreTiersConfig, NeedsACacheAboveItAndRoomForBothKinds) {
  CoreConfig config = TierConfig();
  EXPECT_EQ(ConfigError(config), "");
  config.host_snapshots = 0;
  EXPECT_NE(ConfigError(config).find("the host has 400 and 0"), std::string::npos);
  config = DiskConfig();
  EXPECT_EQ(ConfigError(config), "");
  config.host_pages = config.host_snapshots = 0;
  EXPECT_NE(ConfigError(config).find("600 pages on disk"), std::string::npos);
  config = TierConfig();
  config.snapshots = 0;
  EXPECT_NE(ConfigError(config).find("400 pages of host memory"), std::string::npos);
}

// Conversations that share beginnings, on pools and tiers that are too small, with cancels,
// truncations and damage: nobody ever says anything else than alone.
void RunSeed(uint64_t seed, Ledger* sum) {
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  const auto pick = [&](uint32_t low, uint32_t high) {
    return std::uniform_int_distribution<uint32_t>(low, high)(random);
  };
  CoreConfig config = TierConfig();
  config.slots = pick(1, 5);
  config.max_model_len = pick(2600, 6000);
  const uint32_t context_pages = (config.max_model_len + kUnit - 1) / kUnit;
  config.pages = pick(context_pages, 3 * context_pages);
  config.snapshots = pick(1, 12);
  config.host_pages = pick(1, 6 * context_pages);
  config.host_snapshots = pick(1, 30);
  if (pick(0, 1) == 1) {
    config.disk_pages = pick(1, 8 * context_pages);
    config.disk_snapshots = pick(1, 40);
  }
  config.num_speculative_tokens = pick(0, 3);
  config.copy_bytes_per_step = pick(0, 1) == 0 ? pick(1, 30) : 1000;
  config.max_num_batched_tokens = pick(64 + config.slots, 3000);
  config.steps_in_flight = 1 + seed % 2;
  CoreHarness harness(config);
  const uint32_t damaged_percent = pick(0, 1) * pick(0, 20);
  harness.workers.DamageCopies([&](const v1::Copy&) { return pick(0, 99) < damaged_percent; });
  std::vector<std::pair<uint64_t, Request>> asked;
  for (int event = 0; event < 400 && !::testing::Test::HasFailure(); ++event) {
    const uint32_t kind = pick(0, 99);
    if (kind < 15) {
      const uint32_t shared = pick(0, 3) * 700;
      const uint32_t own = pick(1, config.max_model_len - 2200);
      Request request = Ask(Prompt(shared, own, static_cast<int32_t>(pick(0, 5))),
                            pick(1, pick(0, 9) == 0 ? 900 : 60), pick(1, 3));
      // Others take their place from these.
      if (pick(0, 2) == 0) request.request_class = RequestClass::kBatch;
      if (request.prompt_ids.size() + request.max_tokens > config.max_model_len) continue;
      const SubmitOutcome outcome = harness.Submit(request);
      if (outcome.kind == SubmitOutcome::Kind::kAccepted) {
        asked.emplace_back(outcome.id, std::move(request));
      }
    } else if (kind < 18 && !asked.empty()) {
      harness.Cancel(asked[pick(0, static_cast<uint32_t>(asked.size()) - 1)].first);
    } else if (kind < 20 && !asked.empty()) {
      harness.Truncate(asked[pick(0, static_cast<uint32_t>(asked.size()) - 1)].first, pick(0, 20));
    } else if (!harness.pending.empty() && (!harness.core.can_plan() || pick(0, 1) == 0)) {
      harness.Answer();
    } else {
      harness.Plan();
    }
  }
  if (!harness.pending.empty()) harness.Answer();
  harness.RunAll();
  for (const auto& [id, request] : asked) {
    const CoreHarness::Told& told = harness.told[id];
    ASSERT_EQ(told.terminals.size(), 1u);
    ASSERT_EQ(told.tokens, harness.Alone(request, told.tokens.size()));
  }
  const Ledger ledger = harness.core.GetLedger();
  EXPECT_EQ(ledger.pages_used, ledger.cached_pages);
  EXPECT_EQ(ledger.failed, 0u);
  EXPECT_TRUE(damaged_percent > 0 || ledger.host_tier.pages_discarded == 0);
  sum->prefix_hit_tokens += ledger.prefix_hit_tokens;
  sum->preemptions += ledger.preemptions;
  sum->spec_accepted_tokens += ledger.spec_accepted_tokens;
  sum->cancelled += ledger.cancelled;
  sum->copies_given_up += ledger.copies_given_up;
  TierLedger& host = sum->host_tier;
  host.pages_restored += ledger.host_tier.pages_restored;
  host.snapshots_restored += ledger.host_tier.snapshots_restored;
  host.pages_checksum_failed += ledger.host_tier.pages_checksum_failed;
  host.snapshots_checksum_failed += ledger.host_tier.snapshots_checksum_failed;
  sum->disk_tier.pages_restored += ledger.disk_tier.pages_restored;
  host.pages_discarded += ledger.host_tier.pages_discarded;
}

TEST(CoreTiersRandom, NobodyEverSaysAnythingElseThanAlone) {
  Ledger sum;
  for (uint64_t seed = 1; seed <= Share(200) && !::testing::Test::HasFailure(); ++seed) {
    RunSeed(seed, &sum);
  }
  std::printf("  %llu pages and %llu snapshots came back, %llu and %llu were damaged\n",
              static_cast<unsigned long long>(sum.host_tier.pages_restored),
              static_cast<unsigned long long>(sum.host_tier.snapshots_restored),
              static_cast<unsigned long long>(sum.host_tier.pages_checksum_failed),
              static_cast<unsigned long long>(sum.host_tier.snapshots_checksum_failed));
  EXPECT_GT(sum.host_tier.pages_restored, Share(1000));
  EXPECT_GT(sum.host_tier.snapshots_restored, Share(200));
  EXPECT_GT(sum.disk_tier.pages_restored, Share(100));
  EXPECT_GT(sum.host_tier.pages_checksum_failed, Share(10));
  EXPECT_GT(sum.host_tier.snapshots_checksum_failed, Share(10));
  EXPECT_GT(sum.preemptions, Share(2000));
  EXPECT_GT(sum.spec_accepted_tokens, 0u);
  EXPECT_GT(sum.cancelled, 0u);
  EXPECT_GT(sum.copies_given_up, 0u);
}

}  // namespace
}  // namespace quartet::coordinator
