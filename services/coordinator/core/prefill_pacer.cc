#include "services/coordinator/core/prefill_pacer.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace quartet::coordinator {

bool PrefillPacer::BeginStep(const StepShape& decode, const StepShape& ahead) {
  has_row_ = false;
  limited_ = decode.decode_rows > 0 && quantum_us_ > 0;
  time_left_us_ = quantum_us_ - cost_.PredictUs(decode);
  if (decode.decode_rows == 0) {
    decode_debt_us_ = 0;
    return true;
  }
  // The step in flight counts as it is expected to turn out.
  double debt_us = decode_debt_us_;
  if (ahead.decode_rows > 0) {
    const double ahead_us = cost_.PredictUs(ahead);
    debt_us = ahead.prefill_tokens > 0 ? ahead_us * debt_per_us_ : debt_us - ahead_us;
  }
  return debt_us <= 0;
}

uint32_t PrefillPacer::TokensThatFit(uint32_t position) const {
  constexpr uint32_t kAny = std::numeric_limits<uint32_t>::max();
  if (!limited_) return kAny;
  const auto fit =
      static_cast<uint32_t>(std::min<double>(cost_.PrefillTokensIn(time_left_us_, position), kAny));
  return has_row_ ? fit : std::max(fit, kChunkMultiple);
}

void PrefillPacer::AddRow(uint32_t n_tokens, uint32_t position) {
  time_left_us_ -= cost_.PrefillUs(n_tokens, position);
  has_row_ = true;
}

void PrefillPacer::OnStep(const StepShape& shape, TimeUs took_us) {
  cost_.Observe(shape, took_us);
  const auto took = static_cast<double>(std::max<TimeUs>(took_us, 1));
  if (shape.prefill_tokens == 0) {
    decode_debt_us_ = std::max(0.0, decode_debt_us_ - took);
  } else if (shape.decode_rows > 0) {
    // A step that was held up is not made up for in full: prompts wait for this.
    const double counted = quantum_us_ == 0 ? took : std::min(took, 2 * quantum_us_);
    decode_debt_us_ = counted * debt_per_us_;
  }
}

double PrefillPacer::PrefillUs(const StepShape& decode, uint64_t n_tokens, uint32_t position,
                               uint32_t budget_tokens) const {
  if (n_tokens == 0) return 0;
  const bool alone = decode.decode_rows == 0;
  double fit = std::max(kChunkMultiple, budget_tokens);
  if (!alone && quantum_us_ > 0) {
    const double left_us = quantum_us_ - cost_.PredictUs(decode);
    fit = std::clamp<double>(cost_.PrefillTokensIn(left_us, position), kChunkMultiple, fit);
    fit -= std::fmod(fit, kChunkMultiple);
  }
  // Whole steps, and the last one's part.
  const double steps = std::max(1.0, static_cast<double>(n_tokens) / fit);
  StepShape step = decode;
  step.AddPrefill(static_cast<uint32_t>(static_cast<double>(n_tokens) / steps), position);
  const double step_us = cost_.PredictUs(step);
  return steps * step_us * (alone ? 1 : 1 + debt_per_us_);
}

double PrefillPacer::TokenUsBesidePrompts(const StepShape& decode) const {
  StepShape step = decode;
  if (step.decode_rows == 0) step.AddDecode(1, 0);
  const double decode_us = cost_.PredictUs(step);
  const double mixed_us = std::max(quantum_us_, decode_us);
  const double debt_us = mixed_us * debt_per_us_;
  return (mixed_us + debt_us) / (1 + debt_us / decode_us);
}

}  // namespace quartet::coordinator
