#include "services/coordinator/simulation/auditor.h"

#include <gmock/gmock.h>

#include <map>
#include <utility>
#include <vector>

#include "services/coordinator/simulation/scenario.h"

// Checks that no bug planted in a run can reach, because the core stands between: the auditor is
// told by hand what a broken core would have done.

namespace quartet::simulation {
namespace {

using coordinator::CacheTier;
using coordinator::CopyOutcome;
using coordinator::Core;
using coordinator::CoreConfig;
using coordinator::Output;
using coordinator::PlanRow;
using coordinator::Request;
using coordinator::SequenceOpen;
using coordinator::StepPlan;
using coordinator::SubmitOutcome;
using ::testing::HasSubstr;

class AuditorTest : public ::testing::Test {
 protected:
  AuditorTest() : auditor_({.vocab_size = 1000}) {
    config_.vocab_size = 1000;
    config_.max_model_len = 4096;
    config_.slots = 2;
    config_.pages = 32;
    config_.max_num_batched_tokens = 128;
    config_.max_queued_requests = 2;
    auditor_.OnEngine(config_, 1);
  }

  void Submit(uint64_t id, uint32_t prompt_tokens) {
    requests_[id] = MakeRequest(id, prompt_tokens, 10, 1000);
    auditor_.OnSubmit(requests_[id], {SubmitOutcome::Kind::kAccepted, id, ""});
  }
  // A plan with a chunk of this request's prompt, which it is opened for if it starts.
  StepPlan Chunk(uint64_t id, uint32_t position, uint32_t n_tokens) {
    const std::vector<int32_t>& prompt = requests_[id].prompt_ids;
    StepPlan plan;
    plan.epoch = config_.epoch;
    plan.step_id = ++step_;
    PlanRow row;
    row.seq_uid = id;
    row.slot = static_cast<uint32_t>(id) - 1;
    row.position = position;
    row.n_tokens = n_tokens;
    row.tokens.assign(prompt.begin() + position, prompt.begin() + position + n_tokens);
    row.sample = position + n_tokens == prompt.size();
    if (position == 0) {
      SequenceOpen open;
      open.seq_uid = id;
      open.slot = row.slot;
      open.sampling.seed = id;
      plan.opens.push_back(open);
    }
    if (position % config_.page_tokens == 0) row.new_pages = {next_page_++};
    plan.rows.push_back(std::move(row));
    return plan;
  }
  void Run(const StepPlan& plan) {
    auditor_.OnPlan(plan);
    auditor_.OnAnswer({.epoch = plan.epoch, .step_id = plan.step_id});
    auditor_.OnApplied(plan.epoch, plan.step_id, true);
  }

  CoreConfig config_;
  Auditor auditor_;
  std::map<uint64_t, Request> requests_;
  uint64_t step_ = 0;
  uint32_t next_page_ = 0;
};

TEST_F(AuditorTest, I9AnAdmittedPromptWithoutARowInEightPlans) {
  Submit(1, 4000);
  Submit(2, 4000);
  StepPlan both = Chunk(1, 0, 64);
  --step_;
  const StepPlan other = Chunk(2, 0, 64);
  both.opens.push_back(other.opens[0]);
  both.rows.push_back(other.rows[0]);
  Run(both);
  uint32_t position = 64;
  for (int i = 0; i < 7; ++i, position += 64) Run(Chunk(1, position, 64));
  EXPECT_EQ(auditor_.violation(), "") << "seven are allowed";
  Run(Chunk(1, position, 64));
  EXPECT_THAT(auditor_.violation(),
              HasSubstr("I9: request 2 is admitted and has no row in 8 plans"));
}

TEST_F(AuditorTest, I9StepsThatDoNothingButCopyForEver) {
  config_.epoch = 2;
  config_.page_tokens = 64;
  config_.snapshots = config_.host_snapshots = 2;
  config_.host_pages = 4;
  config_.min_decode_share = 0.5;  // an admitted prompt may wait
  auditor_.OnEngine(config_, 1);
  Request& request = requests_[1] = MakeRequest(1, 4000, 10, 1000);
  UnitNames names(0, config_.page_tokens);
  request.cache_root = names.root();
  request.unit_keys = names.Append(request.prompt_ids);
  auditor_.OnSubmit(request, {SubmitOutcome::Kind::kAccepted, 1, ""});
  Run(Chunk(1, 0, 64));
  const auto copy = [&](CacheTier from, uint32_t from_place, CacheTier to, uint32_t to_place) {
    StepPlan plan;
    plan.epoch = config_.epoch;
    plan.step_id = ++step_;
    TierCopy& unit = plan.copies.emplace_back();
    unit.from = from;
    unit.from_place = from_place;
    unit.to = to;
    unit.to_place = to_place;
    unit.key = request.unit_keys[0];
    unit.n_tokens = config_.page_tokens;
    auditor_.OnPlan(plan);
    auditor_.OnAnswer(
        {.epoch = plan.epoch, .step_id = plan.step_id, .copies = {CopyOutcome::kDone}});
    auditor_.OnApplied(plan.epoch, plan.step_id, true);
  };
  copy(CacheTier::kDevice, 0, CacheTier::kHost, 2);
  for (int i = 0; i < 1040; ++i) copy(CacheTier::kHost, 2, CacheTier::kDevice, 9);
  EXPECT_EQ(auditor_.violation(), "") << "four tries through two tiers for each request";
  copy(CacheTier::kHost, 2, CacheTier::kDevice, 9);
  EXPECT_THAT(auditor_.violation(),
              HasSubstr("I9: 1 requests wait, and 1041 steps did nothing but copy for them"));
}

TEST_F(AuditorTest, I10MoreTokensThanTheBudget) {
  Submit(1, 4000);
  Run(Chunk(1, 0, 192));
  EXPECT_THAT(auditor_.violation(), HasSubstr("I10: a step of 192 tokens, the budget is 128"));
}

TEST_F(AuditorTest, I10AChunkAboveItsLimit) {
  config_.prefill_chunk = 64;
  config_.epoch = 2;
  auditor_.OnEngine(config_, 1);
  Submit(1, 4000);
  Run(Chunk(1, 0, 128));
  EXPECT_THAT(auditor_.violation(), HasSubstr("I10: chunks have at most 64 tokens"));
}

TEST_F(AuditorTest, I10ADecodeRowBehindAPrompts) {
  Submit(1, 4000);
  StepPlan plan = Chunk(1, 0, 64);
  plan.rows.push_back(plan.rows[0]);
  plan.rows.back().kind = PlanRow::Kind::kDecode;
  auditor_.OnPlan(plan);
  EXPECT_THAT(auditor_.violation(), HasSubstr("a decode row stands behind a prompt's"));
}

TEST_F(AuditorTest, I10ThePromptsFirstTokenTakenFromTheDevice) {
  Submit(1, 1);
  StepPlan plan = Chunk(1, 0, 1);
  plan.rows[0].tokens.clear();
  plan.rows[0].from_device = true;
  plan.rows[0].kind = PlanRow::Kind::kDecode;
  auditor_.OnPlan(plan);
  EXPECT_THAT(auditor_.violation(), HasSubstr("I10: only a decode row"));
}

TEST_F(AuditorTest, I11AStepPlannedWhileAnotherIsInFlight) {
  Submit(1, 4000);
  auditor_.OnPlan(Chunk(1, 0, 64));
  auditor_.OnPlan(Chunk(1, 64, 64));
  EXPECT_THAT(auditor_.violation(), HasSubstr("I11: a step is planned while the workers hold 1"));
}

TEST_F(AuditorTest, I11AThirdStepWhereTwoMayBeInFlight) {
  ++config_.epoch;
  config_.steps_in_flight = 2;
  auditor_.OnEngine(config_, 1);
  Submit(1, 4000);
  auditor_.OnPlan(Chunk(1, 0, 64));
  auditor_.OnPlan(Chunk(1, 64, 64));
  EXPECT_EQ(auditor_.violation(), "");
  auditor_.OnPlan(Chunk(1, 128, 64));
  EXPECT_THAT(auditor_.violation(), HasSubstr("I11: a step is planned while the workers hold 2"));
}

TEST_F(AuditorTest, I11AResultThatIsTakenTwice) {
  Submit(1, 4000);
  Run(Chunk(1, 0, 64));
  auditor_.OnApplied(config_.epoch, 1, true);
  EXPECT_THAT(auditor_.violation(), HasSubstr("I11: a result of epoch 1, step 1 is taken"));
}

TEST_F(AuditorTest, I11AResultThatIsRefusedThoughItIsTheRightOne) {
  Submit(1, 4000);
  auditor_.OnPlan(Chunk(1, 0, 64));
  auditor_.OnApplied(config_.epoch, 1, false);
  EXPECT_THAT(auditor_.violation(), HasSubstr("I11: a result of epoch 1, step 1 is refused"));
}

TEST_F(AuditorTest, I11AnEpochThatDoesNotRise) {
  auditor_.OnEngine(config_, 1);
  EXPECT_THAT(auditor_.violation(), HasSubstr("I11: an epoch comes after a later one"));
}

TEST_F(AuditorTest, I4AStepThatCountsBeforeARankHasAnswered) {
  config_.epoch = 2;
  auditor_.OnEngine(config_, 2);
  Submit(1, 4000);
  auditor_.OnPlan(Chunk(1, 0, 64));
  auditor_.OnAnswer({.epoch = 2, .step_id = 1, .rank = 1});
  auditor_.OnApplied(2, 1, true);
  EXPECT_THAT(auditor_.violation(), HasSubstr("I4: step 1 counts"));
}

TEST_F(AuditorTest, I13AnOpenForARequestThatIsOpenAlready) {
  Submit(1, 4000);
  Run(Chunk(1, 0, 64));
  StepPlan plan = Chunk(1, 64, 64);
  plan.opens.push_back({.seq_uid = 9, .slot = 1, .sampling = {.seed = 1}});
  auditor_.OnPlan(plan);
  EXPECT_THAT(auditor_.violation(), HasSubstr("I13: seq 9 is opened for a request"));
}

TEST_F(AuditorTest, ARefusalWithRoomInTheQueueIsFound) {
  auditor_.OnSubmit(MakeRequest(1, 5, 5, 1000), {SubmitOutcome::Kind::kQueueFull, 0, "full"});
  EXPECT_THAT(auditor_.violation(), HasSubstr("a request was refused with 0 waiting"));
}

TEST_F(AuditorTest, ARefusalForADeadlineThatTheRequestDoesNotHaveIsFound) {
  Request request = MakeRequest(1, 5, 5, 1000);
  request.total_deadline_ms = 100;
  auditor_.OnSubmit(request, {SubmitOutcome::Kind::kTooLate, 0, "late"});
  EXPECT_EQ(auditor_.violation(), "");
  request.total_deadline_ms = 0;
  auditor_.OnSubmit(request, {SubmitOutcome::Kind::kTooLate, 0, "late"});
  EXPECT_THAT(auditor_.violation(), HasSubstr("a request was refused with 0 waiting"));
}

TEST_F(AuditorTest, I8ARequestThatExpiresBeforeItsDeadline) {
  requests_[1] = MakeRequest(1, 5, 10, 1000);
  requests_[1].total_deadline_ms = 100;
  auditor_.OnSubmit(requests_[1], {SubmitOutcome::Kind::kAccepted, 1, ""});
  Output output;
  output.id = 1;
  output.kind = Output::Kind::kExpired;
  output.prompt_tokens = 5;
  output.times.submitted = 1000;
  auditor_.OnOutput(output, 100999);
  EXPECT_THAT(auditor_.violation(), HasSubstr("I8: request 1 ends for a deadline"));
}

TEST_F(AuditorTest, AnAcceptanceBeyondTheQueuesLimitIsFound) {
  for (uint64_t id = 1; id <= 2; ++id) Submit(id, 5);
  EXPECT_EQ(auditor_.violation(), "");
  Submit(3, 5);
  EXPECT_THAT(auditor_.violation(), HasSubstr("a request was not refused with 2 waiting"));
}

// Seed 172010: one left and another came before the first was told that it was cancelled.
TEST_F(AuditorTest, WhoHasLeftMakesRoomInTheQueueAtOnce) {
  for (uint64_t id = 1; id <= 2; ++id) Submit(id, 5);
  auditor_.OnCancel(1);
  Submit(3, 5);
  EXPECT_EQ(auditor_.violation(), "");
  Submit(4, 5);
  EXPECT_THAT(auditor_.violation(), HasSubstr("a request was not refused with 2 waiting"));
}

TEST_F(AuditorTest, I7ATruncateBeyondTheAnswerThatIsTaken) {
  Submit(1, 5);
  auditor_.OnTruncate(1, 3, Core::TruncateOutcome::kDone);
  EXPECT_THAT(auditor_.violation(), HasSubstr("I7: truncate of request 1 to 3"));
}

TEST_F(AuditorTest, I8ARequestNumberThatIsGivenOutTwice) {
  Submit(1, 5);
  Submit(1, 5);
  EXPECT_THAT(auditor_.violation(), HasSubstr("I8: request number 1 is given out twice"));
}

TEST_F(AuditorTest, I8ARequestThatIsOpenAtTheEnd) {
  Submit(1, 5);
  auditor_.CheckIdle({}, {});
  EXPECT_THAT(auditor_.violation(), HasSubstr("I8: 1 requests never ended"));
}

// One request says 10 tokens behind a prompt of 60, and leaves the state after 64 in snapshot 3.
// Another asks with the same text and 20 tokens more.
class CacheAuditorTest : public AuditorTest {
 protected:
  CacheAuditorTest() {
    config_.epoch = 2;
    config_.page_tokens = 64;
    config_.snapshots = 4;
    config_.snapshot_policy.unit_tokens = 64;
    auditor_.OnEngine(config_, 1);
    Ask(1, MakeRequest(1, 60, 10, 1000).prompt_ids);
    Run(Chunk(1, 0, 60));
    Tell(Output::Kind::kAdmitted, {});
    Tell(Output::Kind::kTokens, {Said(0)});
    for (uint32_t position = 60; position < 69; ++position) {
      StepPlan plan = Chunk(1, 0, 1);
      plan.opens.clear();
      PlanRow& row = plan.rows[0];
      row.kind = PlanRow::Kind::kDecode;
      row.position = position;
      row.tokens.clear();
      row.from_device = row.sample = true;
      row.new_pages.clear();
      if (position == 64) row.new_pages = {next_page_++};
      if (position == 63) row.exports = {{.offset = 1, .snapshot = 3}};
      Run(plan);
      Tell(Output::Kind::kTokens, {Said(position - 59)});
    }
    std::vector<int32_t> text = requests_[1].prompt_ids;
    for (uint32_t i = 0; i < 10; ++i) text.push_back(Said(i));
    const Request more = MakeRequest(9, 20, 1, 1000);
    text.insert(text.end(), more.prompt_ids.begin(), more.prompt_ids.end());
    Ask(2, std::move(text));
  }

  void Ask(uint64_t id, std::vector<int32_t> prompt) {
    requests_[id].prompt_ids = std::move(prompt);
    requests_[id].max_tokens = 11;
    requests_[id].sampling.seed = id;
    requests_[id].cache_root = {.high = 1, .low = domain_};
    auditor_.OnSubmit(requests_[id], {SubmitOutcome::Kind::kAccepted, id, ""});
  }
  int32_t Said(uint32_t i) {
    LoneRun alone({.vocab_size = 1000}, requests_[1].prompt_ids, requests_[1].sampling, 0);
    return alone.Token(60 + i);
  }
  void Tell(Output::Kind kind, std::vector<int32_t> tokens, uint32_t completion_tokens = 0) {
    Output output;
    output.id = 1;
    output.kind = kind;
    output.prompt_tokens = 60;
    told_ += static_cast<uint32_t>(tokens.size());
    output.completion_tokens = completion_tokens == 0 ? told_ : completion_tokens;
    output.tokens = std::move(tokens);
    output.times = {.submitted = 1, .admitted = 1, .first_token = 1, .last_token = told_};
    output.previous_token = told_ > 0 ? told_ - 1 : 0;
    auditor_.OnOutput(output, told_);
  }
  void End(uint32_t keep) {
    auditor_.OnTruncate(1, keep, Core::TruncateOutcome::kDone);
    Output output;
    output.id = 1;
    output.kind = Output::Kind::kFinished;
    output.reason = coordinator::FinishReason::kTruncated;
    output.prompt_tokens = 60;
    output.completion_tokens = keep;
    auditor_.OnOutput(output, told_);
  }
  // The second request begins behind the first unit.
  void Begin() {
    StepPlan plan = Chunk(2, 64, 26);
    SequenceOpen open;
    open.seq_uid = 2;
    open.slot = 1;
    open.sampling.seed = 2;
    open.resume = coordinator::Resume{.snapshot = 3, .n_tokens = 64, .pages = {0}};
    plan.opens.push_back(open);
    auditor_.OnPlan(plan);
  }

  uint64_t domain_ = 1;
  uint32_t told_ = 0;
};

TEST_F(CacheAuditorTest, BehindAnAnswerThatHasEndedOneMayBegin) {
  End(10);
  Begin();
  EXPECT_EQ(auditor_.violation(), "");
  EXPECT_EQ(auditor_.tally().resumed_in_answers, 1u);
}

TEST_F(CacheAuditorTest, I7BehindAnAnswerThatMayStillBeCutOneMayNot) {
  Begin();
  EXPECT_THAT(auditor_.violation(),
              HasSubstr("I7: seq 2 begins at 64 from a snapshot of an answer"));
}

TEST_F(CacheAuditorTest, I7O5WhatWasCutOffIsNotCached) {
  End(3);  // 63 tokens are its text
  Begin();
  EXPECT_THAT(auditor_.violation(),
              HasSubstr("I2: seq 2 begins at 64 from snapshot 3, which holds"));
}

TEST_F(CacheAuditorTest, O5WhatIsBeforeTheCutIsCached) {
  End(4);
  Begin();
  EXPECT_EQ(auditor_.violation(), "");
}

TEST_F(CacheAuditorTest, O14AnotherDomainNeverHits) {
  End(10);
  auditor_.OnCancel(2);
  Output gone;
  gone.id = 2;
  gone.kind = Output::Kind::kCancelled;
  gone.prompt_tokens = 90;
  auditor_.OnOutput(gone, 1);
  domain_ = 2;
  Ask(3, requests_[2].prompt_ids);
  StepPlan plan = Chunk(3, 64, 26);
  plan.rows[0].slot = 1;
  SequenceOpen open;
  open.seq_uid = 3;
  open.slot = 1;
  open.sampling.seed = 3;
  open.resume = coordinator::Resume{.snapshot = 3, .n_tokens = 64, .pages = {0}};
  plan.opens.push_back(open);
  auditor_.OnPlan(plan);
  EXPECT_THAT(auditor_.violation(),
              HasSubstr("I2: seq 3 begins at 64 from snapshot 3, which holds"));
}

TEST_F(CacheAuditorTest, I3APageThatSomebodyReadsIsGivenOut) {
  End(10);
  StepPlan plan = Chunk(2, 0, 64);
  plan.rows[0].new_pages = {0};  // its first owner is not closed yet
  auditor_.OnPlan(plan);
  EXPECT_THAT(auditor_.violation(), HasSubstr("I3: page 0 is given to seq 2"));
}

}  // namespace
}  // namespace quartet::simulation
