// Windows and commits that a worker refuses, by name.

#include <gmock/gmock.h>

#include <functional>

#include "tests/unit/worker/executor_fixture.h"

namespace quartet {
namespace {

using testing::HasSubstr;

struct BadPlan {
  const char* name;
  std::function<void(v1::StepPlan&)> change;
  const char* message;
};

// The plan that is broken: sequence 1 (250 tokens absorbed and one drawn, slot 0, one page)
// verifies three drafts behind a commit.
class BadSpeculationTest : public ExecutorFixture, public testing::WithParamInterface<BadPlan> {
 protected:
  v1::StepPlan GoodPlan() const {
    return Plan({Drafting(Verify(1, 0, 250, 3), 3)}, {CommitOf(1, 256, 1)});
  }
  void Prepare() {
    NewEpoch();
    Open(1, 0);
    Run({Drafting(Sampled(Row(1, 0, 0, Text(250), {0})), 3)});
  }
};

TEST_P(BadSpeculationTest, IsRefusedAsAWholeAndChangesNothing) {
  Prepare();
  const absl::StatusOr<v1::StepResult> reference = executor_->Execute(GoodPlan());
  ASSERT_TRUE(reference.ok());
  ASSERT_EQ(reference->error(), "");
  Prepare();
  v1::StepPlan plan = GoodPlan();
  GetParam().change(plan);
  EXPECT_THAT(Refused(plan), HasSubstr(GetParam().message));
  const absl::StatusOr<v1::StepResult> result = executor_->Execute(GoodPlan());
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->agreement_hash(), reference->agreement_hash());
}

std::function<void(v1::StepPlan&)> InRow(std::function<void(v1::Row&)> change) {
  return [change](v1::StepPlan& plan) { change(*plan.mutable_rows(0)); };
}
std::function<void(v1::StepPlan&)> InCommit(std::function<void(v1::Commit&)> change) {
  return [change](v1::StepPlan& plan) { change(*plan.mutable_commits(0)); };
}

INSTANTIATE_TEST_SUITE_P(
    Plans, BadSpeculationTest,
    testing::Values(
        BadPlan{"TooManyDrafts", InRow([](auto& r) {
                  r.set_draft_tokens(4);
                  r.set_n_tokens(5);
                }),
                "sequence 1: draft_tokens is 4, expected at most 3"},
        BadPlan{"HugeDrafts", InRow([](auto& r) { r.set_draft_tokens(4294967295u); }),
                "draft_tokens is 4294967295"},
        BadPlan{"OtherCount", InRow([](auto& r) { r.set_n_tokens(3); }),
                "n_tokens of a window is 3, expected 1 + draft_tokens, 4"},
        BadPlan{"NotFromDevice", InRow([](auto& r) { r.set_from_device(false); }),
                "a window comes with from_device and sample and without tokens"},
        BadPlan{"NotSampled", InRow([](auto& r) { r.set_sample(false); }),
                "a window comes with from_device and sample"},
        BadPlan{"WithTokens", InRow([](auto& r) { r.add_tokens(1); }), "without tokens"},
        BadPlan{"WithExports", InRow([](auto& r) { r.add_exports()->set_offset(4); }),
                "a window has no exports and no logprob_targets, given were 1 and 0"},
        BadPlan{"WithTargets", InRow([](auto& r) { r.add_logprob_targets(4); }),
                "given were 0 and 1"},
        BadPlan{"PositionBehind", InRow([](auto& r) { r.set_position(249); }),
                "position is 249, but 250 tokens have been absorbed"},
        // The greatest position counts for the places, not where the sequence stands.
        BadPlan{"NoPageForTheGreatestPosition", InRow([](auto& r) { r.set_position(251); }),
                "positions up to 256 need 2 pages, the sequence has 1"},
        BadPlan{"BehindTheModelLength", InRow([](auto& r) { r.set_position(1021); }),
                "tokens 1021..1024 do not fit into max_model_len 1024"},
        BadPlan{"CommitOfNobody", InCommit([](auto& c) { c.set_seq_uid(9); }),
                "sequence 9: to be committed, but not open"},
        BadPlan{"ExportInsideAPage", InCommit([](auto& c) { c.set_export_at(255); }),
                "sequence 1: export at 255 tokens, expected a multiple of 256"},
        BadPlan{"NoSuchSnapshot", InCommit([](auto& c) { c.set_snapshot(3); }),
                "snapshot 3 does not exist; the worker has 3 snapshots"},
        BadPlan{"TwoCommits", [](v1::StepPlan& plan) { *plan.add_commits() = plan.commits(0); },
                "sequence 1: two commits in one plan"},
        BadPlan{"SnapshotWrittenByARowToo",
                [](v1::StepPlan& plan) {
                  v1::Row& row = *plan.mutable_rows(0);
                  row.set_kind(v1::Row::KIND_PREFILL);
                  row.set_from_device(false);
                  row.set_draft_tokens(0);
                  row.set_draft_chain(0);
                  for (int i = 0; i < 6; ++i) row.add_tokens(1);
                  row.set_n_tokens(6);
                  row.add_exports()->set_offset(6);
                  row.mutable_exports(0)->set_snapshot(1);
                },
                "sequence 1: snapshot 1 is written twice"}),
    [](const auto& info) { return std::string(info.param.name); });

class SpeculationLimits : public ExecutorFixture {};

TEST_F(SpeculationLimits, AWindowNeedsATokenThatWasDrawn) {
  Open(1, 0);
  Run({Row(1, 0, 0, Text(10), {0})});
  EXPECT_THAT(Refused(Plan({Verify(1, 0, 10, 1)})),
              HasSubstr("from_device, but no token has been drawn"));
}

}  // namespace
}  // namespace quartet
