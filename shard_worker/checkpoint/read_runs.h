#ifndef QUARTET_SHARD_WORKER_CHECKPOINT_READ_RUNS_H_
#define QUARTET_SHARD_WORKER_CHECKPOINT_READ_RUNS_H_

#include <cstdint>
#include <string_view>
#include <vector>

#include "shard_worker/checkpoint/weights.h"

// Which bytes of a checkpoint's files one rank reads while it loads, in the order of loading.

namespace quartet {

// A stretch of one file.
struct ReadRun {
  std::string_view file;  // path, owned by the checkpoint
  int64_t offset = 0;
  int64_t bytes = 0;
  const std::byte* mapped = nullptr;  // where `offset` lies in memory

  int64_t end() const { return offset + bytes; }
};

// What is loaded in one go: a layer, the draft layer, or the ends.
using ReadPart = std::vector<ReadRun>;

// Stretches of a file that lie closer than this are read as one. A rank's slice of a matrix is
// often strided; what lies between belongs to other ranks, which read it from the same page cache,
// so each byte comes from the disk once per host. Wide enough for a rank's rows of one expert in a
// stack.
inline constexpr int64_t kMaxReadGapBytes = int64_t{4} << 20;

// Joins the runs of a part that touch, overlap or lie within `max_gap` of each other in one file.
// The result is sorted by file and offset.
ReadPart JoinRuns(ReadPart runs, int64_t max_gap);

// The runs of each part, in the order in which LoadModelOps reports progress: the layers, the draft
// layer if there is one, the ends.
std::vector<ReadPart> ListReadRuns(const ModelWeights& weights, int64_t max_gap = kMaxReadGapBytes);

}  // namespace quartet

#endif  // QUARTET_SHARD_WORKER_CHECKPOINT_READ_RUNS_H_
