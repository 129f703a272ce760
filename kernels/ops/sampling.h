#ifndef QUARTET_KERNELS_OPS_SAMPLING_H_
#define QUARTET_KERNELS_OPS_SAMPLING_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "kernels/ops/batch.h"

namespace quartet::ops {

// How one row's token is drawn. Order: bans (ids from first_banned on, and `banned`), temperature,
// top_k, top_p, min_p, draw.
//   greedy (temperature == 0): the largest logit, lower id on a tie.
//   else: argmax over the kept set of logit / max(temperature, 0.01) + Gumbel noise, noise =
//   -log(-log(u)), u from Philox4x32-10 with key = seed and counter = (id, position, choice, 0), so
//   that the draw depends on nothing else.
// top_k keeps the k largest (ties by lower id); top_p the smallest leading set, by descending
// probability, whose mass reaches p; min_p those with probability >= min_p times the largest. Each
// cut sees the distribution renormalised after the one before it.
//
// A draft d that was made greedily is tested by rejection sampling, so that the token has the same
// distribution as without a draft. With p the distribution over the kept set, after all cuts: d is
// accepted, and is the token, where u < p(d), u from Philox with counter (0, position, choice, 1);
// else the draw is made as above from the kept set without d. A draft that is not kept has p(d) =
// 0. With temperature 0 the draft plays no part: the token is the largest logit, accepted if it is
// d. So either way the token equals d exactly where d is accepted. Leaving `draft` at -1 and
// comparing the token with d is the coupled form: what is drawn then does not depend on the draft
// at all.
struct SampleParams {
  float temperature = 0.0f;
  float top_p = 1.0f;
  int32_t top_k = 0;
  float min_p = 0.0f;
  uint64_t seed = 0;
  uint32_t choice = 0;
  uint32_t position = 0;     // of the token to be drawn
  int32_t first_banned = 0;  // ids >= this are never drawn; 0 = none
  std::span<const int32_t> banned;
  int32_t draft = -1;  // tested by rejection; -1 = none
};

struct SampleResult {
  int32_t token = -1;
  float logprob = 0.0f;  // log-softmax of the raw logits at `token`
  bool finite = true;    // false: the row holds a NaN or no finite logit; token is -1
};

class Sampler {
 public:
  virtual ~Sampler() = default;
  virtual SampleResult Draw(const float* logits /*[vocab]*/, int64_t vocab,
                            const SampleParams& params) const = 0;
  // Log-softmax of the row at `target`.
  virtual float LogProb(const float* logits /*[vocab]*/, int64_t vocab, int32_t target) const = 0;
};

// Logits of several rows over a vocabulary that is split by rank, as an all-gather leaves them.
struct LogitsView {
  const float* data = nullptr;  // row r of rank k's slice at data + (k * rows + r) * local
  int rows = 0;
  int ranks = 1;
  int64_t local = 0;  // ids of a slice; rank k has the ids from k * local on

  int64_t vocab() const { return ranks * local; }
};

// Sampler for all rows of a step at once, where the logits are: in device memory on a device. Same
// rules as Sampler, and each row depends on nothing but itself. Spans are host memory, and what
// comes back is there on return. INVALID_ARGUMENT where the spans do not have one element a row, a
// target is no id, or a limit of the implementation is passed.
class RowSampler {
 public:
  virtual ~RowSampler() = default;
  virtual size_t WorkspaceBytes(int max_rows, int64_t vocab) const = 0;
  virtual absl::Status Draw(const LogitsView& logits, std::span<const SampleParams> params,
                            std::span<SampleResult> results, Workspace workspace) const = 0;
  // out[r] = log-softmax of row r at targets[r].
  virtual absl::Status LogProbs(const LogitsView& logits, std::span<const int32_t> targets,
                                std::span<float> out, Workspace workspace) const = 0;
};

}  // namespace quartet::ops

#endif  // QUARTET_KERNELS_OPS_SAMPLING_H_
