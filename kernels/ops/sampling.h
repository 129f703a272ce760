#ifndef QUARTET_KERNELS_OPS_SAMPLING_H_
#define QUARTET_KERNELS_OPS_SAMPLING_H_

#include <cstdint>
#include <span>

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

}  // namespace quartet::ops

#endif  // QUARTET_KERNELS_OPS_SAMPLING_H_
