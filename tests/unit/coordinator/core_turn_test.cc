#include <gmock/gmock.h>

#include <algorithm>
#include <random>
#include <tuple>

#include "tests/unit/coordinator/core_harness.h"

// Answers in the prefix cache: what a turn leaves for the next one.

namespace quartet::coordinator {
namespace {

using quartet::testing::DraftRule;
using ::testing::SizeIs;

constexpr uint32_t kUnit = 256;

CoreConfig TurnConfig(uint32_t drafts, uint32_t steps_in_flight = 1) {
  CoreConfig config = CoreHarness::Config();
  config.max_model_len = 16384;
  config.pages = 256;
  config.max_num_batched_tokens = 4096;
  config.max_queued_requests = 32;
  config.snapshots = 64;
  config.page_bytes = 1;
  config.snapshot_bytes = 20;
  config.num_speculative_tokens = drafts;
  config.spec_dynamic = false;
  config.steps_in_flight = steps_in_flight;
  return config;
}

Request Ask(std::vector<int32_t> prompt, uint32_t max_tokens, uint64_t seed = 1) {
  Request request;
  request.prompt_ids = std::move(prompt);
  request.max_tokens = max_tokens;
  request.sampling.seed = seed;
  CoreHarness::NameUnits(request);
  return request;
}

std::vector<int32_t> Joined(std::vector<int32_t> text, const std::vector<int32_t>& more) {
  text.insert(text.end(), more.begin(), more.end());
  return text;
}

// With the speculation of so many tokens, and so many steps in flight.
class CoreTurn : public ::testing::TestWithParam<std::tuple<uint32_t, uint32_t>> {
 protected:
  // Runs a request to its end, alone, and checks its text. Returns its cached tokens.
  uint32_t Run(const Request& request) {
    const uint64_t id = harness.MustSubmit(request);
    harness.RunAll();
    EXPECT_EQ(harness.told[id].tokens, harness.Alone(request, request.max_tokens));
    EXPECT_THAT(harness.told[id].terminals, SizeIs(1));
    const Ledger ledger = harness.core.GetLedger();
    EXPECT_EQ(ledger.pages_used, ledger.cached_pages);
    EXPECT_EQ(ledger.slots_used, 0u);
    return harness.told[id].terminals.front().cached_tokens;
  }
  // The prompt of the turn after this one.
  std::vector<int32_t> Next(const Request& request, size_t answer_tokens, int32_t salt = 77) {
    return Joined(Joined(request.prompt_ids, harness.Alone(request, answer_tokens)),
                  CoreHarness::Prompt(100, salt));
  }

  CoreConfig Config() const { return TurnConfig(std::get<0>(GetParam()), std::get<1>(GetParam())); }

  CoreHarness harness{Config()};
};

INSTANTIATE_TEST_SUITE_P(DraftsAndSteps, CoreTurn,
                         ::testing::Combine(::testing::Values(0, 1, 2, 3),
                                            ::testing::Values(1, 2)));

TEST_P(CoreTurn, TheNextTurnBeginsBehindTheLastUnitOfTheAnswer) {
  for (const uint32_t answer : {1, 5, 100, 255, 256, 257, 600, 1000}) {
    SCOPED_TRACE(answer);
    const Request request = Ask(CoreHarness::Prompt(300, static_cast<int32_t>(answer)), answer);
    EXPECT_EQ(Run(request), 0u);
    // The answer's last token is not absorbed.
    EXPECT_EQ(Run(Ask(Next(request, answer), 4)), (300 + answer - 1) / kUnit * kUnit);
  }
}

TEST_P(CoreTurn, APromptThatFillsNoUnitIsCachedWithItsAnswer) {
  const Request request = Ask(CoreHarness::Prompt(50, 3), 300);
  EXPECT_EQ(Run(request), 0u);
  EXPECT_EQ(Run(Ask(Next(request, 300), 4)), 256u);
}

TEST_P(CoreTurn, AConversationNeverPaysForItsPrefixTwice) {
  std::vector<int32_t> text = CoreHarness::Prompt(700, 1);
  uint32_t known = 0;
  for (int turn = 0; turn < 12; ++turn) {
    SCOPED_TRACE(turn);
    const uint32_t answer = 150 + 37 * static_cast<uint32_t>(turn);
    const Request request = Ask(text, answer);
    EXPECT_EQ(Run(request), known);
    known = (static_cast<uint32_t>(text.size()) + answer - 1) / kUnit * kUnit;
    text = Next(request, answer, 100 + turn);
  }
}

TEST_P(CoreTurn, ALongAnswerLeavesItsBlocksForWhoGoesBack) {
  const Request request = Ask(CoreHarness::Prompt(300, 1), 7000);
  Run(request);
  for (const uint32_t kept : {4700, 2400}) {
    std::vector<int32_t> text = Joined(request.prompt_ids, harness.Alone(request, kept));
    text.push_back(999);
    EXPECT_EQ(Run(Ask(text, 3)), (300u + kept) / 2304 * 2304);
  }
}

TEST_P(CoreTurn, O5_ATruncatedAnswerIsCachedUpToItsEndAndNotFurther) {
  // The stop string is found some tokens late, and before, at and behind the edge of a unit.
  for (const uint32_t late : {0, 1, 3, 9, 40}) {
    for (const uint32_t keep : {200, 211, 212, 213, 230}) {
      SCOPED_TRACE(keep);
      SCOPED_TRACE(late);
      CoreHarness fresh(Config());
      const Request request = Ask(CoreHarness::Prompt(300, 1), 1000);
      const uint64_t id = fresh.MustSubmit(request);
      while (fresh.told[id].tokens.size() < keep + late) fresh.Step();
      const auto said = static_cast<uint32_t>(fresh.told[id].tokens.size());
      ASSERT_EQ(fresh.Truncate(id, keep), Core::TruncateOutcome::kDone);
      fresh.RunAll();
      // The token that was said last is not absorbed.
      const uint32_t units = (300 + std::min(keep, said - 1)) / kUnit;
      EXPECT_EQ(fresh.core.GetLedger().pages_used, fresh.core.GetLedger().cached_pages);
      EXPECT_EQ(fresh.core.GetLedger().cached_pages, units);

      // What the client saw, and something else behind it.
      std::vector<int32_t> text = Joined(request.prompt_ids, fresh.Alone(request, keep));
      const Request next = Ask(Joined(text, CoreHarness::Prompt(100, 5)), 20);
      const uint64_t follow = fresh.MustSubmit(next);
      fresh.RunAll();
      EXPECT_EQ(fresh.told[follow].tokens, fresh.Alone(next, 20));
      EXPECT_EQ(fresh.told[follow].terminals[0].cached_tokens, units * kUnit);
    }
  }
}

TEST_P(CoreTurn, O5_ATruncateWhileAStepRunsCostsAUnitAtMost) {
  for (uint32_t keep = 205; keep <= 220; ++keep) {
    SCOPED_TRACE(keep);
    CoreHarness fresh(Config());
    const Request request = Ask(CoreHarness::Prompt(300, 1), 1000);
    const uint64_t id = fresh.MustSubmit(request);
    while (fresh.told[id].tokens.size() < keep) fresh.Step();
    fresh.Plan();
    fresh.Truncate(id, keep);
    fresh.Answer();
    fresh.RunAll();
    EXPECT_EQ(fresh.core.GetLedger().pages_used, fresh.core.GetLedger().cached_pages);
    const Request next = Ask(
        Joined(Joined(request.prompt_ids, fresh.Alone(request, keep)), CoreHarness::Prompt(80, 5)),
        20);
    const uint64_t follow = fresh.MustSubmit(next);
    fresh.RunAll();
    EXPECT_EQ(fresh.told[follow].tokens, fresh.Alone(next, 20));
    EXPECT_GE(fresh.told[follow].terminals[0].cached_tokens, 256u);
  }
}

TEST_P(CoreTurn, WhatACancelledClientWasToldIsCached) {
  const Request request = Ask(CoreHarness::Prompt(300, 1), 1000);
  const uint64_t id = harness.MustSubmit(request);
  while (harness.told[id].tokens.size() < 500) harness.Step();
  harness.Cancel(id);
  harness.RunAll();
  EXPECT_EQ(Run(Ask(Next(request, 480), 4)), 768u);
}

TEST_P(CoreTurn, AnAnswerWithANumberThatIsNoneIsNotCached) {
  const Request request = Ask(CoreHarness::Prompt(300, 1), 1000);
  const uint64_t id = harness.MustSubmit(request);
  while (harness.told[id].tokens.size() < 500) harness.Step();
  harness.Plan();
  harness.pending.front().outcome.rows[0].error = "not finite";
  harness.Answer();
  harness.RunAll();
  EXPECT_EQ(Run(Ask(Next(request, 480), 4)), 256u) << "the prompt's own unit";
}

TEST_P(CoreTurn, TheSameAnswerTwiceAtOnceIsCachedOnce) {
  const Request request = Ask(CoreHarness::Prompt(300, 1), 600);
  const uint64_t a = harness.MustSubmit(request), b = harness.MustSubmit(request);
  harness.RunAll();
  EXPECT_EQ(harness.told[a].tokens, harness.told[b].tokens);
  const Ledger ledger = harness.core.GetLedger();
  EXPECT_EQ(ledger.cached_pages, 3u);
  EXPECT_EQ(ledger.pages_used, 3u);
}

TEST_P(CoreTurn, ALostEngineKeepsNothingBack) {
  const Request request = Ask(CoreHarness::Prompt(300, 1), 1000);
  const uint64_t a = harness.MustSubmit(request);
  const uint64_t b = harness.MustSubmit(Ask(CoreHarness::Prompt(300, 2), 1000));
  while (harness.told[a].tokens.size() < 500) harness.Step();
  harness.Truncate(b, 400);
  harness.core.FailAll("lost");
  harness.Drain();
  const Ledger ledger = harness.core.GetLedger();
  EXPECT_EQ(ledger.slots_used, 0u);
  EXPECT_EQ(ledger.pages_used, ledger.cached_pages);
}

// O2: lengths that land on an edge, cold and as a repetition, with every number of accepted drafts
// across it.
TEST(CoreEdges, O2_AcrossABlockWithAnyAcceptanceTheTextIsTheTextAlone) {
  for (uint32_t run = 0; run < 8; ++run) {
    const uint32_t accepted = run / 2, steps_in_flight = 1 + run % 2;
    SCOPED_TRACE(steps_in_flight);
    const DraftRule drafts = [accepted](uint32_t position, const v1::SamplingParams&) {
      return position % (accepted + 1) != 0;
    };
    for (const uint32_t length : {1, 2303, 2304, 2305, 4607, 4608, 4609}) {
      SCOPED_TRACE(length);
      SCOPED_TRACE(accepted);
      CoreHarness harness(TurnConfig(3, steps_in_flight), std::nullopt, drafts);
      const uint32_t answer = (length / 2304 + 1) * 2304 - length + 12;
      const Request request = Ask(CoreHarness::Prompt(length, 4), answer);
      for (const bool repeated : {false, true}) {
        const uint64_t id = harness.MustSubmit(request);
        harness.RunAll();
        EXPECT_EQ(harness.told[id].tokens, harness.Alone(request, answer));
        const uint32_t cached = harness.told[id].terminals[0].cached_tokens;
        EXPECT_EQ(cached, repeated ? (length - 1) / kUnit * kUnit : 0);
      }
    }
  }
}

// O4 with speculation: what is shared is found whatever is drafted.
TEST(CoreEdges, O4_SpeculationChangesNoHit) {
  std::vector<std::vector<uint32_t>> cached;
  for (const uint32_t drafts : {0u, 3u}) {
    CoreHarness harness(TurnConfig(drafts));
    cached.emplace_back();
    for (int32_t i = 0; i < 10; ++i) {
      const Request request =
          Ask(Joined(CoreHarness::Prompt(6000), CoreHarness::Prompt(1500, i + 1)), 40);
      const uint64_t id = harness.MustSubmit(request);
      harness.RunAll();
      EXPECT_EQ(harness.told[id].tokens, harness.Alone(request, 40));
      cached.back().push_back(harness.told[id].terminals[0].cached_tokens);
      if (i > 0) {
        EXPECT_GE(cached.back().back(), 4608u);
      }
    }
  }
  EXPECT_EQ(cached[0], cached[1]);
}

// Conversations that share beginnings, branch and go on behind answers, on pools that are too
// small, with cancels and truncations: nobody ever says anything else than alone.
void RunSeed(uint64_t seed, Ledger* sum) {
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  const auto pick = [&](uint32_t low, uint32_t high) {
    return std::uniform_int_distribution<uint32_t>(low, high)(random);
  };
  CoreConfig config = TurnConfig(pick(0, 3));
  config.spec_dynamic = pick(0, 1) == 0;
  config.slots = pick(1, 5);
  config.max_model_len = pick(1500, 4000);
  const uint32_t context_pages = (config.max_model_len + kUnit - 1) / kUnit;
  config.pages = pick(context_pages, 3 * context_pages);
  config.snapshots = pick(1, 20);
  config.snapshot_policy.block_tokens = kUnit * pick(1, 9);
  config.max_num_batched_tokens = pick(64 + config.slots, 3000);
  config.steps_in_flight = 1 + seed % 2;
  CoreHarness harness(config, std::nullopt, quartet::testing::HashChainDrafts(pick(0, 100)));
  std::vector<std::pair<uint64_t, Request>> asked;
  for (int event = 0; event < 700 && !::testing::Test::HasFailure(); ++event) {
    const uint32_t kind = pick(0, 99);
    if (kind < 12) {
      std::vector<int32_t> prompt = CoreHarness::Prompt(pick(0, 2) * 400);
      if (!asked.empty() && pick(0, 3) > 0) {  // behind some answer, or inside of it
        const auto& [id, before] = asked[pick(0, static_cast<uint32_t>(asked.size()) - 1)];
        prompt = Joined(before.prompt_ids, harness.told[id].tokens);
        prompt.resize(prompt.size() - pick(0, static_cast<uint32_t>(prompt.size() / 4)));
      }
      prompt = Joined(prompt, CoreHarness::Prompt(pick(1, 300), static_cast<int32_t>(pick(0, 9))));
      Request request = Ask(std::move(prompt), pick(1, 500), pick(1, 3));
      // Others take their place from these.
      if (pick(0, 2) == 0) request.request_class = RequestClass::kBatch;
      request.stop_ids = {7, 77};
      if (request.prompt_ids.size() + request.max_tokens > config.max_model_len) continue;
      const SubmitOutcome outcome = harness.Submit(request);
      if (outcome.kind == SubmitOutcome::Kind::kAccepted) {
        asked.emplace_back(outcome.id, std::move(request));
      }
    } else if (kind < 14 && !asked.empty()) {
      harness.Cancel(asked[pick(0, static_cast<uint32_t>(asked.size()) - 1)].first);
    } else if (kind < 16 && !asked.empty()) {
      const uint64_t id = asked[pick(0, static_cast<uint32_t>(asked.size()) - 1)].first;
      harness.Truncate(id, pick(0, static_cast<uint32_t>(harness.told[id].tokens.size())));
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
  EXPECT_EQ(ledger.slots_used, 0u);
  EXPECT_EQ(harness.workers.open_sequences(), 0u);
  sum->prefix_hit_tokens += ledger.prefix_hit_tokens;
  sum->preemptions += ledger.preemptions;
  sum->spec_accepted_tokens += ledger.spec_accepted_tokens;
}

TEST(CoreTurnRandom, NobodyEverSaysAnythingElseThanAlone) {
  Ledger sum;
  for (uint64_t seed = 1; seed <= Share(120) && !::testing::Test::HasFailure(); ++seed) {
    RunSeed(seed, &sum);
  }
  EXPECT_GT(sum.prefix_hit_tokens, Share(10000));
  EXPECT_GT(sum.preemptions, Share(300));
  EXPECT_GT(sum.spec_accepted_tokens, Share(1000));
}

}  // namespace
}  // namespace quartet::coordinator
