#ifndef QUARTET_SHARD_WORKER_MODEL_DECODE_PROBE_H_
#define QUARTET_SHARD_WORKER_MODEL_DECODE_PROBE_H_

#include <vector>

#include "absl/status/statusor.h"
#include "kernels/ops/backend.h"
#include "shard_worker/checkpoint/weights.h"

namespace quartet {

// The first 128 inputs by 128 outputs of a matrix' inner weights, row-major, as this backend's
// linear op decodes them: found by multiplying inputs whose transforms are unit vectors. A
// BlockDecoder (shard_worker/checkpoint/decode_check.h).
absl::StatusOr<std::vector<float>> DecodeBlock(ops::Backend& backend, const Exl3View& view);

}  // namespace quartet

#endif  // QUARTET_SHARD_WORKER_MODEL_DECODE_PROBE_H_
