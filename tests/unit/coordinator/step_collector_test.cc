#include "services/coordinator/core/step_collector.h"

#include <gmock/gmock.h>

namespace quartet::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Kind = StepCollector::Verdict::Kind;

StepCollector::Answer Of(uint32_t rank, uint64_t hash, uint64_t step = 5) {
  StepCollector::Answer answer;
  answer.epoch = 1;
  answer.step_id = step;
  answer.rank = rank;
  answer.agreement_hash = hash;
  if (rank == 0) answer.rows = {RowOutcome{.seq_uid = 9, .tokens = {42}}};
  return answer;
}

TEST(StepCollector, IsCompleteWhenTheLastRankHasAnsweredInAnyOrder) {
  StepCollector collector(3);
  collector.Begin(1, 5);
  EXPECT_EQ(collector.Add(Of(2, 77)).kind, Kind::kWaiting);
  EXPECT_EQ(collector.Add(Of(0, 77)).kind, Kind::kWaiting);
  EXPECT_THAT(collector.MissingRanks(), ElementsAre(1));
  StepCollector::Verdict verdict = collector.Add(Of(1, 77));
  EXPECT_EQ(verdict.kind, Kind::kComplete);
  EXPECT_EQ(verdict.outcome.step_id, 5u);
  ASSERT_EQ(verdict.outcome.rows.size(), 1u);
  EXPECT_THAT(verdict.outcome.rows[0].tokens, ElementsAre(42));
  EXPECT_FALSE(collector.waiting());
}

TEST(StepCollector, ADifferentHashGivesNothingOutAndNamesTheRank) {
  StepCollector collector(2);
  collector.Begin(1, 5);
  collector.Add(Of(0, 77));
  StepCollector::Verdict verdict = collector.Add(Of(1, 78));
  EXPECT_EQ(verdict.kind, Kind::kMismatch);
  EXPECT_THAT(verdict.message, HasSubstr("rank 1 does not agree with rank 0 about step 5"));
  EXPECT_TRUE(verdict.outcome.rows.empty());
}

TEST(StepCollector, AnErrorOfOneRankEndsTheStepAtOnce) {
  StepCollector collector(2);
  collector.Begin(1, 5);
  StepCollector::Answer answer = Of(1, 0);
  answer.error = "out of memory";
  StepCollector::Verdict verdict = collector.Add(answer);
  EXPECT_EQ(verdict.kind, Kind::kError);
  EXPECT_EQ(verdict.message, "rank 1 failed in step 5: out of memory");
  EXPECT_EQ(collector.Add(Of(0, 77)).kind, Kind::kIgnored);
}

TEST(StepCollector, ACopyIsAsGoodAsItsWorstRank) {
  using enum CopyOutcome;
  StepCollector collector(3);
  collector.Begin(1, 5);
  std::vector<StepCollector::Answer> answers = {Of(0, 77), Of(1, 77), Of(2, 77)};
  answers[0].copies = {kDone, kDone, kChecksum, kDone};
  answers[1].copies = {kDone, kMissing, kMissing, kDone};
  answers[2].copies = {kDone, kDone, kDone};  // says nothing of the last one
  collector.Add(answers[2]);
  collector.Add(answers[0]);
  const StepCollector::Verdict verdict = collector.Add(answers[1]);
  EXPECT_EQ(verdict.kind, Kind::kComplete) << "a copy that failed is no disagreement";
  EXPECT_THAT(verdict.outcome.copies, ElementsAre(kDone, kMissing, kChecksum, kMissing));
}

TEST(StepCollector, StepsAreDoneInOrderAndARankMayBeAhead) {
  StepCollector collector(2);
  collector.Begin(1, 5);
  collector.Begin(1, 6);
  EXPECT_EQ(collector.Add(Of(1, 70, 6)).kind, Kind::kIgnored) << "it has not answered step 5";
  EXPECT_EQ(collector.Add(Of(1, 70, 5)).kind, Kind::kWaiting);
  EXPECT_EQ(collector.Add(Of(1, 71, 6)).kind, Kind::kWaiting);
  EXPECT_THAT(collector.MissingRanks(), ElementsAre(0));
  EXPECT_EQ(collector.Add(Of(0, 70, 5)).outcome.step_id, 5u);
  EXPECT_TRUE(collector.waiting());
  const StepCollector::Verdict verdict = collector.Add(Of(0, 71, 6));
  EXPECT_EQ(verdict.kind, Kind::kComplete);
  EXPECT_EQ(verdict.outcome.step_id, 6u);
  EXPECT_FALSE(collector.waiting());
}

TEST(StepCollector, AMismatchEndsWhatIsBehindItAsWell) {
  StepCollector collector(2);
  collector.Begin(1, 5);
  collector.Begin(1, 6);
  collector.Add(Of(0, 70, 5));
  EXPECT_EQ(collector.Add(Of(1, 71, 5)).kind, Kind::kMismatch);
  EXPECT_FALSE(collector.waiting());
}

TEST(StepCollector, SecondAnswersOtherStepsAndUnknownRanksAreIgnored) {
  StepCollector collector(2);
  EXPECT_EQ(collector.Add(Of(0, 77)).kind, Kind::kIgnored) << "nothing is open";
  collector.Begin(1, 5);
  EXPECT_EQ(collector.Add(Of(0, 77, 4)).kind, Kind::kIgnored);
  EXPECT_EQ(collector.Add(Of(7, 77)).kind, Kind::kIgnored);
  EXPECT_EQ(collector.Add(Of(0, 77)).kind, Kind::kWaiting);
  EXPECT_EQ(collector.Add(Of(0, 78)).kind, Kind::kIgnored);
  EXPECT_EQ(collector.Add(Of(1, 77)).kind, Kind::kComplete);
}

}  // namespace
}  // namespace quartet::coordinator
