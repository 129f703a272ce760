#include <gmock/gmock.h>

#include <algorithm>

#include "services/coordinator/core/plan_hash.h"
#include "tests/unit/coordinator/cache_requests.h"
#include "tests/unit/coordinator/core_harness.h"

// What the workers are told about how tokens are drawn, and what comes back beside them.

namespace quartet::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// The opens of all plans until nothing is left to do.
std::vector<SequenceOpen> Opens(CoreHarness& harness) {
  std::vector<SequenceOpen> opens;
  while (const std::optional<StepPlan> plan = harness.Step()) {
    opens.insert(opens.end(), plan->opens.begin(), plan->opens.end());
  }
  return opens;
}

CoreConfig TwoStepsAtOnce(uint32_t drafts) {
  CoreConfig config = CoreHarness::Config();
  config.steps_in_flight = 2;
  config.num_speculative_tokens = drafts;
  config.spec_dynamic = false;
  return config;
}

TEST(CoreSampling, ARowOfAConstrainedRequestWaitsForTheTokensBeforeIt) {
  CoreHarness harness(TwoStepsAtOnce(0));
  Request request = CoreHarness::Ask(100, 3);
  request.constrained = true;
  const uint64_t id = harness.MustSubmit(request);
  const auto prompt = harness.Plan();
  ASSERT_TRUE(prompt.has_value());
  EXPECT_EQ(prompt->rows[0].masked_id, id);
  EXPECT_FALSE(harness.Plan().has_value()) << "its first token is not known";
  EXPECT_FALSE(harness.Plan().has_value());
  EXPECT_EQ(harness.core.GetLedger().rows_awaiting_mask, 1u) << "once for a row";
  harness.Answer();
  const auto decode = harness.Plan();
  ASSERT_TRUE(decode.has_value());
  EXPECT_EQ(decode->rows[0].masked_id, id);
  harness.RunAll();
  EXPECT_EQ(harness.told[id].tokens, harness.Alone(request, 3));
}

TEST(CoreSampling, OthersDoNotWaitForAConstrainedRequest) {
  CoreHarness harness(TwoStepsAtOnce(3));
  Request request = CoreHarness::Ask(100, 30);
  request.constrained = true;
  const uint64_t constrained = harness.MustSubmit(request);
  const uint64_t free = harness.MustSubmit(CoreHarness::Ask(50, 30, 1));
  harness.Plan();
  const auto second = harness.Plan();
  ASSERT_TRUE(second.has_value());
  ASSERT_THAT(second->rows, SizeIs(1));
  EXPECT_EQ(second->rows[0].masked_id, 0u);
  harness.RunAll();
  EXPECT_EQ(harness.told[constrained].tokens, harness.Alone(request, 30));
  EXPECT_THAT(harness.told[free].tokens, SizeIs(30));
}

TEST(CoreSampling, OnlyTheLastChunkOfAPromptNeedsAMask) {
  CoreHarness harness(TwoStepsAtOnce(0));
  Request request = CoreHarness::Ask(1000, 2);
  request.constrained = true;
  const uint64_t id = harness.MustSubmit(request);
  const auto first = harness.Plan();
  const auto last = harness.Plan();
  ASSERT_TRUE(first.has_value() && last.has_value()) << "chunks do not wait for each other";
  EXPECT_EQ(first->rows[0].masked_id, 0u);
  EXPECT_EQ(last->rows[0].masked_id, id);
}

TEST(CoreSampling, EndAndStopIdsAreBannedBeforeMinTokens) {
  CoreHarness harness(CoreHarness::Config());
  Request request = CoreHarness::Ask(10, 5);
  request.end_ids = {900};
  request.stop_ids = {901};
  harness.MustSubmit(request);
  request.sampling.min_tokens = 3;
  harness.MustSubmit(request);
  request.ignore_eos = true;
  harness.MustSubmit(request);
  const std::vector<SequenceOpen> opens = Opens(harness);
  ASSERT_THAT(opens, SizeIs(3));
  EXPECT_THAT(opens[0].end_ids, IsEmpty());
  EXPECT_THAT(opens[1].end_ids, ElementsAre(901, 900));
  EXPECT_THAT(opens[2].end_ids, ElementsAre(901));
}

TEST(CoreSampling, WhoBeginsBehindAPrefixIsToldItsTokensIfDrawsDependOnThem) {
  const std::vector<int32_t> prompt = Prompt(0, 1000, 1);
  for (const bool penalises : {false, true}) {
    for (const bool thinks : {false, true}) {
      CoreHarness harness(CacheConfig());
      Request request = Ask(prompt, 5);
      if (penalises) request.sampling.repetition_penalty = 1.2f;
      if (thinks) request.thinking = ThinkingBudget{.max_tokens = 3, .end_ids = {4}};
      harness.MustSubmit(request);
      std::vector<SequenceOpen> opens = Opens(harness);
      ASSERT_THAT(opens, SizeIs(1));
      EXPECT_FALSE(opens[0].resume.has_value());
      harness.MustSubmit(request);
      opens = Opens(harness);
      ASSERT_THAT(opens, SizeIs(1));
      ASSERT_TRUE(opens[0].resume.has_value());
      EXPECT_EQ(opens[0].resume->n_tokens, 768u);
      EXPECT_EQ(opens[0].thinking.has_value(), thinks);
      if (penalises || thinks) {
        EXPECT_EQ(opens[0].resume->tokens,
                  std::vector<int32_t>(prompt.begin(), prompt.begin() + 768));
      } else {
        EXPECT_THAT(opens[0].resume->tokens, IsEmpty());
      }
    }
  }
}

TEST(CoreSampling, TheLikeliestIdsComeBesideWhatWasAskedForAndNoFurther) {
  // The answer ends inside a window.
  CoreConfig config = CoreHarness::Config();
  config.num_speculative_tokens = 3;
  config.prefill_chunk = 64;
  CoreHarness harness(config, std::nullopt, quartet::testing::HashChainDrafts(100));
  Request request = CoreHarness::Ask(200, 6);
  request.logprobs = request.prompt_logprobs = true;
  request.top_logprobs = 2;
  request.prompt_top_logprobs = 3;
  const uint64_t id = harness.MustSubmit(request);
  const uint64_t other = harness.MustSubmit(CoreHarness::Ask(50, 6, 4));
  harness.RunAll();

  const CoreHarness::Told& told = harness.told[id];
  std::vector<int32_t> text = request.prompt_ids;
  text.insert(text.end(), told.tokens.begin(), told.tokens.end());
  TopLogprobs top, prompt_top;
  uint64_t state = 1;
  for (size_t i = 0; i + 1 < text.size(); ++i) {
    state = quartet::testing::HashChainAbsorb(state, text[i]);
    const bool prompt = i + 1 < request.prompt_ids.size();
    TopLogprobs& to = prompt ? prompt_top : top;
    for (int32_t likely = 0; likely < (prompt ? 3 : 2); ++likely) {
      to.ids.push_back(likely);
      to.logprobs.push_back(quartet::testing::HashChainLogprob(state, likely));
    }
  }
  EXPECT_EQ(told.top.ids, top.ids);
  EXPECT_EQ(told.top.logprobs, top.logprobs);
  EXPECT_EQ(told.prompt_top.ids, prompt_top.ids);
  EXPECT_EQ(told.prompt_top.logprobs, prompt_top.logprobs);
  EXPECT_THAT(harness.told[other].top.ids, IsEmpty());
}

TEST(CoreSampling, AResultWithoutTheLikeliestIdsThatWereAskedForFailsItsRequest) {
  Core core(CoreHarness::Config());
  Request request = CoreHarness::Ask(10, 5);
  request.logprobs = true;
  request.top_logprobs = 2;
  const uint64_t id = core.OnSubmit(request, 0).id;
  const std::optional<StepPlan> plan = core.PlanStep(1);
  ASSERT_TRUE(plan.has_value());
  EXPECT_EQ(plan->rows[0].top_logprobs, 2u);
  StepOutcome outcome{.epoch = plan->epoch, .step_id = plan->step_id};
  outcome.rows.push_back({.seq_uid = plan->rows[0].seq_uid, .tokens = {5}, .logprobs = {-1.0f}});
  outcome.rows[0].top = {.ids = {5}, .logprobs = {-1.0f}};
  core.OnStepResult(outcome, 2);
  const std::vector<Output> outputs = core.TakeOutputs();
  EXPECT_EQ(outputs.back().id, id);
  EXPECT_EQ(outputs.back().kind, Output::Kind::kFailed);
  EXPECT_THAT(outputs.back().message, ::testing::HasSubstr("1 likeliest tokens, not 2"));
}

TEST(PlanHash, CoversWhatIsDrawnAndTold) {
  StepPlan plan;
  plan.rows.emplace_back();
  std::vector<uint64_t> hashes = {PlanHash(plan)};
  plan.rows[0].top_logprobs = 1;
  hashes.push_back(PlanHash(plan));
  plan.rows[0].target_top_logprobs = 1;
  hashes.push_back(PlanHash(plan));
  for (const char* mask : {"", "a", "a\n", "abcdefgh", "abcdefghi"}) {
    plan.rows[0].allow_masks = {mask};
    hashes.push_back(PlanHash(plan));
  }
  std::sort(hashes.begin(), hashes.end());
  EXPECT_EQ(std::unique(hashes.begin(), hashes.end()), hashes.end());
}

TEST(Convert, WhatShapesADrawGoesToTheCoreAndToTheWorkers) {
  v1::Submit submit;
  for (const int32_t id : {9, 3, 700, 1}) {
    (*submit.mutable_sampling()->mutable_logit_bias())[id] = static_cast<float>(id) / 100;
  }
  submit.mutable_sampling()->add_banned_ids(8);
  submit.set_top_logprobs(2);
  submit.mutable_thinking()->set_max_tokens(7);
  submit.mutable_thinking()->add_end_ids(5);
  const Request request = ToRequest(submit);
  EXPECT_THAT(request.sampling.logit_bias, ElementsAre(std::pair(1, 0.01f), std::pair(3, 0.03f),
                                                       std::pair(9, 0.09f), std::pair(700, 7.0f)));
  EXPECT_EQ(request.top_logprobs, 2u);
  ASSERT_TRUE(request.thinking.has_value());
  EXPECT_EQ(request.thinking->max_tokens, 7u);

  const v1::SequenceOpen open = ToProto(
      SequenceOpen{.sampling = request.sampling,
                   .thinking = request.thinking,
                   .resume = Resume{.snapshot = 1, .n_tokens = 2, .pages = {}, .tokens = {4, 6}}});
  EXPECT_EQ(open.sampling().logit_bias().at(700), 7.0f);
  EXPECT_THAT(open.sampling().banned_ids(), ElementsAre(8));
  EXPECT_THAT(open.thinking().end_ids(), ElementsAre(5));
  EXPECT_THAT(open.resume().tokens(), ElementsAre(4, 6));

  StepPlan plan;
  plan.rows.push_back({.top_logprobs = 3, .target_top_logprobs = 4, .allow_masks = {"ab", ""}});
  const v1::Row row = ToProto(plan).rows(0);
  EXPECT_EQ(row.top_logprobs(), 3u);
  EXPECT_EQ(row.target_top_logprobs(), 4u);
  EXPECT_THAT(row.allow_masks(), ElementsAre("ab", ""));
}

}  // namespace
}  // namespace quartet::coordinator
