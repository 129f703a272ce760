#include <gmock/gmock.h>

#include <algorithm>
#include <utility>

#include "services/coordinator/simulation/random.h"
#include "services/coordinator/simulation/report.h"
#include "tests/simulation/scripted.h"

// Failures that users of other servers reported, each under its case number. The auditor checks the
// invariants in all of them; what stands here is what the case asks for beside.

namespace quartet::simulation {
namespace {

using coordinator::Output;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using Kind = TraceEvent::Kind;

// The steps that had a row for this sequence.
std::vector<uint64_t> StepsWithRow(const ScriptedRun& run, uint64_t seq) {
  std::vector<uint64_t> steps;
  for (const TraceEvent& row : run.Of(Kind::kRow)) {
    if (row.a == seq) steps.push_back(row.step);
  }
  return steps;
}

// Rows of this sequence in plans after the (only) cancel.
size_t RowsAfterCancel(const ScriptedRun& run, uint64_t seq) {
  const auto cancel = std::find_if(run.events.begin(), run.events.end(),
                                   [](const TraceEvent& e) { return e.kind == Kind::kCancel; });
  EXPECT_NE(cancel, run.events.end()) << "nobody cancelled";
  return std::count_if(cancel, run.events.end(),
                       [seq](const TraceEvent& e) { return e.kind == Kind::kRow && e.a == seq; });
}

// ---- O2: lengths that land on the edge of a block, with drafts ----------------------------------

// The engine of the cases about the cache: its units and blocks are the real ones.
Scenario CachedEngine(uint32_t drafts) {
  Scenario scenario = SmallEngine();
  scenario.config.max_model_len = 16384;
  scenario.config.pages = 256;
  scenario.config.max_num_batched_tokens = 4096;
  scenario.config.snapshots = 64;
  scenario.config.page_bytes = 1;
  scenario.config.snapshot_bytes = 10;
  scenario.config.num_speculative_tokens = drafts;
  scenario.config.spec_dynamic = false;
  return scenario;
}

// What the sequence of this client began behind.
uint64_t CachedTokens(const ScriptedRun& run, uint64_t seed) {
  for (const TraceEvent& event : run.Of(Kind::kResume)) {
    if (event.a == run.SeqOf(seed)) return event.b;
  }
  return 0;
}

struct Edge {
  uint32_t length;
  uint32_t wrong_draft_every;  // one more than drafts are accepted
};

class O2 : public ::testing::TestWithParam<Edge> {};

TEST_P(O2, ColdAndRepeatedTheTextIsTheTextAlone) {
  const auto [length, wrong_draft_every] = GetParam();
  Scenario scenario = CachedEngine(3);
  scenario.model.wrong_draft_every = wrong_draft_every;
  const uint32_t answer = (length / 2304 + 1) * 2304 - length + 12;
  ClientScript cold = Patient(1, length, answer);
  cold.domain = 0;
  ClientScript again = cold;
  again.gap_us = 600000000;  // when the first is long done
  again.request.sampling.seed = 2;
  scenario.next_client = Clients({cold, again});
  const HashModel model = scenario.model;
  const ScriptedRun run = RunScript(std::move(scenario));
  ASSERT_TRUE(run.result.ok()) << DescribeFailure(0, run.result);
  EXPECT_THAT(run.clients[0]->tokens, ElementsAreArray(AloneText(model, cold, answer)));
  EXPECT_THAT(run.clients[1]->tokens, ElementsAreArray(AloneText(model, again, answer)));
  EXPECT_EQ(CachedTokens(run, 1), 0u);
  EXPECT_EQ(CachedTokens(run, 2), (length - 1) / 256 * 256) << "one token is computed at least";
  EXPECT_GT(run.result.tally.windows[wrong_draft_every - 1], 3u);
}

std::vector<Edge> Edges() {
  std::vector<Edge> edges;
  for (const uint32_t length : {1, 2303, 2304, 2305, 4607, 4608, 4609}) {
    for (uint32_t every = 1; every <= 4; ++every) edges.push_back({length, every});
  }
  return edges;
}

INSTANTIATE_TEST_SUITE_P(Edges, O2, ::testing::ValuesIn(Edges()));

// ---- O3: a request that can never take a step ---------------------------------------------------

class O3 : public ::testing::TestWithParam<uint32_t> {};

// Four streams leave a budget that cuts every chunk short of a block and of a page.
TEST_P(O3, APromptBesideFourStreamsGoesOnInEveryStep) {
  Scenario scenario = SmallEngine();
  scenario.config.slots = 5;
  scenario.config.pages = 80;
  scenario.config.max_model_len = 8192;
  scenario.config.max_num_batched_tokens = GetParam();
  std::vector<ClientScript> clients;
  for (uint64_t seed = 1; seed <= 4; ++seed) clients.push_back(Patient(seed, 20, 400));
  clients.push_back(Patient(5, 5000, 1, 100000));
  scenario.next_client = Clients(clients);
  const ScriptedRun run = RunScript(std::move(scenario));
  ASSERT_TRUE(run.result.ok()) << DescribeFailure(0, run.result);

  const std::vector<uint64_t> steps = StepsWithRow(run, run.SeqOf(5));
  ASSERT_THAT(steps, ::testing::Not(IsEmpty()));
  EXPECT_EQ(steps.back() - steps.front() + 1, steps.size()) << "a step went by without it";
  // The last chunk is all that is left, if it fits; those before are multiples of 64.
  const uint32_t room = GetParam() - 4;
  const uint32_t chunk = room / 64 * 64;
  EXPECT_EQ(steps.size(), 1 + (5000 - room + chunk - 1) / chunk);
  EXPECT_EQ(run.clients[4]->end->reason, coordinator::FinishReason::kLength);
}

// A time budget that holds no chunk at all.
TEST(O3Time, APromptBesideFourStreamsGoesOnHoweverShortTheQuantumIs) {
  Scenario scenario = SmallEngine();
  scenario.config.slots = 5;
  scenario.config.pages = 80;
  scenario.config.max_model_len = 8192;
  scenario.config.max_num_batched_tokens = 512;
  scenario.config.prefill_quantum_ms = 1;
  std::vector<ClientScript> clients;
  for (uint64_t seed = 1; seed <= 4; ++seed) clients.push_back(Patient(seed, 20, 400));
  clients.push_back(Patient(5, 5000, 1, 100000));
  scenario.next_client = Clients(clients);
  const ScriptedRun run = RunScript(std::move(scenario));
  ASSERT_TRUE(run.result.ok()) << DescribeFailure(0, run.result);
  const std::vector<uint64_t> steps = StepsWithRow(run, run.SeqOf(5));
  EXPECT_EQ(steps.back() - steps.front() + 1, steps.size()) << "a step went by without it";
  EXPECT_EQ(steps.size(), (5000u + 63) / 64);
}

INSTANTIATE_TEST_SUITE_P(Budgets, O3, ::testing::Values(68, 69, 131, 132, 304, 512));

// ---- O4: a shared prefix, with and without drafts -----------------------------------------------

TEST(O4, FromTheSecondRequestOnTheSharedPrefixIsFoundWhateverIsDrafted) {
  std::vector<std::vector<uint64_t>> cached;
  for (const uint32_t drafts : {0u, 3u}) {
    Scenario scenario = CachedEngine(drafts);
    std::vector<ClientScript> clients;
    const coordinator::Request system = MakeRequest(4, 6000, 1, 1000);
    for (uint64_t seed = 1; seed <= 10; ++seed) {
      clients.push_back(Patient(seed, 7500, 40, 60000000));
      clients.back().domain = 0;
      std::copy(system.prompt_ids.begin(), system.prompt_ids.end(),
                clients.back().request.prompt_ids.begin());
    }
    scenario.next_client = Clients(std::move(clients));
    const ScriptedRun run = RunScript(std::move(scenario));
    ASSERT_TRUE(run.result.ok()) << DescribeFailure(0, run.result);
    cached.emplace_back();
    for (uint64_t seed = 1; seed <= 10; ++seed) {
      cached.back().push_back(CachedTokens(run, seed));
      // The last block in front of where the texts part, and then that.
      if (seed >= 2) {
        EXPECT_GE(cached.back().back(), seed == 2 ? 4608u : 5888u);
      }
    }
  }
  EXPECT_EQ(cached[0], cached[1]);
}

// ---- O5: tokens that nobody saw -----------------------------------------------------------------

// The stop string ends at each place around the edge of a unit, the news of it comes some tokens
// late, and the next turn is what the client saw.
TEST(O5, TheNextTurnBeginsBehindTheLastUnitThatTheClientSawAndNoFurther) {
  for (uint32_t keep = 205; keep <= 218; ++keep) {
    for (const uint32_t late : {0u, 2u, 7u}) {
      SCOPED_TRACE(keep);
      Scenario scenario = CachedEngine(3);
      scenario.model.draft_percent = 90;
      ClientScript client = Patient(1, 300, 600);
      client.domain = 0;
      client.truncate_token = keep + late;
      client.truncate_to = keep;
      client.turns = 1;
      client.turn_tokens = 50;
      scenario.next_client = Clients({client});
      const ScriptedRun run = RunScript(std::move(scenario));
      ASSERT_TRUE(run.result.ok()) << DescribeFailure(0, run.result);
      EXPECT_EQ(run.clients[0]->end->completion_tokens, keep);
      ASSERT_THAT(run.clients, SizeIs(2));
      const std::vector<TraceEvent> resumes = run.Of(Kind::kResume);
      ASSERT_THAT(resumes, SizeIs(1));
      EXPECT_LE(resumes[0].b, 300 + keep);
      EXPECT_GE(resumes[0].b, keep < 212 ? 256u : late > 4 ? 512u : 256u);
    }
  }
}

// ---- O6: long conversations whose cache comes and goes ------------------------------------------

// Three conversations of 20 turns to 70,000 tokens each take turns on a pool that holds one of them
// and a half: what is restored belongs to its name, and nobody loops. (Tiers below the device, and
// a byte of theirs that breaks, are not part of this engine.)
TEST(O6, WhatIsRestoredOverTwentyTurnsSaysTheTextAlone) {
  Scenario scenario = CachedEngine(3);
  scenario.config.max_model_len = 80000;
  scenario.config.pages = 470;
  scenario.config.snapshots = 24;
  scenario.config.slots = 2;
  std::vector<ClientScript> clients;
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    clients.push_back(Patient(seed, 1000, 200, 1000000));
    clients.back().domain = 0;
    clients.back().turns = 20;
    clients.back().turn_tokens = 3250;
    clients.back().think_us = 3000000;
  }
  scenario.next_client = Clients(std::move(clients));
  const ScriptedRun run = RunScript(std::move(scenario), 100000);
  ASSERT_TRUE(run.result.ok()) << DescribeFailure(0, run.result);
  EXPECT_EQ(run.clients.size(), 63u);
  for (const auto& client : run.clients) {
    ASSERT_TRUE(client->end.has_value());
    EXPECT_EQ(client->end->reason, coordinator::FinishReason::kLength);
  }
  EXPECT_GT(run.result.tally.resumed_in_answers, 10u);
  EXPECT_LT(run.result.tally.resumed_tokens, 1900000u) << "nothing was evicted";
}

// ---- O9: the client left ------------------------------------------------------------------------

TEST(O9, AQueuedRequestWhoseClientLeftNeverRuns) {
  Scenario scenario = SmallEngine();
  scenario.config.slots = 1;
  ClientScript leaver = Patient(2, 100, 50, 1000);
  leaver.leaves = ClientScript::Leaves::kAfterSubmit;
  leaver.leave_after_us = 50000;
  scenario.next_client = Clients({Patient(1, 100, 100), leaver, Patient(3, 100, 5)});
  const ScriptedRun run = RunScript(std::move(scenario));
  ASSERT_TRUE(run.result.ok()) << DescribeFailure(0, run.result);
  EXPECT_EQ(run.SeqOf(2), 0u) << "it was opened";
  EXPECT_EQ(run.clients[1]->end->kind, Output::Kind::kCancelled);
  EXPECT_EQ(run.result.tally.cancelled_queued, 1u);
  EXPECT_THAT(run.clients[2]->tokens, SizeIs(5));
}

TEST(O9, InTheMiddleOfAPrefillThereIsNoFurtherChunk) {
  Scenario scenario = SmallEngine();
  scenario.config.max_model_len = 32768;
  scenario.config.pages = 128;
  ClientScript leaver = Patient(1, 30000, 4096 - 2000);
  leaver.leaves = ClientScript::Leaves::kAfterAdmission;
  leaver.leave_after_us = 500000;
  scenario.next_client = Clients({leaver});
  const ScriptedRun run = RunScript(std::move(scenario));
  ASSERT_TRUE(run.result.ok()) << DescribeFailure(0, run.result);
  EXPECT_GT(StepsWithRow(run, run.SeqOf(1)).size(), 10u) << "it left before the middle";
  EXPECT_EQ(RowsAfterCancel(run, run.SeqOf(1)), 0u);
  EXPECT_LE(run.result.tally.void_rows, 1u);
  EXPECT_EQ(run.result.tally.cancelled_prefill, 1u);
  EXPECT_THAT(run.clients[0]->tokens, IsEmpty());
  // The auditor finds the ledger's pages and slots free in the same turn (I5, I14).
}

TEST(O9, InDecodeItCostsAtMostOneFurtherStepAndHarmsNobody) {
  Scenario scenario = SmallEngine();
  ClientScript leaver = Patient(2, 100, 3000);
  leaver.leaves = ClientScript::Leaves::kAfterToken;
  leaver.leave_token = 10;
  leaver.leave_after_us = 1000;  // in the middle of the step after
  const ClientScript neighbour = Patient(1, 100, 60);
  scenario.next_client = Clients({neighbour, leaver});
  const HashModel model = scenario.model;
  const ScriptedRun run = RunScript(std::move(scenario));
  ASSERT_TRUE(run.result.ok()) << DescribeFailure(0, run.result);
  EXPECT_EQ(RowsAfterCancel(run, run.SeqOf(2)), 0u);
  EXPECT_EQ(run.result.tally.void_rows, 1u) << "the step in flight, and no other";
  EXPECT_EQ(run.result.tally.cancelled_decode, 1u);
  EXPECT_THAT(run.clients[1]->tokens, SizeIs(10));
  EXPECT_THAT(run.clients[0]->tokens, ElementsAreArray(AloneText(model, neighbour, 60)));
}

TEST(O9, WhoDoesNotReadIsPausedAndHarmsNobodyAndIsEndedWhenThatLasts) {
  Scenario scenario = SmallEngine();
  scenario.slow_client_tokens = 20;
  scenario.slow_client_us = 3000000;
  ClientScript slow = Patient(1, 100, 300);
  slow.read_us = 30000;
  ClientScript dead = Patient(2, 100, 3000);
  dead.read_us = 100000000;
  const ClientScript brisk = Patient(3, 100, 200);
  scenario.next_client = Clients({slow, dead, brisk});
  const HashModel model = scenario.model;
  const ScriptedRun run = RunScript(std::move(scenario));
  ASSERT_TRUE(run.result.ok()) << DescribeFailure(0, run.result);
  EXPECT_GT(run.result.tally.pauses, 5u);
  EXPECT_THAT(run.clients[0]->tokens, ElementsAreArray(AloneText(model, slow, 300)));
  EXPECT_EQ(run.clients[1]->end->kind, Output::Kind::kCancelled);
  EXPECT_LT(run.clients[1]->tokens.size(), 30u);
  EXPECT_THAT(run.clients[2]->tokens, ElementsAreArray(AloneText(model, brisk, 200)));
  EXPECT_EQ(run.result.tally.cancelled_decode, 1u);
}

// ---- O10: prefill wins every step ---------------------------------------------------------------

// Three streams on an engine that reads 1,400 tokens of prompt in a second, and for five minutes
// prompts of 5,000 tokens that come faster than it reads them beside the streams; in the middle a
// short one.
class O10 : public ::testing::Test {
 protected:
  static constexpr TimeUs kSecond = 1000000;
  static constexpr TimeUs kMinute = 60 * kSecond;
  static constexpr uint64_t kShort = 1000;
  static constexpr TimeUs kDecodeStepUs = 22000;
  static constexpr TimeUs kQuantumUs = 300000;

  static Scenario Overload() {
    Scenario scenario = SmallEngine();
    scenario.config.slots = 8;
    scenario.config.max_model_len = 8192;
    scenario.config.pages = 256;
    scenario.config.max_num_batched_tokens = 4096;
    scenario.config.max_queued_requests = 4;
    scenario.config.prefill_quantum_ms = 300;
    scenario.config.min_decode_share = 0.5;
    scenario.cost = {.step_us = 20000, .row_us = 500, .token_ns = 714000, .context_ns = 0};

    std::vector<ClientScript> clients;
    for (uint64_t seed = 1; seed <= 3; ++seed) clients.push_back(Patient(seed, 64, 8000));
    // Beside the streams a step has 384 tokens of a prompt, takes 296 ms, and is followed by as
    // much time for decoding.
    const uint64_t capacity_us = uint64_t{5000} * 592000 / 384;
    Random random(10, 0);
    TimeUs time = 0;
    for (uint64_t seed = 10; time < 5 * kMinute; ++seed) {
      const TimeUs gap = static_cast<TimeUs>(random.Gap(capacity_us * 100 / 120));
      if (time < 5 * kMinute / 2 && time + gap >= 5 * kMinute / 2) {
        clients.push_back(Patient(kShort, 200, 1, 5 * kMinute / 2 - time));
        clients.push_back(Patient(seed, 5000, 1, time + gap - 5 * kMinute / 2));
      } else {
        clients.push_back(Patient(seed, 5000, 1, gap));
      }
      time += gap;
    }
    scenario.next_client = Clients(std::move(clients));
    return scenario;
  }

  void Run(Scenario scenario) {
    run_ = RunScript(std::move(scenario), 20000);
    ASSERT_TRUE(run_.result.ok()) << DescribeFailure(0, run_.result);
    const auto brief = std::find_if(run_.clients.begin(), run_.clients.end(),
                                    [](const auto& client) { return client->seed == kShort; });
    ASSERT_NE(brief, run_.clients.end());
    ASSERT_THAT((*brief)->token_times, SizeIs(1)) << "it was refused";
    brief_ = brief->get();
  }

  ScriptedRun run_;
  const ClientRecord* brief_ = nullptr;
};

TEST_F(O10, StreamsGoOnWhilePromptsComeFasterThanTheyCanBeRead) {
  Run(Overload());
  std::vector<TimeUs> gaps;
  for (int stream = 0; stream < 3; ++stream) {
    const std::vector<TimeUs>& times = run_.clients[stream]->token_times;
    for (size_t i = 1; i < times.size(); ++i) gaps.push_back(times[i] - times[i - 1]);
  }
  ASSERT_GT(gaps.size(), 20000u);
  std::sort(gaps.begin(), gaps.end());
  EXPECT_LE(gaps[gaps.size() * 99 / 100], kQuantumUs + 2 * kDecodeStepUs);
  EXPECT_GE(gaps.back(), kQuantumUs * 9 / 10) << "prompts did not use their time";
}

TEST_F(O10, WhatIsTooMuchWaitsAndIsThenRefusedUntilTheWorkBeforeItIsDone) {
  Run(Overload());
  size_t refused = 0;
  for (const auto& client : run_.clients) {
    if (!client->refused) continue;
    ++refused;
    // What was before it: all that were let in and had no token yet.
    TimeUs done = client->submitted;
    for (const auto& other : run_.clients) {
      if (!other->refused && other->submitted < client->submitted) {
        done = std::max(done, other->token_times.front());
      }
    }
    const auto drain_s = static_cast<double>(done - client->submitted) / kSecond;
    if (drain_s < 5) continue;
    EXPECT_NEAR(client->retry_after_ms / 1000.0, drain_s, 0.5 * drain_s);
  }
  EXPECT_GE(refused, 4u);
  EXPECT_LT(refused, run_.clients.size() / 3);
  for (const TraceEvent& event : run_.Of(Kind::kRefuse)) {
    EXPECT_THAT(event.note, HasSubstr("the queue is full"));
  }
}

TEST_F(O10, AShortPromptIsAnsweredBeforeLongOnesThatHaveNotWaitedTheirTime) {
  Run(Overload());
  size_t later = 0;
  for (const auto& other : run_.clients) {
    if (other->refused || other->seed < 10 || other.get() == brief_) continue;
    const TimeUs first_token = other->token_times.front();
    if (other->submitted > brief_->submitted) {
      ++later;
      EXPECT_LT(brief_->token_times[0], first_token);
    } else if (first_token > brief_->submitted && first_token < brief_->token_times[0]) {
      EXPECT_GE(first_token - other->submitted, 20 * kSecond) << "seed " << other->seed;
    }
  }
  EXPECT_GT(later, 10u);
}

TEST_F(O10, AShortPromptIsAnsweredFirstWhereNobodyBecomesUnovertakable) {
  Scenario scenario = Overload();
  scenario.config.max_wait_ms = 300000;
  Run(std::move(scenario));
  EXPECT_LE(brief_->token_times[0] - brief_->submitted, 3 * kQuantumUs);
}

// ---- O11: ranks that do not agree ---------------------------------------------------------------

class O11 : public ::testing::TestWithParam<uint32_t> {};

TEST_P(O11, WhenOneRankDiffersNothingOfTheStepLeaves) {
  constexpr uint64_t kWrongStep = 50;
  Scenario scenario = SmallEngine();
  scenario.ranks = 4;
  scenario.fault = [rank = GetParam()](uint64_t epoch, uint64_t step, uint32_t r) {
    return epoch == 1 && step == kWrongStep && r == rank ? Fault::kWrongHash : Fault::kNone;
  };
  std::vector<ClientScript> clients;
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    clients.push_back(Patient(seed, 20, 100));
    clients.back().request.sampling.temperature = 1;
    clients.back().retries = 1;
  }
  scenario.next_client = Clients(clients);
  const HashModel model = scenario.model;
  const ScriptedRun run = RunScript(std::move(scenario));
  ASSERT_TRUE(run.result.ok()) << DescribeFailure(0, run.result);

  ASSERT_THAT(run.clients, SizeIs(6)) << "three clients, and each of them again";
  for (size_t i = 0; i < 3; ++i) {
    const ClientRecord& first = *run.clients[i];
    EXPECT_EQ(first.end->kind, Output::Kind::kFailed);
    EXPECT_THAT(first.end->message, HasSubstr("does not agree with rank 0 about step 50"));
    // The first step reads all prompts and draws one token for each.
    EXPECT_THAT(first.tokens, ElementsAreArray(AloneText(model, clients[i], kWrongStep - 1)));
    const auto again = std::find_if(run.clients.begin() + 3, run.clients.end(),
                                    [&](const auto& c) { return c->seed == first.seed; });
    ASSERT_NE(again, run.clients.end());
    EXPECT_THAT((*again)->tokens, ElementsAreArray(AloneText(model, clients[i], 100)));
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, O11, ::testing::Values(0, 1, 2, 3));

}  // namespace
}  // namespace quartet::simulation
