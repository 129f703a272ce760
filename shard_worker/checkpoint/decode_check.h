#ifndef QUARTET_SHARD_WORKER_CHECKPOINT_DECODE_CHECK_H_
#define QUARTET_SHARD_WORKER_CHECKPOINT_DECODE_CHECK_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "shard_worker/checkpoint/weights.h"

// A self-test for when weights are loaded. Trellis codes decode to plausible weights whatever goes
// wrong on the way, in a kernel, in a rearranged copy, in memory: nothing fails later, the answers
// are only bad. So a few blocks are decoded twice: by what the worker computes with, and from the
// bytes of the file by the definition of the format, one bit and one weight at a time, which shares
// no code with any kernel. What it cannot know is whether the file means what its markers say; that
// all of those agree is checked by ResolveWeights.

namespace quartet {

inline constexpr int64_t kDecodeBlock = 128;

// The inner matrix Q of `view`, its first 128 inputs by its first 128 outputs, row-major, as
// binary16 bits.
std::vector<uint16_t> DecodeBlockByDefinition(const Exl3View& view);

// The matrices that the self-test looks at: three, or all if there are fewer. The first of each
// width comes first, then the model's last one, then the one in its middle.
std::vector<const Exl3View*> ChooseForDecodeCheck(const ModelWeights& weights);

// The same block in the form that the worker computes with. That may leave out a weight's rounding
// to binary16 (exl3.md 7.6), so the two agree to that.
using BlockDecoder = std::function<absl::StatusOr<std::vector<float>>(const Exl3View&)>;

// DATA_LOSS: the two are not the same; names file, tensor and the first difference. A model without
// EXL3 matrices passes.
absl::Status CheckDecoding(const ModelWeights& weights, const BlockDecoder& decode);

}  // namespace quartet

#endif  // QUARTET_SHARD_WORKER_CHECKPOINT_DECODE_CHECK_H_
