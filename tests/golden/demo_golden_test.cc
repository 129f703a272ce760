// The trained demo checkpoints against the outputs of a float32 reference: greedy texts token for
// token, their drafts, and log-probabilities of held-out documents, all through the executor.

#include <gtest/gtest.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "shard_worker/checkpoint/json_text.h"
#include "shard_worker/executor/executor.h"
#include "tests/unit/worker/golden_file.h"
#include "tests/unit/worker/model_rank.h"

namespace quartet {
namespace {

constexpr int kMaxModelLen = 4096;
constexpr int kBatchedTokens = 512;
constexpr int kDrafts = 3;

struct Case {
  std::string name;
  std::vector<int32_t> input;
  std::vector<int32_t> output;
  std::vector<std::vector<int32_t>> drafts;  // after each token of the output but the last
};

std::vector<int32_t> Ints(const boost::json::value& array) {
  std::vector<int32_t> out;
  for (const boost::json::value& v : array.as_array()) {
    out.push_back(static_cast<int32_t>(v.as_int64()));
  }
  return out;
}

// The text cases; those with an image need the vision tower.
std::vector<Case> TextCases(const std::string& file) {
  const std::string path = absl::StrCat(QUARTET_SOURCE_DIR, "/tests/data/demo/", file);
  const boost::json::value root = ParseJsonText(ReadTextFile(path, 16 << 20).value(), path).value();
  std::vector<Case> cases;
  for (const boost::json::value& item : root.at("cases").as_array()) {
    const boost::json::object& object = item.as_object();
    if (object.contains("image") && !object.at("image").is_null()) continue;
    Case c;
    c.name =
        absl::StrCat(object.at("id").as_int64(), " ", std::string(object.at("skill").as_string()));
    c.input = Ints(object.at("input_ids"));
    c.output = Ints(object.at("output_ids"));
    for (const boost::json::value& d : object.at("drafts").as_array()) c.drafts.push_back(Ints(d));
    cases.push_back(std::move(c));
  }
  return cases;
}

// Drives one executor with one sequence at a time, as a coordinator would.
class Driver {
 public:
  Driver(const std::string& model, KvDtype kv_dtype)
      : rank_(Options(model, kv_dtype), MakeSingleRank()),
        executor_({.epoch = 1, .rank = 0, .max_model_len = kMaxModelLen}, *rank_.model,
                  *rank_.pools, rank_.backend->sampler()) {}

  void Open() {
    v1::SequenceOpen open;
    open.set_seq_uid(++uid_);
    open.set_slot(uid_ % 2);
    EXPECT_TRUE(executor_.Open(open).ok());
    position_ = 0;
    pages_ = 0;
  }
  void Close() {
    v1::SequenceClose close;
    close.set_seq_uid(uid_);
    EXPECT_TRUE(executor_.Close(close).ok());
  }

  // A row of the open sequence at its next position, with the pages that it needs.
  v1::Row NextRow(const std::vector<int32_t>& tokens) {
    v1::Row row;
    row.set_seq_uid(uid_);
    row.set_slot(uid_ % 2);
    row.set_kind(tokens.size() > 1 ? v1::Row::KIND_PREFILL : v1::Row::KIND_DECODE);
    row.mutable_tokens()->Add(tokens.begin(), tokens.end());
    row.set_n_tokens(tokens.size());
    row.set_position(position_);
    position_ += static_cast<int>(tokens.size());
    while (pages_ * kTokensPerPage < position_ + kDrafts) row.add_new_pages(pages_++);
    return row;
  }

  v1::RowResult Step(const v1::Row& row) {
    v1::StepPlan plan;
    plan.set_epoch(1);
    plan.set_step_id(++step_);
    *plan.add_rows() = row;
    const absl::StatusOr<v1::StepResult> result = executor_.Execute(plan);
    EXPECT_TRUE(result.ok()) << result.status();
    if (!result.ok() || result->rows_size() != 1) {
      ADD_FAILURE() << (result.ok() ? result->error() : "");
      return {};
    }
    EXPECT_EQ(result->rows(0).error(), "");
    return result->rows(0);
  }

 private:
  static ModelRankOptions Options(const std::string& model, KvDtype kv_dtype) {
    ModelRankOptions options;
    options.dir = absl::StrCat(QUARTET_SOURCE_DIR, "/models/", model);
    options.threads = 2;
    options.pools = {.slots = 2, .pages = 32, .draft_tokens = kDrafts, .kv_dtype = kv_dtype};
    options.limits = {.max_rows = kBatchedTokens, .max_context = kMaxModelLen + kDrafts};
    return options;
  }

  ModelRank rank_;
  Executor executor_;
  uint64_t uid_ = 0;
  uint64_t step_ = 0;
  int position_ = 0;
  int pages_ = 0;
};

struct DemoCheckpoint {
  const char* model;
  const char* prompts;
  const char* logprobs;
};

class DemoGoldenTest : public testing::TestWithParam<DemoCheckpoint> {};

TEST_P(DemoGoldenTest, GreedyTextsAreTheReferencesTokenForToken) {
  Driver driver(GetParam().model, KvDtype::kFp32);
  const std::vector<Case> cases = TextCases(GetParam().prompts);
  ASSERT_EQ(cases.size(), 38u);
  int drafts = 0;
  int wrong_drafts = 0;
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    driver.Open();
    std::vector<int32_t> output;
    std::vector<std::vector<int32_t>> chains;
    std::vector<int32_t> next = c.input;
    while (output.size() < c.output.size()) {
      const int count = std::min<int>(kBatchedTokens, static_cast<int>(next.size()));
      v1::Row row = driver.NextRow({next.begin(), next.begin() + count});
      const bool last = count == static_cast<int>(next.size());
      row.set_sample(last);
      row.set_draft(true);
      row.set_draft_chain(last ? kDrafts : 0);
      if (!last) row.set_mtp_next(next[count]);
      next.erase(next.begin(), next.begin() + count);
      const v1::RowResult result = driver.Step(row);
      if (!last) continue;
      ASSERT_EQ(result.tokens_size(), 1);
      output.push_back(result.tokens(0));
      chains.emplace_back(result.drafts().begin(), result.drafts().end());
      next = {result.tokens(0)};
    }
    driver.Close();
    EXPECT_EQ(output, c.output);
    for (size_t i = 0; i < c.drafts.size(); ++i) {
      ++drafts;
      wrong_drafts += chains[i] != c.drafts[i];
    }
  }
  std::printf("  %d draft chains, %d differ from the reference\n", drafts, wrong_drafts);
  // Drafts have no margins in the reference: the few near ties may fall either way.
  EXPECT_LE(wrong_drafts, drafts / 200);
}

TEST_P(DemoGoldenTest, HeldOutLogProbs) {
  const GoldenFile golden(QUARTET_SOURCE_DIR "/tests/data/demo/heldout_logprobs.safetensors");
  const std::vector<int32_t> ids = golden.I32("input_ids");
  const std::vector<int32_t> offsets = golden.I32("doc_offsets");
  const std::vector<int32_t> assistant = golden.I32("assistant_mask");
  const std::vector<float> want = golden.F32(GetParam().logprobs);
  for (const KvDtype kv_dtype : {KvDtype::kFp32, KvDtype::kFp16}) {
    SCOPED_TRACE(std::string(ToString(kv_dtype)));
    Driver driver(GetParam().model, kv_dtype);
    double worst = 0;
    double worst_assistant = 0;
    double sum = 0;
    int count = 0;
    for (size_t doc = 0; doc + 1 < offsets.size(); ++doc) {
      driver.Open();
      // The last token of a document has no successor to be asked for.
      const int end = offsets[doc + 1] - 1;
      for (int begin = offsets[doc]; begin < end; begin += kBatchedTokens) {
        const int stop = std::min(end, begin + kBatchedTokens);
        v1::Row row = driver.NextRow({ids.begin() + begin, ids.begin() + stop});
        row.mutable_logprob_targets()->Add(ids.begin() + begin + 1, ids.begin() + stop + 1);
        const v1::RowResult result = driver.Step(row);
        ASSERT_EQ(result.target_logprobs_size(), stop - begin);
        for (int i = begin; i < stop; ++i) {
          const double diff =
              std::fabs(static_cast<double>(result.target_logprobs(i - begin)) - want[i]);
          ASSERT_FALSE(std::isnan(diff));
          worst = std::max(worst, diff);
          // The mask marks tokens; position i predicts token i + 1.
          if (assistant[i + 1] != 0) worst_assistant = std::max(worst_assistant, diff);
          sum += diff;
          ++count;
        }
      }
      driver.Close();
    }
    std::printf("  %s, %s latents: %d tokens, largest difference %.2e, assistant %.2e, mean %.2e\n",
                GetParam().model, std::string(ToString(kv_dtype)).c_str(), count, worst,
                worst_assistant, sum / count);
    EXPECT_EQ(count, 4051);
    EXPECT_LE(worst_assistant, 1e-4);
    if (kv_dtype == KvDtype::kFp32) {
      EXPECT_LE(worst, 1e-4);
    } else {
      EXPECT_LE(sum / count, 1e-5);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, DemoGoldenTest,
    testing::Values(DemoCheckpoint{"quartet-demo-exl3", "prompts.json", "logprob.exl3"},
                    DemoCheckpoint{"quartet-demo-exl3-std", "prompts_std.json",
                                   "logprob.exl3_std"}),
    [](const auto& info) {
      return std::string(info.param.model) == "quartet-demo-exl3" ? "Stacked" : "PerExpert";
    });

}  // namespace
}  // namespace quartet
