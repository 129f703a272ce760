#include <algorithm>
#include <optional>
#include <random>

#include "tests/unit/coordinator/cache_requests.h"
#include "tests/unit/coordinator/core_harness.h"

// The core with its prefix cache, and the hash-chain model: a page or a state that belongs to
// another text changes what is said. Cases are those of the serving cases (O1, O4, ...).

namespace quartet::coordinator {
namespace {

// Prompt tokens of a plan.
uint64_t PrefillTokens(const StepPlan& plan) {
  uint64_t tokens = 0;
  for (const PlanRow& row : plan.rows) {
    if (row.kind == PlanRow::Kind::kPrefill) tokens += row.n_tokens;
  }
  return tokens;
}

class CoreCacheTest : public ::testing::Test {
 protected:
  // Runs a request to its end, alone, and checks its text. Returns its cached tokens.
  uint32_t Run(const Request& request) {
    const std::vector<int32_t> alone = harness.Alone(request, request.max_tokens);
    const uint64_t id = harness.MustSubmit(request);
    harness.RunAll();
    return Check(id, alone);
  }
  uint32_t Check(uint64_t id, const std::vector<int32_t>& alone) {
    const CoreHarness::Told& told = harness.told[id];
    EXPECT_EQ(told.tokens, alone);
    EXPECT_EQ(told.terminals.size(), 1u);
    return told.terminals.empty() ? 0 : told.terminals.front().cached_tokens;
  }
  // Nobody runs: whatever is taken belongs to the cache.
  void ExpectOnlyTheCacheHoldsPages() {
    const Ledger ledger = harness.core.GetLedger();
    EXPECT_EQ(ledger.running, 0u);
    EXPECT_EQ(ledger.pages_used, ledger.cached_pages);
  }

  CoreHarness harness{CacheConfig()};
};

TEST_F(CoreCacheTest, TheSamePromptAgainIsComputedFromItsLastUnitOn) {
  const Request request = Ask(Prompt(0, 3000, 1), 20);
  EXPECT_EQ(Run(request), 0u);
  EXPECT_EQ(Run(request), 2816u);  // 11 units
  const Ledger ledger = harness.core.GetLedger();
  EXPECT_EQ(ledger.prefix_query_tokens, 6000u);
  EXPECT_EQ(ledger.prefix_hit_tokens, 2816u);
  ExpectOnlyTheCacheHoldsPages();
}

TEST_F(CoreCacheTest, OneTokenIsAlwaysComputed) {
  for (const size_t length : {255, 256, 257, 2303, 2304, 2305, 4608, 4609}) {
    const Request request = Ask(Prompt(0, length, static_cast<int32_t>(length)), 5);
    EXPECT_EQ(Run(request), 0u);
    EXPECT_EQ(Run(request), (length - 1) / kUnit * kUnit) << length;
  }
}

TEST_F(CoreCacheTest, ALongerPromptBeginsWhereAShorterOneEnded) {
  std::vector<int32_t> text = Prompt(0, 700, 3);
  uint32_t before = 0;
  for (int turn = 0; turn < 5; ++turn) {
    EXPECT_EQ(Run(Ask(text, 8)), before / kUnit * kUnit) << turn;
    before = static_cast<uint32_t>(text.size()) - 1;
    const std::vector<int32_t> more = CoreHarness::Prompt(350, 50 + turn);
    text.insert(text.end(), more.begin(), more.end());
  }
}

TEST_F(CoreCacheTest, O4_ASharedPrefixIsHitFromTheSecondRequestOn) {
  std::vector<uint32_t> cached;
  for (int32_t i = 0; i < 10; ++i) cached.push_back(Run(Ask(Prompt(6000, 1500, i), 4)));
  EXPECT_EQ(cached[0], 0u);
  EXPECT_EQ(cached[1], 4608u);  // a block
  // The second one left a snapshot where the texts part.
  for (size_t i = 2; i < cached.size(); ++i) EXPECT_EQ(cached[i], 5888u) << i;
  EXPECT_EQ(harness.core.GetLedger().prefix_lost_tokens, 5888u - 4608u + 9 * (6000u - 5888u));
}

TEST_F(CoreCacheTest, O4_AMarkedSystemPromptIsHitFromTheSecondRequestOn) {
  Request first = Ask(Prompt(1000, 700, 1), 4), second = Ask(Prompt(1000, 700, 2), 4);
  first.system_prefix_tokens = second.system_prefix_tokens = 1000;
  EXPECT_EQ(Run(first), 0u);
  EXPECT_EQ(Run(second), 768u);  // three units of it are whole
  Request beyond = Ask(Prompt(0, 100, 3), 4);
  beyond.system_prefix_tokens = 101;
  EXPECT_EQ(harness.Submit(beyond).message,
            "system_prefix_tokens is 101, the prompt has 100 tokens");
}

TEST_F(CoreCacheTest, O4_TwoAtOnceFillTheCacheForTheThird) {
  const Request a = Ask(Prompt(6000, 1500, 1), 4), b = Ask(Prompt(6000, 1500, 2), 4);
  const uint64_t first = harness.MustSubmit(a);
  const uint64_t second = harness.MustSubmit(b);
  harness.RunAll();
  Check(first, harness.Alone(a, 4));
  Check(second, harness.Alone(b, 4));
  ExpectOnlyTheCacheHoldsPages();
  EXPECT_GE(Run(Ask(Prompt(6000, 1500, 3), 4)), 4608u);
}

TEST_F(CoreCacheTest, AChunkTakesTheSnapshotsOnItsWayAsManyAsAStepMay) {
  CoreConfig config = CacheConfig();
  config.max_num_batched_tokens = 65536;
  config.max_model_len = 65536;
  config.pages = 512;
  config.snapshots = 128;
  CoreHarness wide(config);
  const Request request = Ask(Prompt(0, 60000, 1), 4);
  const uint64_t id = wide.MustSubmit(request);
  std::optional<StepPlan> plan = wide.Step();
  // The ninth block ends the row: eight are inside.
  EXPECT_EQ(plan->rows[0].n_tokens, 9u * 2304);
  EXPECT_EQ(plan->rows[0].exports.size(), 9u);
  plan = wide.Step();
  EXPECT_EQ(plan->rows[0].n_tokens, 9u * 2304);
  plan = wide.Step();
  EXPECT_EQ(plan->rows[0].n_tokens, 60000u - 18 * 2304);
  EXPECT_EQ(plan->rows[0].exports.size(), 8u) << "the last block ends with the last unit";
  wide.RunAll();
  EXPECT_EQ(wide.told[id].tokens, wide.Alone(request, 4));
}

TEST_F(CoreCacheTest, IdenticalPromptsAtOnceAreComputedOnce) {
  const Request request = Ask(Prompt(0, 3000, 1), 20);
  const std::vector<int32_t> alone = harness.Alone(request, 20);
  std::vector<uint64_t> ids;
  for (int i = 0; i < 4; ++i) ids.push_back(harness.MustSubmit(request));
  uint64_t computed = 0;
  while (const std::optional<StepPlan> plan = harness.Step()) computed += PrefillTokens(*plan);
  EXPECT_EQ(computed, 3000u + 3 * (3000 - 2816));
  EXPECT_EQ(Check(ids[0], alone), 0u);
  for (size_t i = 1; i < ids.size(); ++i) EXPECT_EQ(Check(ids[i], alone), 2816u) << i;
  ExpectOnlyTheCacheHoldsPages();
}

TEST_F(CoreCacheTest, WhoComesWhileItsPrefixIsComputedBeginsWhereTheTextsPart) {
  const Request a = Ask(Prompt(6000, 1500, 1), 4), b = Ask(Prompt(6000, 1500, 2), 4);
  const uint64_t first = harness.MustSubmit(a);
  harness.Step();
  const uint64_t second = harness.MustSubmit(b);
  harness.RunAll();
  EXPECT_EQ(Check(first, harness.Alone(a, 4)), 0u);
  EXPECT_EQ(Check(second, harness.Alone(b, 4)), 5888u);
}

TEST_F(CoreCacheTest, WhoseTwinEndsEarlyBeginsBehindWhatItLeft) {
  const Request request = Ask(Prompt(0, 12000, 1), 4);
  const uint64_t first = harness.MustSubmit(request);
  const uint64_t second = harness.MustSubmit(request);
  harness.Step();
  harness.Step();
  EXPECT_EQ(harness.core.GetLedger().waiting, 1u);
  harness.Cancel(first);
  harness.RunAll();
  EXPECT_EQ(Check(second, harness.Alone(request, 4)), 6912u);
  ExpectOnlyTheCacheHoldsPages();
}

TEST_F(CoreCacheTest, NobodyWaitsForATwinThatIsShorterThanWhatIsCached) {
  const Request base = Ask(Prompt(3000, 6000, 1), 4);
  Run(base);
  const Request other = Ask(Prompt(3000, 9000, 2), 4);  // computes from 2816 on
  const uint64_t first = harness.MustSubmit(other);
  const uint64_t second = harness.MustSubmit(base);
  harness.Step();
  EXPECT_EQ(harness.told[first].admitted, 1);
  EXPECT_EQ(harness.told[second].admitted, 1);
  harness.RunAll();
}

TEST_F(CoreCacheTest, NobodyWaitsForATwinThatHasOnlyWhatIsLeft) {
  Request batch = Ask(Prompt(0, 12000, 1), 4);
  batch.request_class = RequestClass::kBatch;
  const uint64_t first = harness.MustSubmit(batch);
  harness.Step();
  const uint64_t second = harness.MustSubmit(Ask(Prompt(0, 12000, 1), 4));
  harness.Step();
  EXPECT_EQ(harness.told[second].admitted, 1);
  harness.RunAll();
  EXPECT_EQ(harness.told[first].terminals.size(), 1u);
}

TEST_F(CoreCacheTest, O1_ASnapshotIsPublishedOnlyForWhatItHasAbsorbed) {
  // Every length of a first chunk that the token budget can leave to the second prompt.
  for (uint32_t first_chunk = 64; first_chunk < 2304; first_chunk += 64) {
    SCOPED_TRACE(first_chunk);
    CoreConfig config = CacheConfig();
    config.max_num_batched_tokens = 4096;
    CoreHarness fresh(config);
    const Request a = Ask(Prompt(0, 4096 - first_chunk, 1), 2);
    const Request b = Ask(Prompt(0, 2600, 2), 2);
    fresh.MustSubmit(a);
    fresh.MustSubmit(b);
    fresh.RunAll();
    std::vector<int32_t> text(b.prompt_ids.begin(), b.prompt_ids.begin() + 2304);
    const std::vector<int32_t> question = CoreHarness::Prompt(60, 9);
    text.insert(text.end(), question.begin(), question.end());
    const Request c = Ask(text, 6);
    const uint64_t id = fresh.MustSubmit(c);
    fresh.RunAll();
    EXPECT_EQ(fresh.told[id].tokens, fresh.Alone(c, 6));
    EXPECT_EQ(fresh.told[id].terminals.front().cached_tokens, 2304u);
  }
}

TEST_F(CoreCacheTest, O9_ACancelledPrefillLeavesItsUnitsAndNothingElse) {
  const Request request = Ask(Prompt(0, 12000, 1), 4);
  const uint64_t id = harness.MustSubmit(request);
  harness.Step();  // 4,096 tokens, with the first block
  harness.Plan();  // the second and the third are in flight, with their snapshots
  harness.Cancel(id);
  harness.Answer();
  harness.RunAll();
  ExpectOnlyTheCacheHoldsPages();
  EXPECT_EQ(harness.core.GetLedger().cached_pages, 16u);
  EXPECT_EQ(harness.core.GetLedger().snapshots_used, 1u);
  EXPECT_EQ(Run(request), 2304u);
}

TEST_F(CoreCacheTest, WithoutKeysOrWithPromptLogProbabilitiesTheCacheIsLeftAlone) {
  Request request = Ask(Prompt(0, 1000, 1), 4);
  Request plain = request;
  plain.unit_keys.clear();
  plain.cache_root = {};
  EXPECT_EQ(Run(plain), 0u);
  EXPECT_EQ(harness.core.GetLedger().cached_pages, 0u);
  Run(request);
  Request scored = request;
  scored.prompt_logprobs = true;
  EXPECT_EQ(Run(scored), 0u);
  EXPECT_EQ(Run(request), 768u);
}

TEST_F(CoreCacheTest, ARequestThatOnlyReadsLeavesNothing) {
  const Request first = Ask(Prompt(0, 3000, 1), 4);
  Run(first);
  const Ledger before = harness.core.GetLedger();
  Request more = Ask(Prompt(0, 3000, 1), 600);
  const std::vector<int32_t> tail = Prompt(0, 3000, 2);
  more.prompt_ids.insert(more.prompt_ids.end(), tail.begin(), tail.end());
  CoreHarness::NameUnits(more);
  more.cache_read_only = true;
  EXPECT_EQ(Run(more), 2816u);
  const Ledger after = harness.core.GetLedger();
  EXPECT_EQ(after.cached_pages, before.cached_pages);
  EXPECT_EQ(after.snapshots_used, before.snapshots_used);
  ExpectOnlyTheCacheHoldsPages();
}

TEST_F(CoreCacheTest, OtherDomainsNeverMeet) {
  Request request = Ask(Prompt(0, 1000, 1), 4);
  Run(request);
  Request other = request;
  other.cache_root = {.high = 1, .low = 1};
  for (UnitKey& key : other.unit_keys) key.high ^= 1;
  EXPECT_EQ(Run(other), 0u);
}

TEST_F(CoreCacheTest, TheCacheGivesWayToWhoRuns) {
  CoreConfig config = CacheConfig();
  config.max_model_len = 4096;
  config.pages = 20;
  config.snapshots = 3;
  CoreHarness small(config);
  for (int round = 0; round < 3; ++round) {
    for (int32_t salt = 0; salt < 8; ++salt) {
      const Request request = Ask(Prompt(512, 1500 + 100 * salt, salt), 300);
      const uint64_t id = small.MustSubmit(request);
      small.RunAll();
      EXPECT_EQ(small.told[id].tokens, small.Alone(request, 300));
    }
  }
  EXPECT_GT(small.core.GetLedger().prefix_hit_tokens, 0u);
  EXPECT_EQ(small.core.GetLedger().pages_used, small.core.GetLedger().cached_pages);
}

TEST_F(CoreCacheTest, ALostEngineHoldsNoSnapshotInFlight) {
  harness.MustSubmit(Ask(Prompt(0, 3000, 1), 4));
  harness.Plan();
  EXPECT_EQ(harness.core.GetLedger().snapshots_used, 2u) << "the block and the last unit";
  harness.core.FailAll("lost");
  harness.Drain();
  EXPECT_EQ(harness.core.GetLedger().snapshots_used, 0u);
}

TEST(CoreCacheConfig, NeedsSizesAndUnitsThatArePages) {
  CoreConfig config = CacheConfig();
  EXPECT_EQ(ConfigError(config), "");
  config.page_tokens = 128;
  EXPECT_NE(ConfigError(config).find("page_tokens is 128"), std::string::npos);
  config = CacheConfig();
  config.snapshot_bytes = 0;
  EXPECT_NE(ConfigError(config).find("snapshot_bytes is 0"), std::string::npos);
}

// Conversations that share beginnings, on pools that are too small, with cancels and truncations:
// nobody ever says anything else than alone.
void RunSeed(uint64_t seed, Ledger* sum) {
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  const auto pick = [&](uint32_t low, uint32_t high) {
    return std::uniform_int_distribution<uint32_t>(low, high)(random);
  };
  CoreConfig config = CacheConfig();
  config.slots = pick(1, 5);
  config.max_model_len = pick(2600, 6000);
  const uint32_t context_pages = (config.max_model_len + kUnit - 1) / kUnit;
  config.pages = pick(context_pages, 3 * context_pages);
  config.snapshots = pick(1, 12);
  config.max_num_batched_tokens = pick(64 + config.slots, 3000);
  config.steps_in_flight = 1 + seed % 2;
  CoreHarness harness(config);
  std::vector<std::pair<uint64_t, Request>> asked;
  for (int event = 0; event < 400 && !::testing::Test::HasFailure(); ++event) {
    const uint32_t kind = pick(0, 99);
    if (kind < 15) {
      const uint32_t shared = pick(0, 3) * 700;
      const uint32_t own = pick(1, config.max_model_len - 2200);
      Request request =
          Ask(Prompt(shared, own, static_cast<int32_t>(pick(0, 3))), pick(1, 60), pick(1, 3));
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
  sum->prefix_hit_tokens += ledger.prefix_hit_tokens;
  sum->preemptions += ledger.preemptions;
  sum->cancelled += ledger.cancelled;
}

TEST(CoreCacheRandom, NobodyEverSaysAnythingElseThanAlone) {
  Ledger sum;
  for (uint64_t seed = 1; seed <= Share(300) && !::testing::Test::HasFailure(); ++seed) {
    RunSeed(seed, &sum);
  }
  EXPECT_GT(sum.prefix_hit_tokens, 0u);
  EXPECT_GT(sum.preemptions, Share(1000));
  EXPECT_GT(sum.cancelled, 0u);
}

}  // namespace
}  // namespace quartet::coordinator
