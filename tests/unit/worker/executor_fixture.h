#ifndef QUARTET_TESTS_UNIT_WORKER_EXECUTOR_FIXTURE_H_
#define QUARTET_TESTS_UNIT_WORKER_EXECUTOR_FIXTURE_H_

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "shard_worker/executor/executor.h"
#include "tests/unit/worker/model_rank.h"

namespace quartet {

inline constexpr uint64_t kTestEpoch = 3;
inline constexpr int kTestModelLen = 1024;
inline constexpr int kTestBatchedTokens = 320;
inline constexpr int kTestSlots = 4;
inline constexpr int kTestPages = 12;
inline constexpr int kTestSnapshots = 3;
inline constexpr int kTestVocab = 512;

// An executor over the miniature model. The model and its pools are loaded once for all tests, so
// that every test also starts from what the ones before left in slots and pages.
class ExecutorFixture : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    ModelRankOptions options;
    options.dir = QUARTET_SOURCE_DIR "/tests/data/model";
    options.pools = {.slots = kTestSlots,
                     .pages = kTestPages,
                     .snapshots = kTestSnapshots,
                     .draft_tokens = kMaxDraftTokens,
                     .kv_dtype = KvDtype::kFp32};
    options.limits = {.max_rows = kTestBatchedTokens,
                      .max_context = kTestModelLen + kMaxDraftTokens};
    rank_ = std::make_unique<ModelRank>(options, MakeSingleRank());
  }
  static void TearDownTestSuite() { rank_.reset(); }

  ExecutorFixture() { NewEpoch(); }

  void NewEpoch(const DraftSpoiler& spoiler = {}) {
    executor_ = std::make_unique<Executor>(
        ExecutorOptions{
            .epoch = kTestEpoch, .rank = 0, .max_model_len = kTestModelLen, .spoiler = spoiler},
        *rank_->model, *rank_->pools);
    step_ = 0;
  }

  static v1::SequenceOpen OpenMessage(uint64_t uid, uint32_t slot) {
    v1::SequenceOpen open;
    open.set_seq_uid(uid);
    open.set_slot(slot);
    return open;
  }
  void Open(uint64_t uid, uint32_t slot) {
    const absl::Status status = executor_->Open(OpenMessage(uid, slot));
    ASSERT_TRUE(status.ok()) << status;
  }
  // Opens a sequence behind a prefix; the message if it is refused.
  std::string Resume(uint64_t uid, uint32_t slot, uint32_t snapshot, uint32_t n_tokens,
                     const std::vector<uint32_t>& pages) {
    v1::SequenceOpen open = OpenMessage(uid, slot);
    open.mutable_resume()->set_snapshot(snapshot);
    open.mutable_resume()->set_n_tokens(n_tokens);
    open.mutable_resume()->mutable_pages()->Add(pages.begin(), pages.end());
    return std::string(executor_->Open(open).message());
  }
  void Close(uint64_t uid) {
    v1::SequenceClose close;
    close.set_seq_uid(uid);
    EXPECT_TRUE(executor_->Close(close).ok());
  }

  // `count` tokens of a fixed text that differs by `salt`.
  static std::vector<int32_t> Text(int count, int salt = 0) {
    std::vector<int32_t> ids(count);
    uint32_t state = 12345u + 777u * static_cast<uint32_t>(salt);
    for (int32_t& id : ids) {
      state = state * 1664525u + 1013904223u;
      id = static_cast<int32_t>((state >> 16) % 480);
    }
    return ids;
  }

  static v1::Row Row(uint64_t uid, uint32_t slot, uint32_t position,
                     const std::vector<int32_t>& tokens, const std::vector<uint32_t>& pages = {}) {
    v1::Row row;
    row.set_seq_uid(uid);
    row.set_slot(slot);
    row.set_kind(position == 0 ? v1::Row::KIND_PREFILL : v1::Row::KIND_DECODE);
    row.mutable_tokens()->Add(tokens.begin(), tokens.end());
    row.set_n_tokens(static_cast<uint32_t>(tokens.size()));
    row.set_position(position);
    row.mutable_new_pages()->Add(pages.begin(), pages.end());
    return row;
  }
  // The same with a token drawn at the end.
  static v1::Row Sampled(v1::Row row) {
    row.set_sample(true);
    row.set_want_logprob(true);
    return row;
  }
  // The same with the state after it kept in a snapshot.
  static v1::Row Exporting(v1::Row row, uint32_t snapshot) {
    v1::Export* e = row.add_exports();
    e->set_offset(row.n_tokens());
    e->set_snapshot(snapshot);
    return row;
  }
  // The same with so many drafts made behind it.
  static v1::Row Drafting(v1::Row row, uint32_t chain) {
    row.set_draft(true);
    row.set_draft_chain(chain);
    return row;
  }
  // The token drawn last and so many of the drafts made behind it.
  static v1::Row Verify(uint64_t uid, uint32_t slot, uint32_t position, uint32_t drafts) {
    v1::Row row = Sampled(FromDevice(uid, slot, position));
    row.set_kind(v1::Row::KIND_VERIFY);
    row.set_draft_tokens(drafts);
    row.set_n_tokens(1 + drafts);
    return row;
  }
  static v1::Commit CommitOf(uint64_t uid, uint32_t export_at = 0, uint32_t snapshot = 0) {
    v1::Commit commit;
    commit.set_seq_uid(uid);
    commit.set_export_at(export_at);
    commit.set_snapshot(snapshot);
    return commit;
  }
  // One more token: the one drawn last.
  static v1::Row FromDevice(uint64_t uid, uint32_t slot, uint32_t position) {
    v1::Row row = Row(uid, slot, position, {});
    row.set_kind(v1::Row::KIND_DECODE);
    row.set_from_device(true);
    row.set_n_tokens(1);
    return row;
  }

  v1::StepPlan Plan(const std::vector<v1::Row>& rows,
                    const std::vector<v1::Commit>& commits = {}) const {
    v1::StepPlan plan;
    for (const v1::Commit& commit : commits) *plan.add_commits() = commit;
    plan.set_epoch(kTestEpoch);
    plan.set_step_id(step_ + 1);
    plan.set_plan_hash(42);
    for (const v1::Row& row : rows) *plan.add_rows() = row;
    return plan;
  }
  // Executes a plan that must be accepted.
  v1::StepResult Run(const std::vector<v1::Row>& rows,
                     const std::vector<v1::Commit>& commits = {}) {
    const absl::StatusOr<v1::StepResult> result = executor_->Execute(Plan(rows, commits));
    EXPECT_TRUE(result.ok()) << result.status();
    if (!result.ok()) return {};
    EXPECT_EQ(result->error(), "");
    EXPECT_EQ(result->rows_size(), static_cast<int>(rows.size()));
    ++step_;
    return *result;
  }
  // Executes a plan that must be refused; its message.
  std::string Refused(const v1::StepPlan& plan) {
    const absl::StatusOr<v1::StepResult> result = executor_->Execute(plan);
    EXPECT_TRUE(result.ok()) << result.status();
    if (!result.ok()) return "";
    EXPECT_EQ(result->rows_size(), 0);
    EXPECT_NE(result->error(), "");
    return result->error();
  }

  static std::vector<int32_t> TokensOf(const v1::RowResult& row) {
    return {row.tokens().begin(), row.tokens().end()};
  }

  static std::unique_ptr<ModelRank> rank_;
  std::unique_ptr<Executor> executor_;
  uint64_t step_ = 0;
};

inline std::unique_ptr<ModelRank> ExecutorFixture::rank_;

}  // namespace quartet

#endif  // QUARTET_TESTS_UNIT_WORKER_EXECUTOR_FIXTURE_H_
