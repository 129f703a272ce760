#include <gmock/gmock.h>

#include <algorithm>
#include <random>

#include "tests/unit/coordinator/core_harness.h"

// The core with speculation, on workers whose drafts are right where the test says so. Whatever is
// accepted, everybody says what it says alone.

namespace quartet::coordinator {
namespace {

using quartet::testing::DraftRule;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

CoreConfig SpecConfig(uint32_t drafts = 3) {
  CoreConfig config = CoreHarness::Config();
  config.num_speculative_tokens = drafts;
  config.spec_dynamic = false;
  return config;
}

DraftRule Always(bool right) {
  return [right](uint32_t, const v1::SamplingParams&) { return right; };
}

// Every sequence says 500, 501, 502, ... from the end of its prompt.
quartet::testing::TokenRule Counting(uint32_t prompt_tokens) {
  return [prompt_tokens](uint64_t, uint32_t position, const v1::SamplingParams&) {
    return static_cast<int32_t>(500 + position - prompt_tokens);
  };
}

TEST(CoreSpeculation, AWindowIsTheLastTokenAndTheDraftsOfTheStepBefore) {
  CoreHarness harness(SpecConfig(), std::nullopt, Always(true));
  const Request request = CoreHarness::Ask(10, 20);
  const uint64_t id = harness.MustSubmit(request);
  auto prompt = harness.Step();
  ASSERT_TRUE(prompt.has_value());
  EXPECT_TRUE(prompt->rows[0].draft);
  EXPECT_EQ(prompt->rows[0].draft_chain, 3u);
  auto window = harness.Step();
  ASSERT_TRUE(window.has_value());
  const PlanRow& row = window->rows[0];
  EXPECT_EQ(row.kind, PlanRow::Kind::kVerify);
  EXPECT_TRUE(row.from_device);
  EXPECT_TRUE(row.sample);
  EXPECT_THAT(row.tokens, IsEmpty());
  EXPECT_EQ(row.position, 10u);
  EXPECT_EQ(row.n_tokens, 4u);
  EXPECT_EQ(row.draft_tokens, 3u);
  EXPECT_THAT(harness.told[id].tokens, SizeIs(5)) << "three drafts and one more";
  EXPECT_EQ(harness.Step()->rows[0].position, 14u);
  harness.RunAll();
  EXPECT_EQ(harness.told[id].tokens, harness.Alone(request, 20));
}

TEST(CoreSpeculation, WhenNoDraftIsRightAWindowSaysOneToken) {
  CoreHarness harness(SpecConfig(), std::nullopt, Always(false));
  const Request request = CoreHarness::Ask(10, 20);
  const uint64_t id = harness.MustSubmit(request);
  EXPECT_EQ(harness.RunAll(), 21) << "a step a token, and the close";
  EXPECT_EQ(harness.told[id].tokens, harness.Alone(request, 20));
}

TEST(CoreSpeculation, TheDrafterSeesEveryChunkAndTheTokenBehindIt) {
  CoreHarness harness(SpecConfig());
  const Request request = CoreHarness::Ask(1000, 5);
  harness.MustSubmit(request);
  auto first = harness.Step();
  ASSERT_TRUE(first.has_value());
  EXPECT_TRUE(first->rows[0].draft);
  EXPECT_EQ(first->rows[0].mtp_next, request.prompt_ids[512]);
  EXPECT_EQ(first->rows[0].draft_chain, 0u);
  EXPECT_EQ(harness.Step()->rows[0].draft_chain, 3u);
}

TEST(CoreSpeculation, WithoutItNobodyDrafts) {
  CoreHarness harness(SpecConfig(0));
  harness.MustSubmit(CoreHarness::Ask(1000, 5));
  while (auto plan = harness.Step()) {
    for (const PlanRow& row : plan->rows) {
      EXPECT_FALSE(row.draft);
      EXPECT_EQ(row.draft_chain, 0u);
      EXPECT_NE(row.kind, PlanRow::Kind::kVerify);
    }
  }
}

TEST(CoreSpeculation, NobodyDraftsBehindTheLastTokenThatItMaySay) {
  for (uint32_t max_tokens = 1; max_tokens <= 12; ++max_tokens) {
    SCOPED_TRACE(max_tokens);
    CoreHarness harness(SpecConfig(), std::nullopt, Always(true));
    const Request request = CoreHarness::Ask(10, max_tokens);
    const uint64_t id = harness.MustSubmit(request);
    while (auto plan = harness.Step()) {
      for (const PlanRow& row : plan->rows) {
        EXPECT_LE(row.position + row.n_tokens, 10 + max_tokens - 1);
      }
    }
    EXPECT_EQ(harness.told[id].tokens, harness.Alone(request, max_tokens));
    EXPECT_EQ(harness.told[id].terminals[0].reason, FinishReason::kLength);
  }
}

TEST(CoreSpeculation, TheContextEndsTheDraftsToo) {
  CoreConfig config = SpecConfig();
  config.max_model_len = 300;  // the executor refuses rows and chains beyond it
  for (uint32_t prompt = 280; prompt < 300; ++prompt) {
    CoreHarness harness(config, std::nullopt, Always(true));
    const Request request = CoreHarness::Ask(prompt, 0);
    const uint64_t id = harness.MustSubmit(request);
    harness.RunAll();
    EXPECT_EQ(harness.told[id].tokens, harness.Alone(request, 300 - prompt));
  }
}

TEST(CoreSpeculation, O5_AnEndInsideAWindowCutsItThere) {
  for (int32_t end = 500; end < 512; ++end) {
    for (const bool stop_id : {false, true}) {
      SCOPED_TRACE(end);
      CoreHarness harness(SpecConfig(), Counting(10), Always(true));
      Request request = CoreHarness::Ask(10, 40);
      (stop_id ? request.stop_ids : request.end_ids) = {end};
      request.logprobs = true;
      const uint64_t id = harness.MustSubmit(request);
      harness.RunAll();
      const auto& told = harness.told[id];
      const auto said = static_cast<uint32_t>(end - 500 + 1);
      ASSERT_THAT(told.tokens, SizeIs(said));
      EXPECT_EQ(told.tokens.back(), end);
      EXPECT_THAT(told.logprobs, SizeIs(said));
      ASSERT_THAT(told.terminals, SizeIs(1));
      EXPECT_EQ(told.terminals[0].reason,
                stop_id ? FinishReason::kStopId : FinishReason::kEndToken);
      EXPECT_EQ(told.terminals[0].completion_tokens, said);
      const Ledger ledger = harness.core.GetLedger();
      EXPECT_EQ(ledger.generated_tokens, said);
      EXPECT_LE(ledger.spec_accepted_tokens, said);
      EXPECT_EQ(ledger.pages_used, 0u);
    }
  }
}

TEST(CoreSpeculation, TheLedgerCountsDraftsByTheirPlace) {
  // The draft for every third position is wrong.
  CoreHarness harness(SpecConfig(), std::nullopt, [](uint32_t position, const v1::SamplingParams&) {
    return position % 3 != 0;
  });
  harness.MustSubmit(CoreHarness::Ask(10, 13));
  harness.RunAll();
  // The prompt says the token of position 10; the windows 11 and 12; 13 to 15; 16 to 18; 19 to 21;
  // and the last token needs no draft.
  const Ledger ledger = harness.core.GetLedger();
  EXPECT_EQ(ledger.generated_tokens, 13u);
  EXPECT_EQ(ledger.spec_drafts, 4u);
  EXPECT_EQ(ledger.spec_draft_tokens, 12u);
  EXPECT_THAT(ledger.spec_accepted_at, ElementsAre(4, 3, 0));
  EXPECT_EQ(ledger.spec_accepted_tokens, 7u);
}

TEST(CoreSpeculation, DraftsTakeOnlyWhatPromptsLeaveOfTheBudget) {
  CoreConfig config = SpecConfig();
  config.max_num_batched_tokens = 67;  // one chunk and three decoding sequences
  CoreHarness harness(config, std::nullopt, Always(true));
  for (int salt = 1; salt <= 3; ++salt) harness.MustSubmit(CoreHarness::Ask(10, 200, salt));
  harness.Step();
  harness.MustSubmit(CoreHarness::Ask(640, 5, 4));
  for (int chunk = 0; chunk < 9; ++chunk) {
    auto plan = harness.Step();
    ASSERT_TRUE(plan.has_value());
    ASSERT_THAT(plan->rows, SizeIs(4));
    EXPECT_EQ(plan->rows[3].n_tokens, 64u);
    for (int i = 0; i < 3; ++i) EXPECT_EQ(plan->rows[i].kind, PlanRow::Kind::kDecode);
  }
  harness.RunAll();
  for (const auto& [id, told] : harness.told) EXPECT_THAT(told.terminals, SizeIs(1));
}

TEST(CoreSpeculation, NobodyGivesUpItsPlaceForDrafts) {
  CoreConfig config = SpecConfig();
  config.max_model_len = 512;
  config.slots = 2;
  config.pages = 2;
  CoreHarness harness(config, std::nullopt, Always(true));
  // Together they need both pages up to token 256 of each, and not one more before the end.
  const Request a = CoreHarness::Ask(200, 56, 1), b = CoreHarness::Ask(200, 56, 2);
  const uint64_t first = harness.MustSubmit(a), second = harness.MustSubmit(b);
  harness.RunAll();
  EXPECT_EQ(harness.told[first].tokens, harness.Alone(a, 56));
  EXPECT_EQ(harness.told[second].tokens, harness.Alone(b, 56));
  EXPECT_EQ(harness.core.GetLedger().preemptions, 0u);
}

TEST(CoreSpeculation, TheModeOfAcceptanceGoesWithTheOpen) {
  CoreConfig config = SpecConfig();
  config.spec_acceptance = Acceptance::kCoupled;
  CoreHarness harness(config);
  harness.MustSubmit(CoreHarness::Ask(10, 5));
  auto plan = harness.Step();
  EXPECT_EQ(plan->opens[0].acceptance, Acceptance::kCoupled);
  EXPECT_EQ(ToProto(plan->opens[0]).acceptance(), v1::ACCEPTANCE_COUPLED);
}

TEST(CoreSpeculation, ASeedOfTheClientsOwnSaysTheSameTextWhateverIsDrafted) {
  CoreHarness harness(SpecConfig());
  Request request = CoreHarness::Ask(10, 5);
  request.sampling.seeded = true;
  harness.MustSubmit(request);
  harness.MustSubmit(CoreHarness::Ask(12, 5));
  auto plan = harness.Step();
  ASSERT_EQ(plan->opens.size(), 2u);
  EXPECT_EQ(plan->opens[0].acceptance, Acceptance::kCoupled);
  EXPECT_EQ(plan->opens[1].acceptance, Acceptance::kRejection);
}

TEST(CoreSpeculation, TheLengthFollowsWhatIsAccepted) {
  CoreConfig config = SpecConfig();
  config.spec_dynamic = true;
  CoreHarness harness(config, std::nullopt, Always(false));
  harness.MustSubmit(CoreHarness::Ask(10, 400, 1));
  std::vector<uint32_t> drafted;
  while (auto plan = harness.Plan()) {
    if (harness.pending.empty()) break;
    drafted.push_back(plan->rows[0].draft_tokens);
    harness.now += 1000 * plan->rows[0].n_tokens;
    harness.Answer();
  }
  EXPECT_EQ(drafted[5], 3u);
  EXPECT_GT(std::count(drafted.begin() + 100, drafted.end(), 0u),
            static_cast<int64_t>(drafted.size() - 100) / 2)
      << "wrong drafts are not worth their time";
}

class BrokenWindow : public ::testing::TestWithParam<void (*)(RowOutcome&)> {};

TEST_P(BrokenWindow, FailsItsSequenceAlone) {
  CoreHarness harness(SpecConfig(), std::nullopt, Always(true));
  const uint64_t broken = harness.MustSubmit(CoreHarness::Ask(10, 50, 1));
  const Request other = CoreHarness::Ask(10, 50, 2);
  const uint64_t whole = harness.MustSubmit(other);
  harness.Step();
  auto plan = harness.Plan();
  ASSERT_EQ(plan->rows[0].kind, PlanRow::Kind::kVerify);
  GetParam()(harness.pending.front().outcome.rows[0]);
  harness.Answer();
  ASSERT_THAT(harness.told[broken].terminals, SizeIs(1));
  EXPECT_EQ(harness.told[broken].terminals[0].kind, Output::Kind::kFailed);
  harness.RunAll();
  EXPECT_EQ(harness.told[whole].tokens, harness.Alone(other, 50));
}

INSTANTIATE_TEST_SUITE_P(CoreSpeculation, BrokenWindow,
                         ::testing::Values([](RowOutcome& row) { row.tokens.clear(); },
                                           [](RowOutcome& row) { row.tokens.resize(5, 1); },
                                           [](RowOutcome& row) { row.tokens[2] = -1; },
                                           [](RowOutcome& row) { row.tokens[3] = 1000; },
                                           [](RowOutcome& row) { row.error = "not finite"; }));

TEST(CoreSpeculationConfig, NamesTheLimit) {
  EXPECT_THAT(ConfigError(SpecConfig(4)), HasSubstr("num_speculative_tokens is 4"));
}

}  // namespace
}  // namespace quartet::coordinator
