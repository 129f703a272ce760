#ifndef QUARTET_SHARD_WORKER_EXECUTOR_DRAFT_SPOILER_H_
#define QUARTET_SHARD_WORKER_EXECUTOR_DRAFT_SPOILER_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/ops/sampling.h"

namespace quartet {

// For tests: makes some drafts wrong, so that few are accepted. Text must not change by it. Which
// ones depends on the seed and the position alone, so all ranks spoil the same.
struct DraftSpoiler {
  double rate = 0;  // share of the drafts that are spoiled, in [0, 1]
  int place = 0;    // which draft of a chain, from 1; 0 = any

  // "RATE" or "RATE@PLACE".
  static absl::StatusOr<DraftSpoiler> Parse(absl::string_view flag);

  // The draft, or another id that may be drawn. `position` is the draft's in its sequence, `chain`
  // its place in its chain, from 1.
  int32_t Spoil(const ops::SampleParams& sampling, int64_t vocab_size, int64_t position, int chain,
                int32_t draft) const;
};

}  // namespace quartet

#endif  // QUARTET_SHARD_WORKER_EXECUTOR_DRAFT_SPOILER_H_
