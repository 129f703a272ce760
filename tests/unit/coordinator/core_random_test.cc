#include <algorithm>
#include <map>
#include <random>

#include "tests/unit/coordinator/core_harness.h"

// Random events in random order, with a model whose text betrays every mistake. A seed that fails
// names itself.

namespace quartet::coordinator {
namespace {

struct Life {
  Request request;
  uint32_t limit = 0;  // tokens that it may say at most
  bool cancelled = false;
  std::optional<uint32_t> truncated;
};

CoreConfig RandomConfig(std::mt19937_64& random) {
  const auto pick = [&](uint32_t low, uint32_t high) {
    return std::uniform_int_distribution<uint32_t>(low, high)(random);
  };
  CoreConfig config;
  config.epoch = random();
  config.vocab_size = 1000;
  config.slots = pick(1, 6);
  config.max_model_len = pick(300, 1200);
  config.page_tokens = 64 * pick(1, 4);
  const uint32_t context_pages =
      (config.max_model_len + config.page_tokens - 1) / config.page_tokens;
  config.pages = pick(context_pages, context_pages * 3 / 2);  // short of what all would like
  config.max_num_batched_tokens = pick(64 + config.slots - 1, 600);
  config.prefill_chunk = pick(0, 4) * 64;
  config.max_queued_requests = pick(2, 10);
  config.max_queued_tokens = pick(500, 8000);
  return config;
}

// Adds up what happened, so that the caller can see whether the seeds are worth anything.
void RunSeed(uint64_t seed, Ledger* sum) {
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  const auto pick = [&](uint32_t low, uint32_t high) {
    return std::uniform_int_distribution<uint32_t>(low, high)(random);
  };
  CoreConfig config = RandomConfig(random);
  config.steps_in_flight = 1 + seed % 2;
  CoreHarness harness(config);
  std::map<uint64_t, Life> lives;
  const auto random_life = [&] {
    auto life = lives.begin();
    std::advance(life, pick(0, static_cast<uint32_t>(lives.size()) - 1));
    return life;
  };

  for (int event = 0; event < 1500 && !::testing::Test::HasFailure(); ++event) {
    const uint32_t kind = pick(0, 99);
    if (kind < 12) {
      Life life;
      const uint32_t prompt = pick(1, pick(0, 3) == 0 ? config.max_model_len - 1 : 120);
      const uint32_t room = config.max_model_len - prompt;
      life.request =
          CoreHarness::Ask(prompt, pick(0, 3) == 0 ? 0 : pick(1, std::min(room, 500u)), event);
      life.request.sampling.choice = pick(0, 3);
      life.request.prompt_logprobs = pick(0, 3) == 0;
      life.request.logprobs = pick(0, 1) == 0;
      life.request.end_ids = {static_cast<int32_t>(pick(0, 999)), 77};
      life.request.ignore_eos = pick(0, 3) == 0;
      life.request.stop_ids = {static_cast<int32_t>(pick(0, 999))};
      life.limit = life.request.max_tokens == 0 ? room : life.request.max_tokens;
      const SubmitOutcome outcome = harness.Submit(life.request);
      if (outcome.kind == SubmitOutcome::Kind::kAccepted) {
        lives.emplace(outcome.id, life);
      } else {
        ASSERT_EQ(outcome.kind, SubmitOutcome::Kind::kQueueFull) << outcome.message;
      }
    } else if (kind < 16 && !lives.empty()) {
      auto [id, life] = *random_life();
      const bool open = harness.told[id].terminals.empty();
      harness.Cancel(id);
      if (open) lives[id].cancelled = true;
    } else if (kind < 19 && !lives.empty()) {
      auto [id, life] = *random_life();
      const auto& told = harness.told[id];
      const bool open = told.terminals.empty();
      const auto n = pick(0, static_cast<uint32_t>(told.tokens.size()));
      if (harness.Truncate(id, n) == Core::TruncateOutcome::kDone) {
        ASSERT_TRUE(open);
        lives[id].truncated = n;
      }
    } else if (!harness.pending.empty() && (!harness.core.can_plan() || pick(0, 1) == 0)) {
      harness.Answer();
    } else {
      harness.Plan();
    }
  }
  if (!harness.pending.empty()) harness.Answer();
  harness.RunAll();

  for (const auto& [id, life] : lives) {
    SCOPED_TRACE("request " + std::to_string(id));
    const auto& told = harness.told[id];
    ASSERT_EQ(told.terminals.size(), 1u);
    const Output& end = told.terminals[0];
    const std::vector<int32_t> alone = harness.Alone(life.request, life.limit);
    ASSERT_LE(told.tokens.size(), alone.size());
    EXPECT_TRUE(std::equal(told.tokens.begin(), told.tokens.end(), alone.begin()));
    if (life.request.logprobs) {
      EXPECT_EQ(told.logprobs.size(), told.tokens.size());
    }
    if (life.cancelled) {
      EXPECT_EQ(end.kind, Output::Kind::kCancelled);
      continue;
    }
    ASSERT_EQ(end.kind, Output::Kind::kFinished);
    if (life.request.prompt_logprobs && !told.tokens.empty()) {
      EXPECT_EQ(told.prompt_logprobs.size(), life.request.prompt_ids.size() - 1);
    }
    if (life.truncated.has_value()) {
      EXPECT_EQ(end.reason, FinishReason::kTruncated);
      EXPECT_EQ(end.completion_tokens, *life.truncated);
      continue;
    }
    // It ended at the first token that ends it, not before and not after.
    size_t expected = alone.size();
    FinishReason reason = FinishReason::kLength;
    for (size_t i = 0; i < alone.size(); ++i) {
      const auto in = [&](const std::vector<int32_t>& ids) {
        return std::find(ids.begin(), ids.end(), alone[i]) != ids.end();
      };
      if (!life.request.ignore_eos && in(life.request.end_ids)) {
        reason = FinishReason::kEndToken;
      } else if (in(life.request.stop_ids)) {
        reason = FinishReason::kStopId;
      } else {
        continue;
      }
      expected = i + 1;
      break;
    }
    EXPECT_EQ(told.tokens.size(), expected);
    EXPECT_EQ(end.reason, reason);
    EXPECT_EQ(end.completion_tokens, expected);
  }
  const Ledger ledger = harness.core.GetLedger();
  EXPECT_EQ(ledger.accepted, lives.size());
  EXPECT_EQ(ledger.slots_used, 0u);
  EXPECT_EQ(ledger.pages_used, 0u);
  EXPECT_EQ(harness.workers.open_sequences(), 0u);
  sum->preemptions += ledger.preemptions;
  sum->cancelled += ledger.cancelled;
  sum->finished += ledger.finished;
}

TEST(CoreRandom, EveryTextIsTheTextAloneAndEveryRequestEndsOnce) {
  Ledger sum;
  for (uint64_t seed = 1; seed <= Share(400) && !HasFailure(); ++seed) RunSeed(seed, &sum);
  EXPECT_GT(sum.preemptions, Share(100));
  EXPECT_GT(sum.cancelled, Share(1000));
  EXPECT_GT(sum.finished, Share(5000));
}

}  // namespace
}  // namespace quartet::coordinator
