#ifndef QUARTET_SERVICES_COORDINATOR_CORE_SPECULATION_H_
#define QUARTET_SERVICES_COORDINATOR_CORE_SPECULATION_H_

#include <array>
#include <cstdint>

#include "services/coordinator/core/types.h"

// How many tokens to draft. A window of one sampled token and k drafts costs more time than the
// token alone, and yields 1 + a1 + a1 a2 + ... tokens, where aj is how often draft j is accepted
// when those before it are. Pure functions of what was observed.

namespace quartet::coordinator {

// The time of steps that only decode, by how many tokens they have: a line through what was
// measured, old steps counting less and less. Until there is something to fit, a token more costs
// what the weights that it makes the device read would.
class DecodeCost {
 public:
  void Observe(uint32_t tokens, TimeUs step_us);
  // Of a step with so many tokens; before the first observation in units of no meaning, of which
  // only the ratio counts. Positive.
  double StepUs(double tokens) const;

 private:
  struct Line {
    double base = 0;
    double per_token = 0;
  };
  Line Fit() const;

  // Sums over observations, aged.
  double n_ = 0;
  double x_ = 0;
  double y_ = 0;
  double xx_ = 0;
  double xy_ = 0;
};

// One sequence's acceptance, and the length that follows from it.
class DraftLength {
 public:
  explicit DraftLength(uint32_t longest = 0) : longest_(longest), length_(longest) {}

  // A window with `drafted` drafts of which the first `accepted` were accepted.
  void Observe(uint32_t drafted, uint32_t accepted);
  // The length to draft for the next step, from 0 to the longest. Reconsidered every
  // kStepsPerChoice calls. `other_tokens`: of the step, those of other sequences.
  uint32_t Choose(const DecodeCost& cost, uint32_t other_tokens);

  // How often the draft at this place (from 0) is accepted when all before it are.
  double Acceptance(uint32_t place) const;

  static constexpr uint32_t kStepsPerChoice = 16;

 private:
  uint32_t longest_;
  uint32_t length_;
  uint32_t calls_ = 0;
  std::array<double, kMaxDraftTokens> tried_ = {};  // aged, as accepted_
  std::array<double, kMaxDraftTokens> accepted_ = {};
};

}  // namespace quartet::coordinator

#endif  // QUARTET_SERVICES_COORDINATOR_CORE_SPECULATION_H_
