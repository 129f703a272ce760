#ifndef QUARTET_SERVICES_COORDINATOR_CORE_STEP_COST_H_
#define QUARTET_SERVICES_COORDINATOR_CORE_STEP_COST_H_

#include <array>
#include <cstddef>
#include <cstdint>

#include "services/coordinator/core/types.h"

namespace quartet::coordinator {

// What a step consists of, as far as its time depends on it.
struct StepShape {
  uint32_t decode_rows = 0;
  uint32_t decode_tokens = 0;  // of those rows, drafts included
  uint32_t prefill_tokens = 0;
  // Sum over all tokens of the tokens before each: what attention and the indexer walk over.
  double attended_tokens = 0;

  void AddDecode(uint32_t n_tokens, uint32_t position);
  void AddPrefill(uint32_t n_tokens, uint32_t position);
};

// How long steps take on this machine, learned from how long they took:
//
//   time = base + decode_tokens * d + prefill_tokens * p + attended_tokens * a,  all >= 0
//
// Least squares on the relative error over the last steps of each kind (decode alone, prefill
// alone, both), so that an hour of one kind does not make it forget the others. A step that does
// not fit the others counts little, until there are more of its like. Where nothing was seen yet
// the start values count, which are those of a V100. Not thread safe.
class StepCost {
 public:
  StepCost() { Fit(); }

  // Times that are not positive (a clock that was set) are ignored.
  void Observe(const StepShape& shape, TimeUs took_us);

  double PredictUs(const StepShape& shape) const;
  // The most prompt tokens, from `position` on, whose time on top of the step is at most this.
  double PrefillTokensIn(double time_us, uint32_t position) const;
  // The time of so many prompt tokens from `position` on, on top of the step.
  double PrefillUs(uint32_t n_tokens, uint32_t position) const;

  // Whether a step with prompt tokens was seen: before that predictions are about another machine.
  bool has_seen_prefill() const { return kinds_[kPrefill].count + kinds_[kMixed].count > 0; }

 private:
  static constexpr size_t kTerms = 4;
  static constexpr size_t kSamplesOfKind = 32;
  using Terms = std::array<double, kTerms>;
  enum Kind { kDecode, kPrefill, kMixed, kKinds };

  struct Sample {
    Terms terms = {};
    double took_us = 0;
  };
  struct Ring {
    std::array<Sample, kSamplesOfKind> samples;
    size_t count = 0;
    size_t next = 0;
  };

  static Terms TermsOf(const StepShape& shape);
  double Predict(const Terms& terms) const;
  void Fit();

  std::array<Ring, kKinds> kinds_;
  uint32_t unfitted_ = 0;  // samples since the last fit
  Terms cost_us_ = {};     // of each term's unit
};

}  // namespace quartet::coordinator

#endif  // QUARTET_SERVICES_COORDINATOR_CORE_STEP_COST_H_
