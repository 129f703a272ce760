// Plans that nobody in his right mind sends: whatever they say, the executor answers with a result
// or an error and keeps its books.

#include <cstdio>
#include <random>

#include "tests/unit/worker/executor_fixture.h"

namespace quartet {
namespace {

class ExecutorRandomTest : public ExecutorFixture, public testing::WithParamInterface<uint32_t> {
 protected:
  uint32_t Below(uint32_t n) { return random_() % n; }
  bool OneIn(uint32_t n) { return Below(n) == 0; }
  // Mostly small, sometimes anything.
  uint32_t Number(uint32_t usual) {
    if (OneIn(12)) return random_();
    return Below(usual);
  }

  // Usually the next page in turn, which often is free.
  uint32_t Page() { return OneIn(10) ? Number(kTestPages + 1) : page_++ % kTestPages; }

  v1::Row RandomRow() {
    v1::Row row;
    row.set_seq_uid(Number(8));
    row.set_slot(OneIn(8) ? Number(6) : static_cast<uint32_t>(row.seq_uid() % kTestSlots));
    row.set_kind(static_cast<v1::Row::Kind>(OneIn(8) ? Below(5) : 1 + Below(2)));
    const uint32_t count = OneIn(6) ? Below(400) : Below(12);
    for (uint32_t i = 0; i < count; ++i) {
      row.add_tokens(OneIn(200) ? static_cast<int32_t>(random_())
                                : static_cast<int32_t>(Below(kTestVocab)));
    }
    row.set_n_tokens(OneIn(15) ? Number(500) : count);
    if (OneIn(6)) {
      row.set_from_device(true);
      if (!OneIn(3)) row.clear_tokens();
      if (!OneIn(3)) row.set_n_tokens(1);
    }
    row.set_position(OneIn(2) ? positions_[row.seq_uid() % 8] : Number(300));
    const uint32_t pages = Below(3);
    for (uint32_t i = 0; i < pages; ++i) row.add_new_pages(Page());
    row.set_sample(OneIn(2));
    row.set_want_logprob(OneIn(2));
    if (OneIn(5)) {
      for (uint32_t i = 0; i < row.n_tokens() % 512; ++i) {
        row.add_logprob_targets(static_cast<int32_t>(Number(kTestVocab)));
      }
    }
    row.set_draft(OneIn(3));
    row.set_mtp_next(static_cast<int32_t>(Number(kTestVocab)));
    if (OneIn(3)) row.set_draft_chain(Number(5));
    if (OneIn(40)) row.set_draft_tokens(Number(4));
    if (OneIn(40)) row.add_exports()->set_snapshot(Number(4));
    return row;
  }

  std::mt19937 random_{GetParam()};
  uint32_t positions_[8] = {};
  uint32_t page_ = 0;
};

TEST_P(ExecutorRandomTest, RandomMessagesGetAnswers) {
  int executed = 0;
  int refused = 0;
  for (int i = 0; i < 3000; ++i) {
    if (OneIn(3)) {
      v1::SequenceOpen open = OpenMessage(Number(8), Number(5));
      open.mutable_sampling()->set_temperature(OneIn(2) ? 0.0f : 1.0f);
      if (OneIn(10)) open.mutable_sampling()->set_top_k(static_cast<int32_t>(random_()));
      open.set_first_padding_id(OneIn(4) ? static_cast<int32_t>(random_()) : 0);
      if (executor_->Open(open).ok()) positions_[open.seq_uid() % 8] = 0;
    }
    if (OneIn(9)) {
      v1::SequenceClose close;
      close.set_seq_uid(Number(8));
      (void)executor_->Close(close);
    }
    v1::StepPlan plan;
    plan.set_epoch(OneIn(30) ? Number(5) : kTestEpoch);
    plan.set_step_id(OneIn(30) ? Number(50) : step_ + 1);
    const uint32_t rows = 1 + Below(2);
    for (uint32_t r = 0; r < rows; ++r) *plan.add_rows() = RandomRow();
    const absl::StatusOr<v1::StepResult> result = executor_->Execute(plan);
    ASSERT_TRUE(result.ok()) << result.status();
    if (!result->error().empty()) {
      ++refused;
      EXPECT_EQ(result->rows_size(), 0);
    } else if (plan.step_id() == step_ + 1) {
      ++step_;
      ++executed;
      ASSERT_EQ(result->rows_size(), plan.rows_size());
      for (const v1::Row& row : plan.rows()) {
        positions_[row.seq_uid() % 8] = row.position() + row.n_tokens();
      }
    }
    ASSERT_LE(executor_->slots_used(), kTestSlots);
    ASSERT_LE(executor_->pages_used(), kTestPages);
  }
  // Both kinds must occur, or nothing is tested.
  std::printf("  %d plans executed, %d refused\n", executed, refused);
  EXPECT_GT(executed, 100);
  EXPECT_GT(refused, 500);
  // When everything is closed, everything is free.
  v1::SequenceClose close;
  for (uint64_t uid = 0; uid < 8; ++uid) {
    close.set_seq_uid(uid);
    (void)executor_->Close(close);
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, ExecutorRandomTest, testing::Values(1u, 2u, 3u, 4u));

}  // namespace
}  // namespace quartet
