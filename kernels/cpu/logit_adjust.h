#ifndef QUARTET_KERNELS_CPU_LOGIT_ADJUST_H_
#define QUARTET_KERNELS_CPU_LOGIT_ADJUST_H_

#include <cstdint>

#include "kernels/ops/sampling.h"

namespace quartet::cpu {

// Whether a row's logits are not those that are drawn from: bias, an allow-mask, a forced id or
// penalties that find something.
bool Adjusts(const ops::SampleParams& params);

// The logits [vocab] that are drawn from. What is not allowed becomes -infinity; bans are left to
// the draw. NaN and the infinities stay what they are, so that the row is judged as it came.
void AdjustLogits(const float* logits, int64_t vocab, const ops::SampleParams& params, float* out);

}  // namespace quartet::cpu

#endif  // QUARTET_KERNELS_CPU_LOGIT_ADJUST_H_
