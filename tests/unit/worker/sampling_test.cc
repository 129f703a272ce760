// What shapes a draw, through the executor: penalties by all that was said, wherever it was said;
// bans that end, budgets, masks and the likeliest ids.

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "tests/unit/worker/executor_fixture.h"

namespace quartet {
namespace {

using testing::Contains;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

constexpr int kPromptTokens = 40;
constexpr int kTokens = 24;

class SamplingTest : public ExecutorFixture {
 protected:
  static v1::SequenceOpen OpenWith(uint64_t uid, const std::function<void(v1::SequenceOpen&)>& set,
                                   uint32_t prompt_tokens = kPromptTokens) {
    v1::SequenceOpen open = OpenMessage(uid, 0);
    open.set_prompt_tokens(prompt_tokens);
    set(open);
    return open;
  }
  void MustOpen(const v1::SequenceOpen& open) {
    const absl::Status status = executor_->Open(open);
    ASSERT_TRUE(status.ok()) << status;
  }

  // The first rows are `rows`, the last of which samples; then windows: step i verifies drafts[i %
  // size], -1 is a plain decode row. Exactly kTokens tokens; the sequence is closed.
  std::vector<int32_t> Generate(uint64_t uid, std::vector<v1::Row> rows,
                                const std::vector<int>& drafts) {
    const auto chain = [&](size_t step) {
      return static_cast<uint32_t>(std::max(0, drafts[step % drafts.size()]));
    };
    for (size_t i = 0; i + 1 < rows.size(); ++i) {
      v1::Row row = Drafting(rows[i], 0);
      row.set_mtp_next(rows[i + 1].tokens(0));
      Run({row});
    }
    v1::Row row = rows.back();
    const uint32_t end = row.position() + row.n_tokens();
    std::vector<int32_t> out;
    for (size_t step = 0;; ++step) {
      const v1::StepResult result = Run({Drafting(Sampled(row), chain(step))});
      const v1::RowResult& r = result.rows(0);
      EXPECT_EQ(r.error(), "");
      if (r.tokens_size() == 0) break;
      out.insert(out.end(), r.tokens().begin(), r.tokens().end());
      if (static_cast<int>(out.size()) >= kTokens) break;
      const auto position = static_cast<uint32_t>(end + out.size() - 1);
      const bool window = drafts[step % drafts.size()] >= 0;
      row = window ? Verify(uid, 0, position, chain(step)) : FromDevice(uid, 0, position);
    }
    Close(uid);
    out.resize(std::min<size_t>(out.size(), kTokens));
    return out;
  }
  std::vector<int32_t> Generate(const std::function<void(v1::SequenceOpen&)>& set,
                                const std::vector<int>& drafts) {
    const uint64_t uid = next_uid_++;
    MustOpen(OpenWith(uid, set));
    return Generate(uid, {Row(uid, 0, 0, Text(kPromptTokens), {1})}, drafts);
  }

  uint64_t next_uid_ = 1;
};

void Penalise(v1::SequenceOpen& open) {
  open.set_first_padding_id(60);
  open.mutable_sampling()->set_presence_penalty(0.25f);
  open.mutable_sampling()->set_frequency_penalty(0.5f);
  open.mutable_sampling()->set_repetition_penalty(1.3f);
  (*open.mutable_sampling()->mutable_logit_bias())[7] = 0.5f;
}
void Sample(v1::SequenceOpen& open) {
  open.mutable_sampling()->set_temperature(0.7f);
  open.mutable_sampling()->set_seed(5);
  open.set_acceptance(v1::ACCEPTANCE_COUPLED);
}

TEST_F(SamplingTest, GreedyTokensAreThoseOfLogitsPenalisedByHand) {
  const std::vector<int32_t> prompt = Text(kPromptTokens);
  MustOpen(OpenWith(1, Penalise));
  std::vector<int32_t> output;
  v1::Row row = Row(1, 0, 0, prompt, {1});
  int changed = 0;
  for (int i = 0; i < kTokens; ++i) {
    const int32_t drawn = Run({Sampled(row)}).rows(0).tokens(0);
    std::vector<float> logits;
    const int last = static_cast<int>(row.n_tokens()) - 1;
    ASSERT_TRUE(rank_->model
                    ->Logits(rank_->model->activations().h, {&last, 1},
                             [&](int, std::span<const float> all) {
                               logits.assign(all.begin(), all.begin() + 60);
                             })
                    .ok());
    const auto raw = std::ranges::max_element(logits) - logits.begin();
    logits[7] += 0.5f;
    for (int32_t id = 0; id < 60; ++id) {
      const auto times = std::ranges::count(output, id);
      if (times > 0 || std::ranges::count(prompt, id) > 0) {
        logits[id] = logits[id] > 0 ? logits[id] / 1.3f : logits[id] * 1.3f;
      }
      if (times > 0) logits[id] -= 0.25f + 0.5f * static_cast<float>(times);
    }
    EXPECT_EQ(drawn, std::ranges::max_element(logits) - logits.begin()) << "token " << i;
    changed += drawn != raw;
    output.push_back(drawn);
    row = FromDevice(1, 0, kPromptTokens + i);
  }
  Close(1);
  EXPECT_GT(changed, 5) << "the penalties did something";
}

TEST_F(SamplingTest, DraftsDoNotChangeThePenalisedText) {
  const std::function<void(v1::SequenceOpen&)> greedy = Penalise;
  const auto seeded = [](v1::SequenceOpen& open) {
    Penalise(open);
    Sample(open);
  };
  for (const auto& set : {greedy, std::function<void(v1::SequenceOpen&)>(seeded)}) {
    const std::vector<int32_t> plain = Generate(set, {-1});
    ASSERT_EQ(plain.size(), kTokens);
    EXPECT_EQ(Generate(set, {3}), plain);
    EXPECT_EQ(Generate(set, {1, 0, 2}), plain);
  }
}

TEST_F(SamplingTest, AcceptedDraftsCountAndRejectedOnesDoNot) {
  // Few ids, so that drafts are often right, and a penalty that one more count always shows in.
  const auto set = [](v1::SequenceOpen& open) {
    open.set_first_padding_id(3);
    open.mutable_sampling()->set_frequency_penalty(0.02f);
  };
  const uint64_t before = executor_->stats().accepted_tokens;
  const std::vector<int32_t> plain = Generate(set, {-1});
  EXPECT_EQ(Generate(set, {3}), plain);
  EXPECT_GT(executor_->stats().accepted_tokens, before + 3);
}

TEST_F(SamplingTest, WhatASlotHeldBeforeDoesNotCount) {
  const std::vector<int32_t> first = Generate(Penalise, {-1});
  Generate([](v1::SequenceOpen& open) { open.mutable_sampling()->set_presence_penalty(-2); }, {-1});
  EXPECT_EQ(Generate(Penalise, {-1}), first);
}

TEST_F(SamplingTest, ChunksOfAPromptCountAsTheWhole) {
  const std::vector<int32_t> prompt = Text(kPromptTokens);
  const std::vector<int32_t> whole = Generate(Penalise, {-1});
  const uint64_t uid = next_uid_++;
  MustOpen(OpenWith(uid, Penalise));
  v1::Row second = Row(uid, 0, 17, {prompt.begin() + 17, prompt.end()});
  second.set_kind(v1::Row::KIND_PREFILL);
  EXPECT_EQ(
      Generate(uid, {Row(uid, 0, 0, {prompt.begin(), prompt.begin() + 17}, {1}), second}, {2}),
      whole);
}

TEST_F(SamplingTest, OutputThatIsComputedAgainIsOutput) {
  // As after a preemption: the prompt and what was said come back as one prefill.
  const std::vector<int32_t> whole = Generate(Penalise, {-1});
  std::vector<int32_t> text = Text(kPromptTokens);
  text.insert(text.end(), whole.begin(), whole.begin() + 10);
  const uint64_t uid = next_uid_++;
  MustOpen(OpenWith(uid, Penalise));
  const std::vector<int32_t> rest = Generate(uid, {Row(uid, 0, 0, text, {1})}, {-1});
  EXPECT_EQ(std::vector<int32_t>(rest.begin(), rest.begin() + kTokens - 10),
            std::vector<int32_t>(whole.begin() + 10, whole.end()));
}

TEST_F(SamplingTest, BehindACachedPrefixItsTokensCount) {
  const std::vector<int32_t> prompt = Text(300);
  const auto resume = [&](v1::SequenceOpen& open) {
    open.mutable_resume()->set_snapshot(0);
    open.mutable_resume()->set_n_tokens(256);
    open.mutable_resume()->add_pages(1);
  };
  const uint64_t uid = next_uid_++;
  MustOpen(OpenWith(uid, Penalise, 300));
  v1::Row tail = Row(uid, 0, 256, {prompt.begin() + 256, prompt.end()}, {2});
  tail.set_kind(v1::Row::KIND_PREFILL);
  const std::vector<int32_t> whole = Generate(
      uid, {Exporting(Row(uid, 0, 0, {prompt.begin(), prompt.begin() + 256}, {1}), 0), tail}, {-1});

  for (const bool given : {false, true}) {
    const uint64_t again = next_uid_++;
    v1::SequenceOpen open = OpenWith(again, Penalise, 300);
    resume(open);
    if (!given) {
      EXPECT_THAT(std::string(executor_->Open(open).message()),
                  HasSubstr("with the ids of 0; its sampling looks at all of them"));
      Close(again);
      continue;
    }
    open.mutable_resume()->mutable_tokens()->Add(prompt.begin(), prompt.begin() + 256);
    MustOpen(open);
    tail.set_seq_uid(again);
    EXPECT_EQ(Generate(again, {tail}, {3}), whole);
  }
}

TEST_F(SamplingTest, EndIdsAreBannedUntilMinTokens) {
  const auto few = [](v1::SequenceOpen& open) {
    open.set_first_padding_id(4);
    for (int32_t id : {0, 1, 2}) open.add_end_ids(id);
  };
  const std::vector<int32_t> free = Generate(few, {-1});
  EXPECT_THAT(free, Contains(Not(3)));
  for (const std::vector<int>& drafts : {std::vector<int>{-1}, std::vector<int>{3}}) {
    const std::vector<int32_t> late = Generate(
        [&](v1::SequenceOpen& open) {
          few(open);
          open.mutable_sampling()->set_min_tokens(9);
          open.mutable_sampling()->add_banned_ids(3);
          open.set_first_padding_id(5);
        },
        drafts);
    EXPECT_THAT(std::vector<int32_t>(late.begin(), late.begin() + 9), Each(4));
    EXPECT_THAT(std::vector<int32_t>(late.begin() + 9, late.end()), Each(Not(3)));
  }
}

TEST_F(SamplingTest, ABiasOfMinusAHundredBansAndOneOfAHundredForces) {
  const auto biased = [](int32_t id, float value) {
    return [=](v1::SequenceOpen& open) {
      open.set_first_padding_id(5);
      (*open.mutable_sampling()->mutable_logit_bias())[id] = value;
    };
  };
  EXPECT_THAT(Generate(biased(2, 100), {3}), Each(2));
  for (int32_t id = 0; id < 5; ++id) EXPECT_THAT(Generate(biased(id, -100), {2}), Each(Not(id)));
}

TEST_F(SamplingTest, ReasoningEndsWhenItsBudgetIsUsedUp) {
  // 3 ends it and 4 begins it; the model says neither by itself.
  const auto budget = [](uint32_t tokens, bool open_at_start) {
    return [=](v1::SequenceOpen& open) {
      open.set_first_padding_id(3);
      open.mutable_thinking()->set_max_tokens(tokens);
      open.mutable_thinking()->set_begin_id(4);
      open.mutable_thinking()->add_end_ids(3);
      open.mutable_thinking()->set_open(open_at_start);
    };
  };
  const std::vector<int32_t> free = Generate(budget(1000, true), {-1});
  EXPECT_THAT(free, Not(Contains(3)));
  EXPECT_EQ(Generate(budget(0, false), {3}), free);
  for (const uint32_t tokens : {0u, 1u, 2u, 3u, 10u}) {
    for (const std::vector<int>& drafts : {std::vector<int>{-1}, {3}, {2, 1}}) {
      // The closing token is banned for everybody else, here as a padding id.
      const auto set = [&](v1::SequenceOpen& open) {
        budget(tokens, true)(open);
        open.set_first_padding_id(4);
        (*open.mutable_sampling()->mutable_logit_bias())[3] = -100;
      };
      const std::vector<int32_t> text = Generate(set, drafts);
      EXPECT_EQ(std::vector<int32_t>(text.begin(), text.begin() + tokens),
                std::vector<int32_t>(free.begin(), free.begin() + tokens));
      EXPECT_EQ(text[tokens], 3);
      EXPECT_THAT(std::vector<int32_t>(text.begin() + tokens + 1, text.end()), Not(Contains(3)));
    }
  }
}

// Bit i of the mask is id i; the rest of the vocabulary is forbidden.
std::string Mask(uint64_t ids) {
  std::string mask(kTestVocab / 8, '\0');
  for (int byte = 0; byte < 8; ++byte) mask[byte] = static_cast<char>(ids >> (8 * byte));
  return mask;
}

TEST_F(SamplingTest, MasksSayWhatMayBeDrawnAtEachPlaceOfAWindow) {
  const auto set = [](v1::SequenceOpen& open) { open.set_first_padding_id(3); };
  MustOpen(OpenWith(1, set));
  v1::Row row = Drafting(Sampled(Row(1, 0, 0, Text(kPromptTokens), {1})), 3);
  row.add_allow_masks(Mask(0b010));
  v1::RowResult result = Run({row}).rows(0);
  EXPECT_THAT(result.tokens(), ElementsAre(1));
  const std::vector<int32_t> drafts(result.drafts().begin(), result.drafts().end());

  // The first place allows what was drafted, the second all but that.
  v1::Row window = Verify(1, 0, kPromptTokens, 3);
  window.add_allow_masks(Mask(uint64_t{1} << drafts[0]));
  window.add_allow_masks(Mask(0b111 & ~(uint64_t{1} << drafts[1])));
  window.add_allow_masks("");
  window.add_allow_masks(Mask(0b100));
  result = Run({Drafting(window, 3)}).rows(0);
  ASSERT_EQ(result.tokens_size(), 2);
  EXPECT_EQ(result.tokens(0), drafts[0]);
  EXPECT_NE(result.tokens(1), drafts[1]);

  v1::Row wrong = Verify(1, 0, kPromptTokens + 2, 3);
  wrong.add_allow_masks("");
  EXPECT_THAT(Refused(Plan({wrong})), HasSubstr("1 allow_masks for 4 draws"));
  wrong = Sampled(FromDevice(1, 0, kPromptTokens + 2));
  wrong.add_allow_masks("ab");
  EXPECT_THAT(Refused(Plan({wrong})), HasSubstr("an allow_mask has 2 bytes, expected none or 64"));
  Close(1);
}

TEST_F(SamplingTest, TheLikeliestIdsComeBesideDrawnTokensAndTargets) {
  const std::vector<int32_t> prompt = Text(kPromptTokens);
  MustOpen(OpenWith(1, Penalise));
  v1::Row row = Sampled(Row(1, 0, 0, prompt, {1}));
  row.set_top_logprobs(5);
  row.set_target_top_logprobs(20);
  for (int i = 1; i < kPromptTokens; ++i) row.add_logprob_targets(prompt[i]);
  row.add_logprob_targets(0);
  const v1::RowResult result = Run({row}).rows(0);
  Close(1);
  ASSERT_EQ(result.top().ids_size(), 5);
  ASSERT_EQ(result.target_top().ids_size(), 20 * kPromptTokens);
  EXPECT_TRUE(std::is_sorted(result.top().logprobs().rbegin(), result.top().logprobs().rend()));
  for (int i = 0; i < kPromptTokens; ++i) {
    double mass = 0;
    for (int j = 20 * i; j < 20 * (i + 1); ++j) {
      mass += std::exp(result.target_top().logprobs(j));
      if (result.target_top().ids(j) == row.logprob_targets(i)) {
        EXPECT_NEAR(result.target_top().logprobs(j), result.target_logprobs(i), 1e-5);
      }
    }
    EXPECT_LE(mass, 1.0 + 1e-5);
  }
  // The last target and the drawn token stand behind the same text.
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(result.top().ids(i), result.target_top().ids(20 * (kPromptTokens - 1) + i));
  }

  MustOpen(OpenWith(2, Penalise));
  row.set_seq_uid(2);
  row.set_top_logprobs(21);
  EXPECT_THAT(Refused(Plan({row})), HasSubstr("top_logprobs is 21, expected at most 20"));
  Close(2);
}

}  // namespace
}  // namespace quartet
