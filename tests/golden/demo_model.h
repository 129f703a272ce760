#ifndef QUARTET_TESTS_GOLDEN_DEMO_MODEL_H_
#define QUARTET_TESTS_GOLDEN_DEMO_MODEL_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <boost/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "shard_worker/checkpoint/json_text.h"
#include "shard_worker/executor/executor.h"
#include "tests/unit/worker/model_rank.h"

namespace quartet {

inline constexpr int kDemoModelLen = 4096;
inline constexpr int kDemoBatchedTokens = 512;
inline constexpr int kDemoDrafts = 3;

inline ModelRankOptions DemoModel(const std::string& name) {
  ModelRankOptions options;
  options.dir = absl::StrCat(QUARTET_SOURCE_DIR, "/models/", name);
  options.threads = 2;
  options.pools = {
      .slots = 2, .pages = 32, .draft_tokens = kDemoDrafts, .kv_dtype = KvDtype::kFp32};
  options.limits = {.max_rows = kDemoBatchedTokens, .max_context = kDemoModelLen + kDemoDrafts};
  return options;
}

// A text of the reference.
struct DemoCase {
  std::string name;
  std::vector<int32_t> input;
  std::vector<int32_t> output;
  std::vector<std::vector<int32_t>> drafts;  // after each token of the output but the last
};

inline std::vector<int32_t> JsonInts(const boost::json::value& array) {
  std::vector<int32_t> out;
  for (const boost::json::value& v : array.as_array()) {
    out.push_back(static_cast<int32_t>(v.as_int64()));
  }
  return out;
}

inline boost::json::array ReadDemoCases(const std::string& file) {
  const std::string path = absl::StrCat(QUARTET_SOURCE_DIR, "/tests/data/demo/", file);
  return ParseJsonText(ReadTextFile(path, 16 << 20).value(), path).value().at("cases").as_array();
}

// The text cases, which are the same for both checkpoints, with the drafts in `drafts_file`. Cases
// with an image need the vision tower.
inline std::vector<DemoCase> DemoTextCases(const std::string& drafts_file) {
  const boost::json::array texts = ReadDemoCases("prompts.json");
  const boost::json::array drafts = ReadDemoCases(drafts_file);
  std::vector<DemoCase> cases;
  for (size_t i = 0; i < texts.size(); ++i) {
    const boost::json::object& object = texts[i].as_object();
    if (object.contains("image") && !object.at("image").is_null()) continue;
    DemoCase c;
    c.name =
        absl::StrCat(object.at("id").as_int64(), " ", std::string(object.at("skill").as_string()));
    c.input = JsonInts(object.at("input_ids"));
    c.output = JsonInts(object.at("output_ids"));
    EXPECT_EQ(drafts.at(i).at("id"), object.at("id"));
    for (const boost::json::value& d : drafts.at(i).at("drafts").as_array()) {
      c.drafts.push_back(JsonInts(d));
    }
    cases.push_back(std::move(c));
  }
  return cases;
}

// Drives one rank's executor with one sequence at a time, as a coordinator would.
class DemoDriver {
 public:
  explicit DemoDriver(ModelRank& rank, const DraftSpoiler& spoiler = {})
      : rank_(rank.collectives->rank()),
        executor_({.epoch = 1, .rank = rank_, .max_model_len = kDemoModelLen, .spoiler = spoiler},
                  *rank.model, *rank.pools) {}

  void Open(v1::SequenceOpen open = {}) {
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

  // A row of the open sequence at its next position, with the pages that it needs. Without tokens:
  // the one drawn last.
  v1::Row NextRow(const std::vector<int32_t>& tokens) {
    v1::Row row;
    row.set_seq_uid(uid_);
    row.set_slot(uid_ % 2);
    row.set_kind(tokens.size() > 1 ? v1::Row::KIND_PREFILL : v1::Row::KIND_DECODE);
    row.mutable_tokens()->Add(tokens.begin(), tokens.end());
    row.set_from_device(tokens.empty());
    row.set_n_tokens(std::max<size_t>(1, tokens.size()));
    row.set_position(position_);
    position_ += static_cast<int>(row.n_tokens());
    while (pages_ * kTokensPerPage < position_ + kDemoDrafts) row.add_new_pages(pages_++);
    return row;
  }

  // The token drawn last and so many of the drafts made behind it; drafts are made anew.
  v1::Row NextWindow(int drafts) {
    position_ = absorbed();
    v1::Row row = NextRow({});
    row.set_kind(v1::Row::KIND_VERIFY);
    row.set_draft_tokens(drafts);
    row.set_n_tokens(1 + drafts);
    row.set_sample(true);
    row.set_draft(true);
    row.set_draft_chain(drafts);
    while (pages_ * kTokensPerPage < position_ + 2 * kDemoDrafts) row.add_new_pages(pages_++);
    return row;
  }

  // The row's result; empty on ranks other than 0.
  v1::RowResult Step(const v1::Row& row) {
    const int before = absorbed();
    v1::StepPlan plan;
    plan.set_epoch(1);
    plan.set_step_id(++step_);
    *plan.add_rows() = row;
    const absl::StatusOr<v1::StepResult> result = executor_.Execute(plan);
    EXPECT_TRUE(result.ok()) << result.status();
    if (!result.ok()) return {};
    EXPECT_EQ(result->error(), "");
    hashes_.push_back(result->agreement_hash());
    drawn_ = row.kind() == v1::Row::KIND_VERIFY ? absorbed() - before : row.sample();
    if (rank_ != 0) return {};
    EXPECT_EQ(result->rows_size(), 1);
    if (result->rows_size() != 1) return {};
    EXPECT_EQ(result->rows(0).error(), "");
    return result->rows(0);
  }

  const std::vector<uint64_t>& agreement_hashes() const { return hashes_; }

  // By the step before; on every rank.
  int tokens_drawn() const { return drawn_; }

 private:
  int absorbed() {
    v1::Dump where;
    where.set_seq_uid(uid_);
    return static_cast<int>(executor_.Dump(where).tokens());
  }

  const int rank_;
  Executor executor_;
  uint64_t uid_ = 0;
  uint64_t step_ = 0;
  int position_ = 0;
  int pages_ = 0;
  int drawn_ = 0;
  std::vector<uint64_t> hashes_;
};

}  // namespace quartet

#endif  // QUARTET_TESTS_GOLDEN_DEMO_MODEL_H_
