#include <gmock/gmock.h>

#include <cmath>
#include <functional>
#include <limits>

#include "tests/unit/worker/executor_fixture.h"
#include "tests/unit/worker/golden_file.h"

namespace quartet {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<int32_t> Drawn(const v1::StepResult& result) {
  std::vector<int32_t> out;
  for (const v1::RowResult& row : result.rows()) {
    for (const int32_t token : row.tokens()) out.push_back(token);
  }
  return out;
}

class ExecutorTest : public ExecutorFixture {
 protected:
  // Prompt and `count` greedy tokens of one sequence, alone, a token a step.
  std::vector<int32_t> Generate(uint64_t uid, uint32_t slot, const std::vector<int32_t>& prompt,
                                const std::vector<uint32_t>& pages, int count) {
    Open(uid, slot);
    std::vector<int32_t> out = Drawn(Run({Sampled(Row(uid, slot, 0, prompt, pages))}));
    while (static_cast<int>(out.size()) < count) {
      const auto position = static_cast<uint32_t>(prompt.size() + out.size() - 1);
      out.push_back(Drawn(Run({Sampled(FromDevice(uid, slot, position))}))[0]);
    }
    Close(uid);
    return out;
  }
};

TEST_F(ExecutorTest, DrawsGreedyTokensWithTheirLogProbs) {
  Open(1, 0);
  const v1::StepResult result = Run({Sampled(Row(1, 0, 0, Text(20), {0}))});
  ASSERT_EQ(result.rows(0).tokens_size(), 1);
  ASSERT_EQ(result.rows(0).logprobs_size(), 1);
  EXPECT_LT(result.rows(0).logprobs(0), 0);
  EXPECT_GT(result.rows(0).logprobs(0), -8);
  EXPECT_EQ(result.rows(0).seq_uid(), 1u);
  EXPECT_EQ(result.epoch(), kTestEpoch);

  // The same log-probability when it is asked for by name.
  Open(2, 1);
  v1::Row row = Row(2, 1, 0, Text(20), {1});
  std::vector<int32_t> targets = Text(20);
  targets.erase(targets.begin());
  targets.push_back(result.rows(0).tokens(0));
  row.mutable_logprob_targets()->Add(targets.begin(), targets.end());
  const v1::StepResult asked = Run({row});
  ASSERT_EQ(asked.rows(0).target_logprobs_size(), 20);
  EXPECT_EQ(asked.rows(0).target_logprobs(19), result.rows(0).logprobs(0));
  EXPECT_EQ(asked.rows(0).tokens_size(), 0);
}

TEST_F(ExecutorTest, TheLastDrawnTokenCanBeFedFromTheWorkerOrInline) {
  const std::vector<int32_t> from_device = Generate(1, 0, Text(30), {0}, 6);
  NewEpoch();
  Open(1, 0);
  std::vector<int32_t> out = Drawn(Run({Sampled(Row(1, 0, 0, Text(30), {0}))}));
  while (out.size() < 6) {
    const auto position = static_cast<uint32_t>(30 + out.size() - 1);
    out.push_back(Drawn(Run({Sampled(Row(1, 0, position, {out.back()}))}))[0]);
  }
  EXPECT_EQ(out, from_device);
}

TEST_F(ExecutorTest, ASharedStepGivesEverySequenceWhatItGetsAlone) {
  const std::vector<int32_t> a = Generate(1, 0, Text(40, 1), {0}, 4);
  const std::vector<int32_t> b = Generate(2, 1, Text(300, 2), {1, 2}, 2);
  const std::vector<int32_t> c = Generate(3, 2, Text(9, 3), {3}, 3);
  NewEpoch();
  // a decodes while b is prefilled in three chunks and c comes in later.
  Open(1, 3);
  Open(2, 0);
  std::vector<int32_t> got_a = Drawn(Run({Sampled(Row(1, 3, 0, Text(40, 1), {7}))}));
  const std::vector<int32_t> text = Text(300, 2);
  const v1::StepResult first = Run(
      {Row(2, 0, 0, {text.begin(), text.begin() + 100}, {8, 9}), Sampled(FromDevice(1, 3, 40))});
  got_a.push_back(first.rows(1).tokens(0));
  Open(3, 1);
  const v1::StepResult second =
      Run({Sampled(FromDevice(1, 3, 41)), Row(2, 0, 100, {text.begin() + 100, text.begin() + 199}),
           Sampled(Row(3, 1, 0, Text(9, 3), {2}))});
  got_a.push_back(second.rows(0).tokens(0));
  std::vector<int32_t> got_c = {second.rows(2).tokens(0)};
  const v1::StepResult third = Run({Sampled(FromDevice(3, 1, 9)), Sampled(FromDevice(1, 3, 42)),
                                    Sampled(Row(2, 0, 199, {text.begin() + 199, text.end()}))});
  got_c.push_back(third.rows(0).tokens(0));
  got_a.push_back(third.rows(1).tokens(0));
  std::vector<int32_t> got_b = {third.rows(2).tokens(0)};
  const v1::StepResult fourth =
      Run({Sampled(FromDevice(2, 0, 300)), Sampled(FromDevice(3, 1, 10))});
  got_b.push_back(fourth.rows(0).tokens(0));
  got_c.push_back(fourth.rows(1).tokens(0));
  EXPECT_EQ(got_a, a);
  EXPECT_EQ(got_b, b);
  EXPECT_EQ(got_c, c);
}

TEST_F(ExecutorTest, AReusedSlotAndPagesKeepNothingOfTheirLastSequence) {
  const std::vector<int32_t> fresh = Generate(1, 0, Text(300, 1), {0, 1}, 8);
  Generate(2, 2, Text(310, 2), {5, 4}, 8);
  EXPECT_EQ(executor_->slots_used(), 0);
  EXPECT_EQ(executor_->pages_used(), 0);
  EXPECT_EQ(Generate(3, 2, Text(300, 1), {4, 5}, 8), fresh);
}

TEST_F(ExecutorTest, ASeedDrawsTheSameWhateverElseIsInTheStep) {
  const auto open = [&](uint64_t uid, uint32_t slot) {
    v1::SequenceOpen message = OpenMessage(uid, slot);
    message.mutable_sampling()->set_temperature(2.0f);
    message.mutable_sampling()->set_seed(5);
    ASSERT_TRUE(executor_->Open(message).ok());
  };
  open(1, 0);
  std::vector<int32_t> alone = Drawn(Run({Sampled(Row(1, 0, 0, Text(12), {0}))}));
  alone.push_back(Drawn(Run({Sampled(FromDevice(1, 0, 12))}))[0]);
  open(2, 1);
  Open(3, 2);
  std::vector<int32_t> mixed = {
      Run({Sampled(Row(3, 2, 0, Text(5, 9), {2})), Sampled(Row(2, 1, 0, Text(12), {1}))})
          .rows(1)
          .tokens(0)};
  mixed.push_back(
      Run({Sampled(FromDevice(2, 1, 12)), Sampled(FromDevice(3, 2, 5))}).rows(0).tokens(0));
  EXPECT_EQ(mixed, alone);
}

TEST_F(ExecutorTest, IdsFromThePaddingOnAreNeverDrawn) {
  Open(1, 0);
  const int32_t token = Drawn(Run({Sampled(Row(1, 0, 0, Text(20), {0}))}))[0];
  ASSERT_GT(token, 0);
  v1::SequenceOpen open = OpenMessage(2, 1);
  open.set_first_padding_id(token);
  ASSERT_TRUE(executor_->Open(open).ok());
  EXPECT_LT(Drawn(Run({Sampled(Row(2, 1, 0, Text(20), {1}))}))[0], token);
}

TEST_F(ExecutorTest, DraftsAreTheReferencesChain) {
  const std::string data = QUARTET_SOURCE_DIR "/tests/data/model/";
  const GoldenFile golden(data + "golden_mtp.safetensors");
  const std::vector<int32_t> ids = golden.I32("e.p300.input_ids");
  const int32_t next = golden.I32("e.p300.trunk_next")[0];
  const std::vector<int32_t> want = golden.I32("e.p300.recompute.draft_tokens");
  Open(1, 0);
  // Two chunks: the draft layer must have seen every position with the token after it.
  v1::Row first = Row(1, 0, 0, {ids.begin(), ids.begin() + 130}, {0, 1});
  first.set_draft(true);
  first.set_mtp_next(ids[130]);
  v1::Row second = Sampled(Row(1, 0, 130, {ids.begin() + 130, ids.end()}));
  second.set_draft(true);
  second.set_draft_chain(3);
  EXPECT_EQ(Run({first}).rows(0).drafts_size(), 0);
  const v1::StepResult result = Run({second});
  EXPECT_EQ(result.rows(0).tokens(0), next);
  EXPECT_THAT(result.rows(0).drafts(), testing::ElementsAreArray(want));

  // The rows behind the draft chain were scratch: what follows is as if they had not been.
  std::vector<int32_t> with_drafts = {next};
  for (uint32_t p = 300; p < 306; ++p) {
    v1::Row row = Sampled(FromDevice(1, 0, p));
    row.set_draft(true);
    row.set_draft_chain(3);
    with_drafts.push_back(Drawn(Run({row}))[0]);
  }
  Close(1);
  EXPECT_EQ(Generate(2, 1, ids, {4, 5}, 7), with_drafts);
}

TEST_F(ExecutorTest, TheLastStepAgainIsAnsweredFromMemory) {
  Open(1, 0);
  const v1::StepPlan plan = Plan({Sampled(Row(1, 0, 0, Text(10), {0}))});
  const v1::StepResult result = Run({Sampled(Row(1, 0, 0, Text(10), {0}))});
  const absl::StatusOr<v1::StepResult> again = executor_->Execute(plan);
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(again->SerializeAsString(), result.SerializeAsString());
  EXPECT_EQ(executor_->stats().steps, 1u);
  // And the sequence stands where it stood.
  EXPECT_EQ(Run({Sampled(FromDevice(1, 0, 10))}).error(), "");
}

TEST_F(ExecutorTest, OtherEpochsAndStepIdsAreRefused) {
  Open(1, 0);
  v1::StepPlan plan = Plan({Row(1, 0, 0, Text(10), {0})});
  plan.set_epoch(kTestEpoch + 1);
  EXPECT_THAT(Refused(plan), HasSubstr("the plan is of epoch 4, this worker is in epoch 3"));
  plan.set_epoch(kTestEpoch);
  for (const uint64_t id : {uint64_t{0}, uint64_t{2}, std::numeric_limits<uint64_t>::max()}) {
    plan.set_step_id(id);
    EXPECT_THAT(Refused(plan), HasSubstr("expected step id 1"));
  }
  Run({Row(1, 0, 0, Text(10), {0})});
  Run({Row(1, 0, 10, Text(1))});
  for (const uint64_t id : {1, 4}) {
    plan.set_step_id(id);
    EXPECT_THAT(Refused(plan), HasSubstr("expected step id 3 (or the last one again)"));
  }
}

TEST_F(ExecutorTest, TheAgreementHashSeesThePlanAndWhatCameOfIt) {
  Open(1, 0);
  Open(2, 1);
  const v1::StepResult a = Run({Sampled(Row(1, 0, 0, Text(10), {0}))});
  NewEpoch();
  Open(1, 0);
  Open(2, 1);
  // Another slot content and page, the same computation.
  const v1::StepResult b = Run({Sampled(Row(1, 0, 0, Text(10), {3}))});
  EXPECT_EQ(a.agreement_hash(), b.agreement_hash());
  NewEpoch();
  Open(1, 0);
  v1::StepPlan plan = Plan({Sampled(Row(1, 0, 0, Text(10), {0}))});
  plan.set_plan_hash(43);
  EXPECT_NE(executor_->Execute(plan)->agreement_hash(), a.agreement_hash());
  NewEpoch();
  Open(1, 0);
  EXPECT_NE(Run({Sampled(Row(1, 0, 0, Text(10, 1), {0}))}).agreement_hash(), a.agreement_hash());
}

TEST_F(ExecutorTest, AnEmptyPlanIsAStep) {
  EXPECT_EQ(Run({}).rows_size(), 0);
  EXPECT_EQ(Run({}).step_id(), 2u);
}

TEST_F(ExecutorTest, ANanFailsItsOwnRowOnly) {
  const std::vector<int32_t> alone = Generate(9, 1, Text(10, 1), {1}, 3);
  Open(1, 0);
  Open(2, 1);
  std::vector<int32_t> got = {
      Run({Row(1, 0, 0, Text(10), {0}), Sampled(Row(2, 1, 0, Text(10, 1), {1}))})
          .rows(1)
          .tokens(0)};
  rank_->pools->kda_state(0).recurrent[0] = std::nanf("");  // of slot 0
  const v1::StepResult result = Run({Sampled(Row(1, 0, 10, {4})), Sampled(FromDevice(2, 1, 10))});
  EXPECT_THAT(result.rows(0).error(), HasSubstr("sequence 1: the logits at position 10"));
  EXPECT_EQ(result.rows(0).tokens_size(), 0);
  got.push_back(result.rows(1).tokens(0));
  // A plan that was on its way already meets the failed sequence: its row fails, the other runs.
  const v1::StepResult late = Run({Sampled(FromDevice(1, 0, 11)), Sampled(FromDevice(2, 1, 11))});
  EXPECT_THAT(late.rows(0).error(), HasSubstr("position 10"));
  got.push_back(late.rows(1).tokens(0));
  EXPECT_EQ(got, alone);
  EXPECT_EQ(executor_->stats().failed_rows, 2u);
  Close(1);
  EXPECT_EQ(executor_->slots_used(), 1);
  // The slot serves the next sequence as if nothing had been.
  EXPECT_EQ(Generate(3, 0, Text(10, 1), {0}, 3), alone);
}

TEST_F(ExecutorTest, ANanUnderAskedLogProbsFailsTheRowToo) {
  Open(1, 0);
  Run({Row(1, 0, 0, Text(10), {0})});
  rank_->pools->kda_state(0).recurrent[0] = std::nanf("");
  v1::Row row = Row(1, 0, 10, {4, 5});
  row.add_logprob_targets(5);
  row.add_logprob_targets(6);
  const v1::StepResult result = Run({row});
  EXPECT_THAT(result.rows(0).error(), HasSubstr("the logits at position 10"));
  EXPECT_EQ(result.rows(0).target_logprobs_size(), 0);
}

TEST_F(ExecutorTest, DumpHashesWhatASequenceHolds) {
  Open(1, 0);
  Run({Row(1, 0, 0, Text(300), {0, 1})});
  Open(2, 2);
  const std::vector<int32_t> text = Text(300);
  Run({Row(2, 2, 0, {text.begin(), text.begin() + 77}, {7})});
  Run({Row(2, 2, 77, {text.begin() + 77, text.end()}, {3})});
  v1::Dump dump;
  dump.set_seq_uid(1);
  const v1::DumpReply one = executor_->Dump(dump);
  dump.set_seq_uid(2);
  const v1::DumpReply two = executor_->Dump(dump);
  EXPECT_EQ(one.tokens(), 300u);
  EXPECT_EQ(one.slots_used(), 2u);
  EXPECT_EQ(one.pages_used(), 4u);
  // Seven KDA layers with two parts each, two DSA layers with their latents.
  EXPECT_EQ(one.state_hashes_size(), 16);
  for (const auto& [part, hash] : one.state_hashes()) {
    EXPECT_EQ(two.state_hashes().at(part), hash) << part;
  }
  Run({Row(2, 2, 300, {5})});
  const v1::DumpReply moved = executor_->Dump(dump);
  for (const auto& [part, hash] : moved.state_hashes()) {
    EXPECT_NE(two.state_hashes().at(part), hash) << part;
  }
}

// ---- what a sequence may ask for -------------------------------------------------------------

struct BadOpen {
  const char* name;
  std::function<void(v1::SequenceOpen&)> change;
  const char* message;
};

class ExecutorOpenTest : public ExecutorTest, public testing::WithParamInterface<BadOpen> {};

TEST_P(ExecutorOpenTest, IsRefusedByNameAndFailsItsRowsOnly) {
  Open(1, 0);
  v1::SequenceOpen open = OpenMessage(2, 1);
  GetParam().change(open);
  const absl::Status status = executor_->Open(open);
  EXPECT_THAT(std::string(status.message()), HasSubstr(GetParam().message));
  EXPECT_THAT(std::string(status.message()), HasSubstr("sequence 2"));
  const v1::StepResult result =
      Run({Sampled(Row(2, open.slot(), 0, Text(3), {1})), Sampled(Row(1, 0, 0, Text(3), {0}))});
  EXPECT_THAT(result.rows(0).error(), HasSubstr(GetParam().message));
  EXPECT_EQ(result.rows(1).error(), "");
  EXPECT_EQ(result.rows(1).tokens_size(), 1);
  Close(2);
  Close(1);
  EXPECT_EQ(executor_->slots_used(), 0);
  EXPECT_EQ(executor_->pages_used(), 0);
}

const float kNan = std::numeric_limits<float>::quiet_NaN();

INSTANTIATE_TEST_SUITE_P(
    Opens, ExecutorOpenTest,
    testing::Values(
        BadOpen{"presence", [](auto& o) { o.mutable_sampling()->set_presence_penalty(2.5f); },
                "presence_penalty is 2.5, expected a number from -2 to 2"},
        BadOpen{"frequency", [](auto& o) { o.mutable_sampling()->set_frequency_penalty(NAN); },
                "frequency_penalty is nan"},
        BadOpen{"repetition", [](auto& o) { o.mutable_sampling()->set_repetition_penalty(-1); },
                "repetition_penalty is -1"},
        BadOpen{"biased_id",
                [](auto& o) { (*o.mutable_sampling()->mutable_logit_bias())[kTestVocab] = 1; },
                "logit_bias has id 512, the vocabulary ends at 512"},
        BadOpen{"bias", [](auto& o) { (*o.mutable_sampling()->mutable_logit_bias())[3] = 101; },
                "logit_bias of 3 is 101"},
        BadOpen{"banned", [](auto& o) { o.mutable_sampling()->add_banned_ids(-1); },
                "banned_ids[0] is -1"},
        BadOpen{"end_ids", [](auto& o) { o.add_end_ids(kTestVocab); }, "end_ids[0] is 512"},
        BadOpen{"budget", [](auto& o) { o.mutable_thinking()->set_max_tokens(5); },
                "thinking.end_ids is empty"},
        BadOpen{"temperature", [](auto& o) { o.mutable_sampling()->set_temperature(-1); },
                "temperature is -1"},
        BadOpen{"nan", [](auto& o) { o.mutable_sampling()->set_temperature(kNan); },
                "temperature is nan"},
        BadOpen{"top_p", [](auto& o) { o.mutable_sampling()->set_top_p(1.5f); }, "top_p is 1.5"},
        BadOpen{"top_k", [](auto& o) { o.mutable_sampling()->set_top_k(-2); }, "top_k is -2"},
        BadOpen{"min_p", [](auto& o) { o.mutable_sampling()->set_min_p(2); }, "min_p is 2"},
        BadOpen{"padding", [](auto& o) { o.set_first_padding_id(-1); }, "first_padding_id is -1"},
        BadOpen{"acceptance", [](auto& o) { o.set_acceptance(static_cast<v1::Acceptance>(7)); },
                "acceptance is 7, expected ACCEPTANCE_REJECTION or ACCEPTANCE_COUPLED"},
        BadOpen{"slot", [](auto& o) { o.set_slot(4); },
                "slot 4 does not exist; the worker has 4 slots"},
        BadOpen{"taken", [](auto& o) { o.set_slot(0); }, "slot 0 belongs to sequence 1"}),
    [](const auto& info) { return std::string(info.param.name); });

TEST_F(ExecutorTest, AUidIsOpenedOnceAndClosedOnce) {
  Open(1, 0);
  EXPECT_TRUE(absl::IsAlreadyExists(executor_->Open(OpenMessage(1, 1))));
  Close(1);
  v1::SequenceClose close;
  close.set_seq_uid(1);
  EXPECT_TRUE(absl::IsNotFound(executor_->Close(close)));
}

TEST_F(ExecutorTest, RefusedSequencesAreRememberedUpToALimit) {
  absl::Status status;
  uint64_t uid = 1;
  while (!absl::IsResourceExhausted(status) && uid < 10000) {
    status = executor_->Open(OpenMessage(uid++, 99));
  }
  EXPECT_EQ(uid, 1u + kTestSlots + 256u + 1u);
}

// ---- what a plan may ask for -----------------------------------------------------------------

struct BadPlan {
  const char* name;
  std::function<void(v1::StepPlan&)> change;
  const char* message;
};

// The plan that is broken: row 0 continues sequence 1 (300 tokens absorbed, pages 0 and 1, slot 0)
// by three tokens; row 1 begins sequence 2 in slot 1 with ten.
class ExecutorPlanTest : public ExecutorTest, public testing::WithParamInterface<BadPlan> {
 protected:
  v1::StepPlan GoodPlan() const {
    return Plan({Sampled(Row(1, 0, 300, Text(3, 5))), Sampled(Row(2, 1, 0, Text(10, 6), {2}))});
  }
  void Prepare() {
    NewEpoch();
    Open(1, 0);
    Open(2, 1);
    Run({Row(1, 0, 0, Text(300), {0, 1})});
  }
};

TEST_P(ExecutorPlanTest, IsRefusedAsAWholeAndChangesNothing) {
  Prepare();
  const absl::StatusOr<v1::StepResult> reference = executor_->Execute(GoodPlan());
  ASSERT_TRUE(reference.ok());
  ASSERT_EQ(reference->error(), "");

  Prepare();
  v1::StepPlan plan = GoodPlan();
  GetParam().change(plan);
  const std::string message = Refused(plan);
  EXPECT_THAT(message, HasSubstr(GetParam().message));
  EXPECT_THAT(message, HasSubstr("step 2"));
  EXPECT_EQ(executor_->pages_used(), 2);
  EXPECT_EQ(executor_->stats().refused_plans, 1u);
  // The repaired plan under the same step id does what it would have done.
  absl::StatusOr<v1::StepResult> result = executor_->Execute(GoodPlan());
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->error(), "");
  EXPECT_EQ(result->agreement_hash(), reference->agreement_hash());
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(result->rows(i).SerializeAsString(), reference->rows(i).SerializeAsString());
  }
}

std::function<void(v1::StepPlan&)> InRow(int row, std::function<void(v1::Row&)> change) {
  return [row, change](v1::StepPlan& plan) { change(*plan.mutable_rows(row)); };
}

INSTANTIATE_TEST_SUITE_P(
    Plans, ExecutorPlanTest,
    testing::Values(
        BadPlan{"UnknownSequence", InRow(1, [](auto& r) { r.set_seq_uid(77); }),
                "sequence 77: not open"},
        BadPlan{"TwoRowsOfOneSequence", InRow(1, [](auto& r) { r.set_seq_uid(1); }),
                "sequence 1: two rows in one plan"},
        BadPlan{"OtherSlot", InRow(1, [](auto& r) { r.set_slot(2); }),
                "sequence 2: the row says slot 2, the sequence was opened in slot 1"},
        BadPlan{"SlotOutOfRange", InRow(0, [](auto& r) { r.set_slot(4000000000u); }),
                "the row says slot 4000000000"},
        BadPlan{"PositionBehind", InRow(0, [](auto& r) { r.set_position(299); }),
                "sequence 1: position is 299, but 300 tokens have been absorbed"},
        BadPlan{"PositionAhead", InRow(0, [](auto& r) { r.set_position(301); }),
                "position is 301, but 300"},
        BadPlan{"BehindTheModelLength",
                [](v1::StepPlan& plan) {
                  v1::Row& row = *plan.mutable_rows(0);
                  row.set_position(4294967290u);
                },
                "position is 4294967290"},
        BadPlan{"NoPageForTheTokens", InRow(1, [](auto& r) { r.clear_new_pages(); }),
                "sequence 2: positions up to 9 need 1 pages, the sequence has 0"},
        BadPlan{"PageOutOfRange", InRow(1, [](auto& r) { r.set_new_pages(0, 12); }),
                "sequence 2: page 12 does not exist; the worker has 12 pages"},
        BadPlan{"PageFarOutOfRange", InRow(1, [](auto& r) { r.set_new_pages(0, 4294967295u); }),
                "page 4294967295 does not exist"},
        BadPlan{"PageOfAnother", InRow(1, [](auto& r) { r.set_new_pages(0, 1); }),
                "sequence 2: page 1 is used by sequence 1"},
        BadPlan{"PageTwice", InRow(1, [](auto& r) { r.add_new_pages(2); }),
                "page 2 is given twice"},
        BadPlan{"PageTwiceInTwoRows", InRow(0, [](auto& r) { r.add_new_pages(2); }),
                "sequence 2: page 2 is given twice"},
        BadPlan{"TokenOutOfVocabulary", InRow(0, [](auto& r) { r.set_tokens(1, 512); }),
                "sequence 1: tokens[1] is 512, the vocabulary ends at 512"},
        BadPlan{"NegativeToken", InRow(0, [](auto& r) { r.set_tokens(2, -1); }), "tokens[2] is -1"},
        BadPlan{"NoTokens",
                InRow(0,
                      [](auto& r) {
                        r.clear_tokens();
                        r.set_n_tokens(0);
                      }),
                "sequence 1: n_tokens is 0"},
        BadPlan{"OtherCount", InRow(0, [](auto& r) { r.set_n_tokens(4); }),
                "n_tokens is 4, but there are 3 tokens"},
        BadPlan{"HugeCount", InRow(0, [](auto& r) { r.set_n_tokens(4294967295u); }),
                "n_tokens is 4294967295, but there are 3 tokens"},
        BadPlan{"TooManyTokens",
                InRow(1,
                      [](auto& r) {
                        r.clear_tokens();
                        for (int i = 0; i < 318; ++i) r.add_tokens(1);
                        r.set_n_tokens(318);
                        r.add_new_pages(3);
                      }),
                "more than 320 tokens (max_num_batched_tokens)"},
        BadPlan{"FromDeviceWithTokens", InRow(0, [](auto& r) { r.set_from_device(true); }),
                "from_device stands for one token"},
        BadPlan{"FromDeviceWithoutADraw",
                InRow(0,
                      [](auto& r) {
                        r.clear_tokens();
                        r.set_n_tokens(1);
                        r.set_from_device(true);
                      }),
                "from_device, but no token has been drawn"},
        BadPlan{"TargetsOfOtherCount", InRow(0, [](auto& r) { r.add_logprob_targets(1); }),
                "there are 1 logprob_targets for 3 tokens"},
        BadPlan{"TargetOutOfVocabulary",
                InRow(0,
                      [](auto& r) {
                        r.add_logprob_targets(1);
                        r.add_logprob_targets(600);
                        r.add_logprob_targets(2);
                      }),
                "logprob_targets[1] is 600"},
        BadPlan{"NoKind", InRow(0, [](auto& r) { r.set_kind(v1::Row::KIND_UNSPECIFIED); }),
                "kind is 0, expected KIND_PREFILL, KIND_DECODE or KIND_VERIFY"},
        BadPlan{"OtherKind", InRow(0, [](auto& r) { r.set_kind(static_cast<v1::Row::Kind>(9)); }),
                "kind is 9"},
        BadPlan{"DraftTokens", InRow(0, [](auto& r) { r.set_draft_tokens(2); }),
                "draft_tokens is 2, but the row is not KIND_VERIFY"},
        BadPlan{"Exports", InRow(0, [](auto& r) { r.add_exports(); }),
                "export after 0 of 3 tokens"},
        BadPlan{"CommitOfNobody", [](v1::StepPlan& plan) { plan.add_commits()->set_seq_uid(77); },
                "sequence 77: to be committed, but not open"},
        BadPlan{"Copies", [](v1::StepPlan& plan) { plan.add_copies(); }, "copies[0]: kind 0"},
        BadPlan{"ChainWithoutDraft", InRow(0, [](auto& r) { r.set_draft_chain(1); }),
                "draft_chain is 1 without draft"},
        BadPlan{"LongChain",
                InRow(0,
                      [](auto& r) {
                        r.set_draft(true);
                        r.set_draft_chain(4);
                      }),
                "draft_chain is 4, expected at most 3"},
        BadPlan{"NextOutOfVocabulary",
                InRow(0,
                      [](auto& r) {
                        r.set_sample(false);
                        r.set_draft(true);
                        r.set_mtp_next(512);
                      }),
                "mtp_next is 512"}),
    [](const auto& info) { return std::string(info.param.name); });

TEST_F(ExecutorTest, TokensBehindTheModelLengthAreRefused) {
  Open(1, 0);
  Run({Row(1, 0, 0, Text(300), {0, 1})});
  Run({Row(1, 0, 300, Text(320), {2})});
  Run({Row(1, 0, 620, Text(320), {3})});
  EXPECT_THAT(Refused(Plan({Row(1, 0, 940, Text(85))})),
              HasSubstr("tokens 940..1024 do not fit into max_model_len 1024"));
  // Drafts may stand behind the end, but need their place.
  v1::Row row = Sampled(Row(1, 0, 940, Text(84)));
  row.set_draft(true);
  row.set_draft_chain(3);
  EXPECT_THAT(Refused(Plan({row})), HasSubstr("positions up to 1025 need 5 pages"));
  row.add_new_pages(4);
  EXPECT_EQ(Run({row}).rows(0).drafts_size(), 3);
  Open(2, 1);
  EXPECT_THAT(Refused(Plan({Row(2, 1, 0, Text(3), {5, 6, 7, 8, 9, 10})})),
              HasSubstr("6 pages, expected at most 5 for max_model_len 1024"));
}

// ---- when the group breaks -------------------------------------------------------------------

TEST_F(ExecutorTest, AfterABrokenStepNothingIsExecutedAnyMore) {
  ModelRankOptions options;
  options.dir = QUARTET_SOURCE_DIR "/tests/data/model";
  options.limits = {.max_rows = 32, .max_context = 512};
  ModelRank rank(options, MakeSingleRank());
  Executor executor({.epoch = kTestEpoch, .rank = 0, .max_model_len = 256}, *rank.model,
                    *rank.pools);
  ASSERT_TRUE(executor.Open(OpenMessage(1, 0)).ok());
  rank.collectives->Abort("rank 2 is gone");
  const v1::StepPlan plan = Plan({Row(1, 0, 0, Text(4), {0})});
  const absl::Status status = executor.Execute(plan).status();
  EXPECT_THAT(std::string(status.message()), HasSubstr("rank 2 is gone"));
  EXPECT_EQ(executor.Execute(plan).status(), status);
}

}  // namespace
}  // namespace quartet
