#ifndef QUARTET_SERVICES_COORDINATOR_CORE_PREFILL_PACER_H_
#define QUARTET_SERVICES_COORDINATOR_CORE_PREFILL_PACER_H_

#include <cstdint>

#include "services/coordinator/core/step_cost.h"
#include "services/coordinator/core/types.h"

namespace quartet::coordinator {

// How much of the time prompts may take while others decode. A step with decode rows takes as many
// prompt tokens as fit prefill_quantum_ms, and kChunkMultiple in any case. After a step with both,
// steps are for decoders alone until these had min_decode_share of the time. Without decoders
// prompts may have everything. Not thread safe.
class PrefillPacer {
 public:
  // quantum_ms 0: steps of any length. min_decode_share: 0 to below 1.
  PrefillPacer(uint32_t quantum_ms, double min_decode_share)
      : quantum_us_(1000.0 * quantum_ms), debt_per_us_(min_decode_share / (1 - min_decode_share)) {}

  // A step is planned whose decode rows these are, behind one in flight (empty = none). False: it
  // is for them alone.
  bool BeginStep(const StepShape& decode, const StepShape& ahead = {});
  // How many tokens the next prompt row of the step may have that begins at `position`. The first
  // row may have kChunkMultiple whatever it takes, so that there is always progress.
  uint32_t TokensThatFit(uint32_t position) const;
  void AddRow(uint32_t n_tokens, uint32_t position);

  // The step took so long.
  void OnStep(const StepShape& shape, TimeUs took_us);

  // The time until `n_tokens` of prompts around `position` are computed beside these decode rows,
  // decoders' share included, with up to budget_tokens in a step.
  double PrefillUs(const StepShape& decode, uint64_t n_tokens, uint32_t position,
                   uint32_t budget_tokens) const;
  // The mean time between two tokens of a decode row while there is always some prompt.
  double TokenUsBesidePrompts(const StepShape& decode) const;

  const StepCost& cost() const { return cost_; }

 private:
  const double quantum_us_;
  const double debt_per_us_;  // of decoding, for each microsecond of a step with both
  StepCost cost_;
  double decode_debt_us_ = 0;
  // Of the step being planned.
  bool limited_ = false;
  bool has_row_ = false;
  double time_left_us_ = 0;
};

}  // namespace quartet::coordinator

#endif  // QUARTET_SERVICES_COORDINATOR_CORE_PREFILL_PACER_H_
