#ifndef QUARTET_SHARD_WORKER_CHECKPOINT_SYNTHETIC_H_
#define QUARTET_SHARD_WORKER_CHECKPOINT_SYNTHETIC_H_

#include <memory>

#include "absl/status/statusor.h"
#include "shard_worker/checkpoint/model_config.h"
#include "shard_worker/checkpoint/safetensors.h"

namespace quartet {

// A checkpoint of the configured model without files: every tensor has its right name, dtype and
// shape, and random values that keep the variance of what passes through it, so that speed and
// memory can be measured at full size. Dense weights are FP16; routed experts are EXL3, stacked by
// layer, with the bits, codebook and tile order that the configuration states (which it must).
// Tensors of one kind share their bytes: the host needs a few GiB at full size, not the
// checkpoint's size. The same configuration gives the same values.
absl::StatusOr<std::unique_ptr<Checkpoint>> MakeSyntheticCheckpoint(const ModelConfig& config,
                                                                    const std::string& dir);

}  // namespace quartet

#endif  // QUARTET_SHARD_WORKER_CHECKPOINT_SYNTHETIC_H_
