#ifndef QUARTET_KERNELS_OPS_SAMPLING_H_
#define QUARTET_KERNELS_OPS_SAMPLING_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "kernels/ops/batch.h"

namespace quartet::ops {

// The likeliest ids of a row that can be asked for.
inline constexpr int kMaxTopLogProbs = 20;
// Tokens that a row may follow and its counts do not hold yet: a window of speculation.
inline constexpr int kMaxUncounted = 4;

struct LogitBias {
  int32_t id = 0;
  float value = 0.0f;
};

// What a sequence has said, for penalties: one word an id, in the backend's memory. Its high bit is
// set if the id is in the prompt, the others count it in the output.
inline constexpr uint32_t kInPrompt = 0x80000000u;
enum class TokenOrigin { kPrompt, kOutput };

// How one row's token is drawn. Order: bias, bans (ids from first_banned on, `banned`, and those
// that are not `allowed`), penalties, temperature, top_k, top_p, min_p, draw.
//   penalties: of an id in prompt or output a logit above 0 is divided by repetition_penalty, any
//   other multiplied; then of one in the output presence_penalty and frequency_penalty times its
//   count are taken off. Adjusted logits saturate at the largest finite values.
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
  int32_t draft = -1;                 // tested by rejection; -1 = none
  std::span<const LogitBias> bias;    // no id twice
  std::span<const uint32_t> allowed;  // bit id % 32 of word id / 32, [ceil(vocab / 32)]; empty: all
  int32_t forced = -1;                // the only id that is allowed; -1 = not so
  float repetition_penalty = 1.0f;    // above 0
  float presence_penalty = 0.0f;
  float frequency_penalty = 0.0f;
  const uint32_t* counts = nullptr;    // [vocab]; null: nothing was said
  std::span<const int32_t> uncounted;  // of the output, what is not in the counts yet
  int top = 0;                         // so many of the likeliest ids, up to kMaxTopLogProbs

  bool penalises() const {
    return repetition_penalty != 1.0f || presence_penalty != 0.0f || frequency_penalty != 0.0f;
  }
};

struct TokenLogProb {
  int32_t token = -1;
  float logprob = 0.0f;
};

struct SampleResult {
  int32_t token = -1;
  float logprob = 0.0f;  // log-softmax of the raw logits at `token`
  bool finite = true;    // false: the row holds a NaN or no finite logit; token is -1
  // Of the raw logits: the likeliest ids, descending, ties by lower id. As many as were asked for
  // and the vocabulary has.
  std::array<TokenLogProb, kMaxTopLogProbs> top = {};
};

// An id whose log-probability is wanted, and so many of the likeliest ones beside it.
struct ScoreParams {
  int32_t target = 0;
  int top = 0;
};

// INVALID_ARGUMENT names what is no id of the vocabulary, or not as the structs say.
absl::Status CheckSampleParams(const SampleParams& params, int64_t vocab);
absl::Status CheckScoreParams(const ScoreParams& params, int64_t vocab);

// Logits of several rows over a vocabulary that is split by rank, as an all-gather leaves them.
struct LogitsView {
  const float* data = nullptr;  // row r of rank k's slice at data + (k * rows + r) * local
  int rows = 0;
  int ranks = 1;
  int64_t local = 0;  // ids of a slice; rank k has the ids from k * local on

  int64_t vocab() const { return ranks * local; }
};

// Sampler for all rows of a step at once, where the logits are: in device memory on a device. Each
// row depends on nothing but itself. Spans are host memory, and what comes back is there on return.
// INVALID_ARGUMENT where the spans do not have one element a row, an id is none, or a limit of the
// implementation is passed.
class RowSampler {
 public:
  virtual ~RowSampler() = default;
  virtual size_t WorkspaceBytes(int max_rows, int64_t vocab) const = 0;
  virtual absl::Status Draw(const LogitsView& logits, std::span<const SampleParams> params,
                            std::span<SampleResult> results, Workspace workspace) const = 0;
  // results[r] is of params[r].target; `finite` says whether the row is.
  virtual absl::Status Score(const LogitsView& logits, std::span<const ScoreParams> params,
                             std::span<SampleResult> results, Workspace workspace) const = 0;
  // Counts in memory of the backend, in the order of the ops: sets all to nothing, and adds ids,
  // which must be below `vocab`.
  virtual void ClearCounts(uint32_t* counts, int64_t vocab) const = 0;
  virtual absl::Status AddCounts(uint32_t* counts, std::span<const int32_t> tokens,
                                 TokenOrigin origin) const = 0;
};

}  // namespace quartet::ops

#endif  // QUARTET_KERNELS_OPS_SAMPLING_H_
