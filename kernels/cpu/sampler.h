#ifndef QUARTET_KERNELS_CPU_SAMPLER_H_
#define QUARTET_KERNELS_CPU_SAMPLER_H_

#include <cstdint>
#include <span>

#include "kernels/ops/sampling.h"

namespace quartet::cpu {

// Sampling from FP32 logits; probabilities, masses and noise in double. Allocates nothing: cuts are
// found by radix selection over the logits' bits. Stateless, so any thread may use it.
//
// A row with a NaN or +infinity, or without a finite logit among the ids that are not banned, is
// reported as not finite. Gumbel noise uses 52 random bits of the generator's first two words.
class Sampler {
 public:
  // From logits [vocab] that are adjusted already (logit_adjust.h): of the parameters what comes
  // before the temperature are only the bans. `top` stays empty.
  ops::SampleResult Draw(const float* logits, int64_t vocab, const ops::SampleParams& params) const;
  // Log-softmax of the row at `target`.
  float LogProb(const float* logits, int64_t vocab, int32_t target) const;
  // Fills `out` with the likeliest ids of a row without NaN; what the row is too short for stays.
  void Top(const float* logits, int64_t vocab, std::span<ops::TokenLogProb> out) const;
};

// What the cuts of a draw keep: ids with a key above `threshold`, and the first `ties` ids (in
// ascending order, bans left out) among those with exactly that key.
struct KeptSet {
  uint32_t threshold = 0;
  int64_t ties = 0;
};

// Order-preserving map from finite floats (and -infinity) to integers; -0 and +0 are equal.
uint32_t LogitKey(float logit);

// Applies top_k, top_p and min_p. The row must hold an allowed finite logit.
KeptSet FindKept(const float* logits, int64_t vocab, const ops::SampleParams& params);

}  // namespace quartet::cpu

#endif  // QUARTET_KERNELS_CPU_SAMPLER_H_
