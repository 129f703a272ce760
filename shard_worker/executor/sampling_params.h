#ifndef QUARTET_SHARD_WORKER_EXECUTOR_SAMPLING_PARAMS_H_
#define QUARTET_SHARD_WORKER_EXECUTOR_SAMPLING_PARAMS_H_

#include "absl/status/statusor.h"
#include "kernels/ops/sampling.h"
#include "proto/quartet/v1/worker.pb.h"

namespace quartet {

// How a sequence's tokens are drawn; `position` is left at 0. Refused, naming the field and what
// was found: what this worker cannot do (penalties, logit_bias, min_tokens) and values out of
// range.
absl::StatusOr<ops::SampleParams> ToSampleParams(const v1::SequenceOpen& open, int64_t vocab_size);

}  // namespace quartet

#endif  // QUARTET_SHARD_WORKER_EXECUTOR_SAMPLING_PARAMS_H_
