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
#include "shard_worker/executor/copies.h"
#include "shard_worker/executor/draft_spoiler.h"
#include "shard_worker/executor/plan_check.h"
#include "shard_worker/executor/sequence_table.h"
#include "shard_worker/memory/pools.h"
#include "shard_worker/model/model.h"

namespace quartet {

// Drafts that may be chained after a row, and that a window may hold: sizes all rings.
inline constexpr int kMaxDraftTokens = 3;

struct ExecutorOptions {
  uint64_t epoch = 0;
  int rank = 0;
  int64_t max_model_len = 0;  // tokens
  DraftSpoiler spoiler;       // for tests
};

// What has been done so far. Written by the compute thread.
struct ExecutorStats {
  uint64_t steps = 0;
  uint64_t refused_plans = 0;
  uint64_t prefill_tokens = 0;
  uint64_t decode_tokens = 0;
  uint64_t draft_tokens = 0;
  uint64_t accepted_tokens = 0;  // drafts
  uint64_t failed_rows = 0;
};

// Executes the plans of one epoch on one rank: keeps the sequences, runs the model over a plan's
// rows, draws tokens, and reports. Holds no policy: everything that a plan asks for and that is
// possible is done, everything else is refused as a whole with a message, and then nothing has
// changed. All ranks of the group make the same calls in the same order. One thread.
//
// Speculation: a window's rows run without touching the live state; what is accepted of them is
// `pending` until a commit or the sequence's next row takes it in. Drafts for the next window are
// made by the draft layer in the same step and stay here.
class Executor {
 public:
  // Keeps references; all must outlive the executor.
  Executor(const ExecutorOptions& options, Model& model, Pools& pools,
           const LowerTiers& tiers = {});

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
  CopyStats copy_stats() const { return copies_.stats(); }
  int slots_used() const { return table_.slots_used(); }
  int pages_used() const { return table_.pages_used(); }

 private:
  // One row of a step that runs.
  struct Live {
    CheckedRow checked;
    int row_begin = 0;
    int rows = 0;
    int segment = 0;  // the first of its own
    int kept = 0;     // the first of them, which stay part of the sequence
    int drafts = 0;   // that its window tests
    bool at_prefix_end = false;
    int32_t drawn = -1;  // last
    v1::RowResult* result = nullptr;

    bool window() const { return checked.row->kind() == v1::Row::KIND_VERIFY; }
  };

  absl::Status CheckSnapshot(const v1::SequenceOpen& open) const;
  absl::Status Commit(std::span<const CheckedCommit> commits);
  absl::Status Run(std::span<const CheckedRow> rows, v1::StepResult& result);
  Live Begin(const CheckedRow& checked, v1::RowResult* result);
  absl::Status Say(Sequence& sequence, int64_t position, std::span<const int32_t> tokens);
  absl::Status ScoreTargets(std::vector<Live>& live);
  absl::Status Draw(std::vector<Live>& live);
  void AddDraws(const Live& entry);
  void Accept(Live& entry, std::span<const ops::SampleResult> drawn);
  static void Fail(Live& entry, int64_t position);
  absl::Status Draft(std::vector<Live>& live);
  absl::Status RemakePrefixEntry(const Live& entry, const ops::Segment& segment);
  void AddDraft(Live& entry, int32_t draft);
  void AddSegments(const Live& entry);
  void Export(const Live& entry);
  v1::StepResult Refused(const v1::StepPlan& plan, const absl::Status& status);

  const ExecutorOptions options_;
  Model& model_;
  Pools& pools_;
  const PlanLimits limits_;
  SequenceTable table_;
  std::vector<int64_t> snapshot_tokens_;  // [snapshots], what each was exported at; 0 = never
  TierCopies copies_;
  uint64_t last_step_ = 0;
  v1::StepResult last_result_;
  absl::Status broken_;  // why no plan can be executed any more
  ExecutorStats stats_;

  // Reused from step to step.
  std::vector<int32_t> ids_;
  std::vector<ops::Segment> segments_;
  std::vector<int> inner_exports_;  // snapshots, of the segments that others go on from
  std::vector<int> logit_rows_;
  std::vector<ops::SampleParams> draws_;
  std::vector<ops::SampleResult> drawn_;
  std::vector<uint32_t> masks_;  // of the step's rows
};

}  // namespace quartet

#endif  // QUARTET_SHARD_WORKER_EXECUTOR_EXECUTOR_H_
