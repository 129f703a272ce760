#ifndef QUARTET_SHARD_WORKER_EXECUTOR_EXECUTOR_H_
#define QUARTET_SHARD_WORKER_EXECUTOR_EXECUTOR_H_

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/ops/batch.h"
#include "kernels/ops/sampling.h"
#include "proto/quartet/v1/worker.pb.h"
#include "shard_worker/executor/plan_check.h"
#include "shard_worker/executor/sequence_table.h"
#include "shard_worker/memory/pools.h"
#include "shard_worker/model/model.h"

namespace quartet {

// Drafts that may be chained after a row, and rows that may have to be taken back: sizes the rings
// of open pools.
inline constexpr int kMaxDraftTokens = 3;

struct ExecutorOptions {
  uint64_t epoch = 0;
  int rank = 0;
  int64_t max_model_len = 0;  // tokens
};

// What has been done so far. Written by the compute thread.
struct ExecutorStats {
  uint64_t steps = 0;
  uint64_t refused_plans = 0;
  uint64_t prefill_tokens = 0;
  uint64_t decode_tokens = 0;
  uint64_t draft_tokens = 0;
  uint64_t failed_rows = 0;
};

// Executes the plans of one epoch on one rank: keeps the sequences, runs the model over a plan's
// rows, draws tokens, and reports. Holds no policy: everything that a plan asks for and that is
// possible is done, everything else is refused as a whole with a message, and then nothing has
// changed. All ranks of the group make the same calls in the same order. One thread.
class Executor {
 public:
  // Keeps references; all must outlive the executor.
  Executor(const ExecutorOptions& options, Model& model, Pools& pools);

  // An error says why the sequence cannot run; its rows will fail with the same reason until it is
  // closed, the sequences beside it run.
  absl::Status Open(const v1::SequenceOpen& open);
  absl::Status Close(const v1::SequenceClose& close);

  // A plan that is refused comes back as a result with `error`; it may be sent again, repaired,
  // under the same step id. The last executed step id again returns the stored result. An error
  // status means that the ranks no longer agree on anything (a collective failed in the middle of a
  // step): the executor answers every later plan with an error.
  absl::StatusOr<v1::StepResult> Execute(const v1::StepPlan& plan);

  // Hashes of what this rank holds for a sequence.
  v1::DumpReply Dump(const v1::Dump& request);

  const ExecutorStats& stats() const { return stats_; }
  int slots_used() const { return table_.slots_used(); }
  int pages_used() const { return table_.pages_used(); }

 private:
  // One row of a step that runs.
  struct Live {
    CheckedRow checked;
    int row_begin = 0;
    int rows = 0;
    int32_t drawn = -1;
    v1::RowResult* result = nullptr;
  };

  absl::Status CheckSnapshot(const v1::SequenceOpen& open) const;
  absl::Status Run(const v1::StepPlan& plan, std::span<const CheckedRow> rows,
                   v1::StepResult& result);
  absl::Status ScoreTargets(std::vector<Live>& live);
  absl::Status Draw(std::vector<Live>& live);
  static void Fail(Live& entry, int64_t position);
  absl::Status Draft(std::vector<Live>& live);
  void Export(std::span<const Live> live);
  v1::StepResult Refused(const v1::StepPlan& plan, const absl::Status& status);

  const ExecutorOptions options_;
  Model& model_;
  Pools& pools_;
  const PlanLimits limits_;
  SequenceTable table_;
  std::vector<int64_t> snapshot_tokens_;  // [snapshots], what each was exported at; 0 = never
  uint64_t last_step_ = 0;
  v1::StepResult last_result_;
  absl::Status broken_;  // why no plan can be executed any more
  ExecutorStats stats_;

  // Reused from step to step.
  std::vector<int32_t> ids_;
  std::vector<ops::Segment> segments_;
  std::vector<int> logit_rows_;
  std::vector<ops::SampleParams> draws_;
  std::vector<ops::SampleResult> drawn_;
};

}  // namespace quartet

#endif  // QUARTET_SHARD_WORKER_EXECUTOR_EXECUTOR_H_
