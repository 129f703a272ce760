// Plans that nobody in his right mind sends: whatever they say, the executor answers with a result
// or an error and keeps its books.

#include <cstdio>
#include <map>
#include <random>
#include <set>

#include "tests/unit/worker/executor_fixture.h"

namespace quartet {
namespace {

class ExecutorRandomTest : public ExecutorFixture, public testing::WithParamInterface<uint32_t> {
 protected:
  // What a right plan would know of a sequence.
  struct Book {
    uint32_t slot = 0;
    uint32_t position = 0;
    std::vector<uint32_t> pages;
    bool drawn = false;
  };

  uint32_t Below(uint32_t n) { return static_cast<uint32_t>(random_() % n); }
  bool OneIn(uint32_t n) { return Below(n) == 0; }
  // Near zero, at an edge, or anything.
  uint32_t Odd() {
    constexpr uint32_t kEdges[] = {0, 1, 255, 256, 320, 511, 512, 1024, 0x7fffffff, 0xffffffff};
    return OneIn(2) ? kEdges[Below(10)] : OneIn(2) ? Below(20) : static_cast<uint32_t>(random_());
  }

  uint32_t FreePage(std::set<uint32_t>* used) {
    for (uint32_t page = 0; page < kTestPages; ++page) {
      if (used->insert(page).second) return page;
    }
    return kTestPages;
  }

  // Allows the first ids, so that something is left whatever else is banned.
  std::string Mask() {
    std::string mask(kTestVocab / 8, '\xff');
    for (size_t byte = 4; byte < mask.size(); ++byte) mask[byte] = static_cast<char>(random_());
    return mask;
  }

  // A right row for a sequence that is open.
  v1::Row RightRow(uint64_t uid, const Book& book, std::set<uint32_t>* used_pages) {
    v1::Row row;
    row.set_seq_uid(uid);
    row.set_slot(book.slot);
    row.set_position(book.position);
    row.set_kind(OneIn(2) ? v1::Row::KIND_PREFILL : v1::Row::KIND_DECODE);
    row.set_sample(OneIn(2));
    if (book.drawn && OneIn(2)) {
      row.set_from_device(true);
      row.set_n_tokens(1);
      if (OneIn(2)) {
        row.set_kind(v1::Row::KIND_VERIFY);
        row.set_sample(true);
        row.set_draft_tokens(Below(kMaxDraftTokens + 1));
        row.set_n_tokens(1 + row.draft_tokens());
      }
    } else {
      const uint32_t count = 1 + Below(OneIn(8) ? 120 : 8);
      for (uint32_t i = 0; i < count; ++i) row.add_tokens(static_cast<int32_t>(Below(kTestVocab)));
      row.set_n_tokens(count);
    }
    row.set_want_logprob(OneIn(2));
    if (OneIn(5) && row.kind() != v1::Row::KIND_VERIFY) {
      for (uint32_t i = 0; i < row.n_tokens(); ++i) {
        row.add_logprob_targets(static_cast<int32_t>(Below(kTestVocab)));
      }
    }
    if (OneIn(3)) row.set_top_logprobs(Below(21));
    if (OneIn(3)) row.set_target_top_logprobs(Below(21));
    if (OneIn(4) && row.sample()) {
      const uint32_t draws = row.kind() == v1::Row::KIND_VERIFY ? row.n_tokens() : 1;
      for (uint32_t i = 0; i < draws; ++i) row.add_allow_masks(OneIn(3) ? "" : Mask());
    }
    if (OneIn(3)) {
      row.set_draft(true);
      row.set_mtp_next(static_cast<int32_t>(Below(kTestVocab)));
      row.set_draft_chain(Below(4));
    }
    const uint32_t end = row.position() + row.n_tokens() + row.draft_chain();
    for (size_t have = book.pages.size(); have * kTokensPerPage < end; ++have) {
      row.add_new_pages(FreePage(used_pages));
    }
    return row;
  }

  void Damage(v1::Row* row) {
    switch (Below(18)) {
      case 15:
        return row->set_top_logprobs(Odd());
      case 16:
        return row->set_target_top_logprobs(Odd());
      case 17:
        return row->add_allow_masks(std::string(Below(70), '\1'));
      case 0:
        return row->set_seq_uid(Odd());
      case 1:
        return row->set_slot(Odd());
      case 2:
        return row->set_kind(static_cast<v1::Row::Kind>(Odd()));
      case 3:
        return row->set_n_tokens(Odd());
      case 4:
        return row->add_tokens(static_cast<int32_t>(Odd()));
      case 5:
        return row->clear_tokens();
      case 6:
        return row->set_from_device(!row->from_device());
      case 7:
        return row->set_position(Odd());
      case 8:
        return row->add_new_pages(Odd());
      case 9:
        return row->clear_new_pages();
      case 10:
        return row->add_logprob_targets(static_cast<int32_t>(Odd()));
      case 11:
        return row->set_draft(!row->draft());
      case 12:
        return row->set_draft_chain(Odd());
      case 13:
        return row->set_mtp_next(static_cast<int32_t>(Odd()));
      default:
        return row->set_draft_tokens(Odd());
    }
  }

  std::mt19937 random_{GetParam()};
  std::map<uint64_t, Book> books_;  // of the sequences that run
  std::map<uint64_t, int> refused_pages_;
};

TEST_P(ExecutorRandomTest, RandomMessagesGetAnswers) {
  int executed = 0;
  int refused = 0;
  uint64_t next_uid = 1;
  for (int i = 0; i < 500; ++i) {
    if (OneIn(3)) {
      v1::SequenceOpen open = OpenMessage(OneIn(10) ? Odd() : next_uid++, Below(kTestSlots));
      if (OneIn(10)) open.set_slot(Odd());
      open.mutable_sampling()->set_temperature(OneIn(2) ? 0.0f : 1.0f);
      if (OneIn(10)) open.mutable_sampling()->set_top_k(static_cast<int32_t>(Odd()));
      if (OneIn(10)) open.set_first_padding_id(static_cast<int32_t>(Odd()));
      open.set_prompt_tokens(Below(100));
      if (OneIn(3)) open.mutable_sampling()->set_frequency_penalty(0.5f);
      if (OneIn(5)) open.mutable_sampling()->set_repetition_penalty(1.5f);
      if (OneIn(5)) open.mutable_sampling()->set_min_tokens(Below(20));
      if (OneIn(5)) open.add_end_ids(static_cast<int32_t>(OneIn(4) ? Odd() : 300 + Below(200)));
      if (OneIn(5)) (*open.mutable_sampling()->mutable_logit_bias())[Odd() % 600] = 1;
      if (OneIn(5)) {
        open.mutable_thinking()->set_max_tokens(Below(9));
        open.mutable_thinking()->add_end_ids(static_cast<int32_t>(OneIn(9) ? Odd() : 0));
        open.mutable_thinking()->set_open(true);
      }
      if (executor_->Open(open).ok()) books_[open.seq_uid()] = {.slot = open.slot()};
    }
    if (OneIn(12) && !books_.empty()) {
      v1::SequenceClose close;
      close.set_seq_uid(OneIn(5) ? Odd() : books_.begin()->first);
      if (executor_->Close(close).ok()) {
        books_.erase(close.seq_uid());
        refused_pages_.erase(close.seq_uid());
      }
    }
    v1::StepPlan plan;
    plan.set_epoch(OneIn(30) ? Odd() : kTestEpoch);
    plan.set_step_id(OneIn(30) ? Odd() : step_ + 1);
    std::set<uint32_t> used_pages;
    for (const auto& [uid, book] : books_) used_pages.insert(book.pages.begin(), book.pages.end());
    for (const auto& [uid, book] : books_) {
      if (OneIn(2)) *plan.add_rows() = RightRow(uid, book, &used_pages);
    }
    for (const auto& [uid, book] : books_) {
      if (!OneIn(4)) continue;
      v1::Commit* commit = plan.add_commits();
      commit->set_seq_uid(OneIn(20) ? Odd() : uid);
      if (OneIn(3)) commit->set_export_at(OneIn(5) ? Odd() : book.position / 256 * 256);
      if (OneIn(10)) commit->set_snapshot(Odd());
    }
    if (plan.rows_size() > 0 && OneIn(2)) {
      Damage(plan.mutable_rows(static_cast<int>(Below(plan.rows_size()))));
    }
    const absl::StatusOr<v1::StepResult> result = executor_->Execute(plan);
    ASSERT_TRUE(result.ok()) << result.status();
    if (!result->error().empty()) {
      ++refused;
      EXPECT_EQ(result->rows_size(), 0);
    } else if (plan.step_id() == step_ + 1) {
      ++step_;
      ++executed;
      ASSERT_EQ(result->rows_size(), plan.rows_size());
      for (int r = 0; r < plan.rows_size(); ++r) {
        const v1::Row& row = plan.rows(r);
        if (!books_.contains(row.seq_uid())) {
          // The damage hit the uid of a sequence that was refused when it was opened.
          EXPECT_NE(result->rows(r).error(), "");
          refused_pages_[row.seq_uid()] += row.new_pages_size();
          continue;
        }
        EXPECT_EQ(result->rows(r).error(), "");
        Book& book = books_[row.seq_uid()];
        book.pages.insert(book.pages.end(), row.new_pages().begin(), row.new_pages().end());
        const int tokens = result->rows(r).tokens_size();
        const bool window = row.kind() == v1::Row::KIND_VERIFY;
        book.position += window ? tokens : row.n_tokens();
        book.drawn |= tokens > 0;
        EXPECT_GE(tokens, row.sample() ? 1 : 0);
        EXPECT_LE(tokens, window ? static_cast<int>(row.n_tokens()) : row.sample() ? 1 : 0);
        EXPECT_EQ(result->rows(r).drafts_size(), static_cast<int>(row.draft_chain()));
        const int top = row.want_logprob() ? static_cast<int>(row.top_logprobs()) : 0;
        EXPECT_EQ(result->rows(r).top().ids_size(), top * tokens);
        EXPECT_EQ(result->rows(r).target_top().ids_size(),
                  static_cast<int>(row.target_top_logprobs()) * row.logprob_targets_size());
      }
    }
    size_t pages = 0;
    for (const auto& [uid, count] : refused_pages_) pages += count;
    for (const auto& [uid, book] : books_) pages += book.pages.size();
    ASSERT_EQ(executor_->slots_used(), static_cast<int>(books_.size()));
    ASSERT_EQ(executor_->pages_used(), static_cast<int>(pages));
  }
  std::printf("  %d plans executed, %d refused\n", executed, refused);
  // Both kinds must occur, or nothing is tested.
  EXPECT_GT(executed, 200);
  EXPECT_GT(refused, 50);
}

INSTANTIATE_TEST_SUITE_P(Seeds, ExecutorRandomTest, testing::Values(1u, 2u, 3u, 4u));

}  // namespace
}  // namespace quartet
