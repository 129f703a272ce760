#ifndef QUARTET_SHARD_WORKER_EXECUTOR_PLAN_CHECK_H_
#define QUARTET_SHARD_WORKER_EXECUTOR_PLAN_CHECK_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/quartet/v1/worker.pb.h"
#include "shard_worker/executor/sequence_table.h"

namespace quartet {

// Snapshots that the rows of a plan take before their ends, at most.
inline constexpr int kMaxInnerExports = 8;

// A row whose sequence is known and whose numbers are within bounds. Points into the plan and the
// table.
struct CheckedRow {
  const v1::Row* row = nullptr;
  Sequence* sequence = nullptr;
};

// The same of a commit.
struct CheckedCommit {
  const v1::Commit* commit = nullptr;
  Sequence* sequence = nullptr;
};

struct CheckedPlan {
  std::vector<CheckedCommit> commits;
  std::vector<CheckedRow> rows;
};

struct PlanLimits {
  int pages = 0;
  int snapshots = 0;
  int max_rows = 0;           // tokens of one step
  int64_t max_model_len = 0;  // tokens of one sequence
  int max_draft_tokens = 0;   // 0 = there is no draft layer, and there are no windows
  int64_t vocab_size = 0;
};

// Checks a whole plan before anything of it is done; nothing is changed. The message names the
// sequence, the field, what was found and what would be right. Every rank holds the same table and
// gets the same plan, so all ranks refuse the same plans.
absl::StatusOr<CheckedPlan> CheckPlan(const v1::StepPlan& plan, SequenceTable& table,
                                      const PlanLimits& limits);

}  // namespace quartet

#endif  // QUARTET_SHARD_WORKER_EXECUTOR_PLAN_CHECK_H_
