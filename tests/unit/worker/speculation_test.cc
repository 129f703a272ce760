// Windows of drafts through the executor: the text is that of plain decoding, and so is everything
// that a sequence leaves behind. Only a few ids may be drawn, so that drafts of the miniature
// model, which knows nothing, are right often enough.

#include <gmock/gmock.h>

#include <cmath>

#include "tests/unit/worker/executor_fixture.h"

namespace quartet {
namespace {

using testing::HasSubstr;

struct Sampling {
  float temperature = 0;
  uint64_t seed = 0;
  v1::Acceptance acceptance = v1::ACCEPTANCE_UNSPECIFIED;
  int32_t ids = 3;  // that may be drawn
};

std::vector<int32_t> Part(const std::vector<int32_t>& ids, size_t begin, size_t end) {
  return {ids.begin() + static_cast<std::ptrdiff_t>(begin),
          ids.begin() + static_cast<std::ptrdiff_t>(end)};
}

class SpeculationTest : public ExecutorFixture {
 protected:
  void OpenSampled(uint64_t uid, uint32_t slot, const Sampling& sampling) {
    v1::SequenceOpen open = OpenMessage(uid, slot);
    open.mutable_sampling()->set_temperature(sampling.temperature);
    open.mutable_sampling()->set_seed(sampling.seed);
    open.set_acceptance(sampling.acceptance);
    open.set_first_padding_id(sampling.ids);
    const absl::Status status = executor_->Open(open);
    ASSERT_TRUE(status.ok()) << status;
  }

  // A prompt, then windows: step i verifies drafts[i % size] of them; -1 is a plain decode row. The
  // sequence stays open. At least `count` tokens are drawn.
  std::vector<int32_t> Generate(uint64_t uid, uint32_t slot, const std::vector<int32_t>& prompt,
                                const std::vector<uint32_t>& pages, int count,
                                const std::vector<int>& drafts) {
    const auto chain = [&](size_t step) {
      return static_cast<uint32_t>(std::max(0, drafts[step % drafts.size()]));
    };
    std::vector<int32_t> out;
    size_t step = 0;
    v1::Row row = Row(uid, slot, 0, prompt, pages);
    while (true) {
      const v1::StepResult result = Run({Drafting(Sampled(row), chain(step))});
      const v1::RowResult& r = result.rows(0);
      EXPECT_EQ(r.error(), "");
      EXPECT_EQ(r.logprobs_size(), r.tokens_size());
      EXPECT_LE(r.tokens_size(),
                row.kind() == v1::Row::KIND_VERIFY ? static_cast<int>(row.n_tokens()) : 1);
      EXPECT_EQ(r.drafts_size(), static_cast<int>(chain(step)));
      out.insert(out.end(), r.tokens().begin(), r.tokens().end());
      if (static_cast<int>(out.size()) >= count || r.tokens_size() == 0) return out;
      const auto position = static_cast<uint32_t>(prompt.size() + out.size() - 1);
      const int k = drafts[step++ % drafts.size()];
      row = k < 0 ? FromDevice(uid, slot, position)
                  : Verify(uid, slot, position, static_cast<uint32_t>(k));
    }
  }

  v1::DumpReply DumpOf(uint64_t uid) {
    v1::Dump request;
    request.set_seq_uid(uid);
    return executor_->Dump(request);
  }
  static void ExpectSameStates(const v1::DumpReply& a, const v1::DumpReply& b) {
    EXPECT_EQ(a.tokens(), b.tokens());
    EXPECT_EQ(a.pending_tokens(), b.pending_tokens());
    ASSERT_EQ(a.state_hashes_size(), 16);
    for (const auto& [part, hash] : a.state_hashes()) {
      EXPECT_EQ(b.state_hashes().at(part), hash) << part;
    }
  }

  // The latent of the draft layer at a position, from the page that holds it.
  std::vector<float> DraftLatent(int page, int position) {
    const ops::KvLayer kv = rank_->pools->kv(static_cast<int>(rank_->config.layers));
    const auto* row = reinterpret_cast<const float*>(
        kv.data + page * kv.page_stride + kv.latent_offset +
        position % kTokensPerPage * rank_->pools->latent_row_bytes());
    return rank_->Fetch(row, rank_->config.kv_lora_rank);
  }
};

struct TextCase {
  const char* name;
  Sampling sampling;
  double spoiled;
};

class SpeculatedTextTest : public SpeculationTest, public testing::WithParamInterface<TextCase> {};

TEST_P(SpeculatedTextTest, IsThatOfPlainDecodingWithItsStates) {
  const TextCase& c = GetParam();
  const std::vector<int32_t> prompt = Text(237, 4);  // so that decoding fills a page
  uint64_t accepted = 0, tested = 0;
  for (const std::vector<int>& drafts :
       {std::vector<int>{1}, {2}, {3}, {0}, {3, -1, 1, 0, -1, -1, 2}}) {
    NewEpoch({.rate = c.spoiled});
    OpenSampled(1, 0, c.sampling);
    const std::vector<int32_t> text = Generate(1, 0, prompt, {0, 1}, 40, drafts);
    accepted += executor_->stats().accepted_tokens;
    tested += executor_->stats().draft_tokens;
    Run({}, {CommitOf(1)});
    OpenSampled(2, 1, c.sampling);
    const std::vector<int32_t> plain =
        Generate(2, 1, prompt, {2, 3}, static_cast<int>(text.size()), {-1});
    EXPECT_EQ(text, plain);
    ExpectSameStates(DumpOf(1), DumpOf(2));
  }
  // Both must occur, or nothing is tested.
  EXPECT_GT(accepted, 10u) << "of " << tested;
  EXPECT_LT(accepted + 10, tested);
}

constexpr Sampling kCoupled = {
    .temperature = 1.5f, .seed = 77, .acceptance = v1::ACCEPTANCE_COUPLED};

INSTANTIATE_TEST_SUITE_P(
    Texts, SpeculatedTextTest,
    testing::Values(TextCase{"Greedy", {}, 0}, TextCase{"GreedySpoiled10", {}, 0.1},
                    TextCase{"GreedySpoiled50", {}, 0.5}, TextCase{"GreedySpoiled90", {}, 0.9},
                    TextCase{"Coupled", kCoupled, 0}, TextCase{"CoupledSpoiled10", kCoupled, 0.1},
                    TextCase{"CoupledSpoiled50", kCoupled, 0.5},
                    TextCase{"CoupledSpoiled90", kCoupled, 0.9}),
    [](const auto& info) { return std::string(info.param.name); });

TEST_F(SpeculationTest, RejectionGivesTokensWithTheLogProbsOfTheTarget) {
  constexpr Sampling kRejection = {.temperature = 1.0f, .seed = 3};
  const std::vector<int32_t> prompt = Text(30, 5);
  OpenSampled(1, 0, kRejection);
  std::vector<int32_t> text = prompt;
  std::vector<float> logprobs;
  v1::Row row = Row(1, 0, 0, prompt, {0});
  uint64_t longest = 0;
  while (text.size() < 80) {
    const v1::StepResult result = Run({Drafting(Sampled(row), 3)});
    const v1::RowResult& r = result.rows(0);
    ASSERT_GT(r.tokens_size(), 0);
    ASSERT_EQ(r.logprobs_size(), r.tokens_size());
    longest = std::max<uint64_t>(longest, r.tokens_size());
    text.insert(text.end(), r.tokens().begin(), r.tokens().end());
    logprobs.insert(logprobs.end(), r.logprobs().begin(), r.logprobs().end());
    row = Verify(1, 0, static_cast<uint32_t>(text.size() - 1), 3);
  }
  EXPECT_GT(longest, 1u);
  for (size_t i = prompt.size(); i < text.size(); ++i) EXPECT_LT(text[i], 3);
  OpenSampled(2, 1, kRejection);
  v1::Row asked = Row(2, 1, 0, Part(text, 0, text.size() - 1), {1});
  asked.mutable_logprob_targets()->Add(text.begin() + 1, text.end());
  const v1::StepResult scored = Run({asked});
  for (size_t i = 0; i < logprobs.size(); ++i) {
    EXPECT_EQ(scored.rows(0).target_logprobs(static_cast<int>(prompt.size() - 1 + i)), logprobs[i]);
  }
}

TEST_F(SpeculationTest, ASharedStepGivesEverySequenceWhatItGetsAlone) {
  const std::vector<int32_t> a = Text(40, 1), b = Text(200, 2);
  OpenSampled(1, 0, {});
  const std::vector<int32_t> alone_a = Generate(1, 0, a, {0}, 24, {-1});
  OpenSampled(2, 1, kCoupled);
  const std::vector<int32_t> alone_b = Generate(2, 1, b, {1}, 8, {-1});
  NewEpoch({.rate = 0.3});
  // a speculates while b comes in by chunks and then speculates too.
  OpenSampled(1, 3, {});
  OpenSampled(2, 2, kCoupled);
  std::vector<int32_t> got_a, got_b;
  v1::Row row_a = Row(1, 3, 0, a, {5});
  uint32_t absorbed_b = 0;
  while (got_b.size() < 8) {
    v1::Row row_b = absorbed_b < b.size()
                        ? Row(2, 2, absorbed_b, Part(b, absorbed_b, absorbed_b + 50), {})
                        : Verify(2, 2, static_cast<uint32_t>(b.size() + got_b.size() - 1), 2);
    if (absorbed_b == 0) row_b.add_new_pages(6);
    if (absorbed_b < b.size()) {
      absorbed_b += 50;
      row_b.set_sample(absorbed_b == b.size());
      row_b.set_mtp_next(absorbed_b < b.size() ? b[absorbed_b] : 0);
    }
    const v1::StepResult result = Run(
        {Drafting(std::move(row_b), absorbed_b < b.size() ? 0 : 2), Drafting(Sampled(row_a), 3)});
    for (const int32_t token : result.rows(0).tokens()) got_b.push_back(token);
    for (const int32_t token : result.rows(1).tokens()) got_a.push_back(token);
    row_a = Verify(1, 3, static_cast<uint32_t>(a.size() + got_a.size() - 1), 3);
  }
  ASSERT_GE(got_a.size(), 5u);
  const size_t count_a = std::min(got_a.size(), alone_a.size());
  EXPECT_EQ(Part(got_a, 0, count_a), Part(alone_a, 0, count_a));
  EXPECT_EQ(Part(got_b, 0, 8), alone_b);
}

TEST_F(SpeculationTest, DraftsThatAreMissingOrForgottenAreNotAccepted) {
  const std::vector<int32_t> prompt = Text(40, 6);
  OpenSampled(1, 0, {});
  const std::vector<int32_t> plain = Generate(1, 0, prompt, {0}, 8, {-1});
  // No drafts were made: a window of three rows can only give one token.
  OpenSampled(2, 1, {});
  std::vector<int32_t> text = Generate(2, 1, prompt, {1}, 1, {0});
  for (int i = 0; i < 3; ++i) {
    const auto position = static_cast<uint32_t>(prompt.size() + text.size() - 1);
    const v1::StepResult result = Run({Verify(2, 1, position, 2)});
    ASSERT_EQ(result.rows(0).tokens_size(), 1);
    text.push_back(result.rows(0).tokens(0));
  }
  // Three were made, none is asked for; the step after finds none.
  const auto position = static_cast<uint32_t>(prompt.size() + text.size() - 1);
  EXPECT_EQ(Run({Drafting(Verify(2, 1, position, 0), 3)}).rows(0).drafts_size(), 3);
  EXPECT_EQ(Run({Verify(2, 1, position + 1, 0)}).rows(0).tokens_size(), 1);
  EXPECT_EQ(Run({Verify(2, 1, position + 2, 3)}).rows(0).tokens_size(), 1);
  EXPECT_EQ(text, Part(plain, 0, text.size()));
}

TEST_F(SpeculationTest, AStateExportedInDecodingIsThatOfAPrefill) {
  for (int length = 250; length <= 256; ++length) {
    const std::vector<int32_t> prompt = Text(length, 7);
    NewEpoch();
    OpenSampled(1, 0, {});
    std::vector<int32_t> text = prompt;
    v1::Row row = Row(1, 0, 0, prompt, {0, 1});
    bool exported = false;
    std::vector<v1::Commit> commits;
    while (text.size() < 268) {
      const v1::StepResult result = Run({Drafting(Sampled(row), 3)}, commits);
      text.insert(text.end(), result.rows(0).tokens().begin(), result.rows(0).tokens().end());
      const auto position = static_cast<uint32_t>(text.size() - 1);
      const uint32_t pending = DumpOf(1).pending_tokens();
      commits.clear();
      if (position >= 256 && position - pending < 256) {
        commits.push_back(CommitOf(1, 256, 0));
        exported = true;
        // Also by a plan of its own, every other time.
        if (length % 2 == 0) {
          Run({}, commits);
          commits.clear();
        }
      }
      row = Verify(1, 0, position, 3);
    }
    // A prompt of 256 tokens passes there in its prefill.
    ASSERT_EQ(exported, length < 256);
    if (!exported) continue;
    Open(2, 1);
    Run({Exporting(Row(2, 1, 0, Part(text, 0, 256), {4}), 1)});
    ASSERT_EQ(Resume(3, 2, 0, 256, {0}), "") << length;
    ASSERT_EQ(Resume(4, 3, 1, 256, {4}), "") << length;
    ExpectSameStates(DumpOf(3), DumpOf(4));
    EXPECT_EQ(rank_->Fetch(rank_->pools->hidden(2), rank_->config.hidden),
              rank_->Fetch(rank_->pools->hidden(3), rank_->config.hidden));
    // And the sequence goes on from there as if nothing had been taken.
    Run({}, {CommitOf(1)});
    NewEpoch();
    OpenSampled(1, 0, {});
    EXPECT_EQ(Generate(1, 0, prompt, {0, 1}, static_cast<int>(text.size()) - length, {-1}),
              Part(text, length, text.size()));
  }
}

TEST_F(SpeculationTest, ACommitThatDoesNotReachItsSnapshotLeavesItAsItWas) {
  Open(1, 0);
  Run({Exporting(Row(1, 0, 0, Text(256, 8), {0}), 0)});
  OpenSampled(2, 1, {});
  const std::vector<int32_t> text = Generate(2, 1, Text(250, 9), {1, 2}, 4, {3});
  Run({}, {CommitOf(2, 512, 0)});
  EXPECT_EQ(DumpOf(2).pending_tokens(), 0u);
  EXPECT_EQ(Resume(3, 2, 0, 256, {0}), "");
  // What is committed already is not passed again.
  Run({}, {CommitOf(2, 256, 0)});
  Close(3);
  EXPECT_EQ(Resume(4, 2, 0, 256, {0}), "");
}

TEST_F(SpeculationTest, ARowFromTheWorkerStandsWhereItsSequenceDoes) {
  const std::vector<int32_t> prompt = Text(40, 10);
  OpenSampled(1, 0, {});
  OpenSampled(2, 1, {});
  Run({Drafting(Sampled(Row(1, 0, 0, prompt, {0})), 2),
       Drafting(Sampled(Row(2, 1, 0, prompt, {1})), 2)});
  // The plan was made before it was known how many drafts the step before accepted.
  const v1::StepResult result =
      Run({Drafting(Verify(1, 0, 40, 2), 2), Drafting(Verify(2, 1, 44, 2), 2)});
  EXPECT_EQ(TokensOf(result.rows(0)), TokensOf(result.rows(1)));
  ExpectSameStates(DumpOf(1), DumpOf(2));
  EXPECT_THAT(Refused(Plan({Verify(1, 0, 40, 2)})), HasSubstr("position is 40, but 4"));
}

TEST_F(SpeculationTest, ANanInAWindowFailsItsRowOnly) {
  const std::vector<int32_t> prompt = Text(40, 11);
  OpenSampled(1, 0, {});
  const std::vector<int32_t> plain = Generate(1, 0, prompt, {0}, 12, {-1});
  Close(1);
  OpenSampled(2, 0, {});
  OpenSampled(3, 1, {});
  std::vector<int32_t> text = {Run({Drafting(Sampled(Row(2, 0, 0, prompt, {0})), 3),
                                    Drafting(Sampled(Row(3, 1, 0, prompt, {1})), 3)})
                                   .rows(1)
                                   .tokens(0)};
  rank_->pools->kda_state(0).recurrent[0] = std::nanf("");  // of slot 0
  v1::StepResult result = Run({Drafting(Verify(2, 0, 40, 3), 3), Drafting(Verify(3, 1, 40, 3), 3)});
  EXPECT_THAT(result.rows(0).error(), HasSubstr("sequence 2: the logits at position 40"));
  EXPECT_EQ(result.rows(0).tokens_size(), 0);
  EXPECT_EQ(result.rows(0).logprobs_size(), 0);
  EXPECT_EQ(result.rows(0).drafts_size(), 0);
  for (const int32_t token : result.rows(1).tokens()) text.push_back(token);
  // A commit of what failed does nothing, beside one that works.
  result = Run({Verify(2, 0, 41, 3),
                Verify(3, 1, static_cast<uint32_t>(prompt.size() + text.size() - 1), 3)},
               {CommitOf(2), CommitOf(3)});
  EXPECT_THAT(result.rows(0).error(), HasSubstr("position 40"));
  for (const int32_t token : result.rows(1).tokens()) text.push_back(token);
  EXPECT_EQ(text, Part(plain, 0, text.size()));
}

TEST_F(SpeculationTest, BehindACachedPrefixTheDraftLayersLastEntryIsMadeAnew) {
  const std::vector<int32_t> text = Text(300, 12);
  // The whole text at once.
  Open(1, 0);
  v1::Row whole = Drafting(Sampled(Row(1, 0, 0, text, {0, 1})), 0);
  Run({whole});
  const std::vector<float> want = DraftLatent(0, 255);
  // A prefix that another token followed.
  Open(2, 1);
  v1::Row prefix = Exporting(Row(2, 1, 0, Part(text, 0, 256), {2}), 0);
  prefix.set_draft(true);
  prefix.set_mtp_next(text[256] + 1);
  Run({prefix});
  EXPECT_NE(DraftLatent(2, 255), want);
  const std::vector<float> before = DraftLatent(2, 254);
  ASSERT_EQ(Resume(3, 2, 0, 256, {2}), "");
  Run({Drafting(Sampled(Row(3, 2, 256, Part(text, 256, 300), {3})), 3)});
  EXPECT_EQ(DraftLatent(2, 255), want);
  EXPECT_EQ(DraftLatent(2, 254), before);
}

}  // namespace
}  // namespace quartet
