#include "kernels/cpu/logit_adjust.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace quartet::cpu {
namespace {

constexpr float kLargest = std::numeric_limits<float>::max();
constexpr float kNever = -std::numeric_limits<float>::infinity();

float Saturated(float logit) {
  return std::clamp(logit, -kLargest, kLargest);
}

bool IsAllowed(int64_t id, const ops::SampleParams& params) {
  if (params.forced >= 0 && id != params.forced) return false;
  return params.allowed.empty() || (params.allowed[id / 32] >> (id % 32) & 1) != 0;
}

// Of an id that was said `said` times, as counts write it.
float Penalised(float logit, uint32_t said, const ops::SampleParams& params) {
  const float repetition = params.repetition_penalty;
  float out = logit > 0.0f ? logit / repetition : logit * repetition;
  const uint32_t times = said & ~ops::kInPrompt;
  if (times > 0) {
    out -= std::fma(params.frequency_penalty, static_cast<float>(times), params.presence_penalty);
  }
  return out;
}

}  // namespace

bool Adjusts(const ops::SampleParams& params) {
  const bool said = params.counts != nullptr || !params.uncounted.empty();
  return !params.bias.empty() || !params.allowed.empty() || params.forced >= 0 ||
         (params.penalises() && said);
}

void AdjustLogits(const float* logits, int64_t vocab, const ops::SampleParams& params, float* out) {
  std::copy_n(logits, vocab, out);
  for (const ops::LogitBias& bias : params.bias) {
    if (std::isfinite(out[bias.id])) out[bias.id] = Saturated(out[bias.id] + bias.value);
  }
  for (int64_t id = 0; id < vocab; ++id) {
    if (!std::isfinite(out[id])) continue;
    if (!IsAllowed(id, params)) {
      out[id] = kNever;
      continue;
    }
    if (!params.penalises()) continue;
    uint32_t said = params.counts != nullptr ? params.counts[id] : 0;
    for (const int32_t token : params.uncounted) said += token == id;
    if (said != 0) out[id] = Saturated(Penalised(out[id], said, params));
  }
}

}  // namespace quartet::cpu
