#ifndef QUARTET_KERNELS_CPU_MATH_H_
#define QUARTET_KERNELS_CPU_MATH_H_

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "kernels/cpu/simd.h"

namespace quartet::cpu {

inline float Sigmoid(float x) {
  return 1.0f / (1.0f + std::exp(-x));
}
inline float Silu(float x) {
  return x / (1.0f + std::exp(-x));
}

// y = x / sqrt(mean(x^2) + eps) * weight. x and y may be the same.
inline void RmsNormRow(const float* x, const float* weight, size_t width, float eps, float* y) {
  const float scale = 1.0f / std::sqrt(Dot(x, x, width) / static_cast<float>(width) + eps);
  for (size_t i = 0; i < width; ++i) y[i] = x[i] * scale * weight[i];
}

// glu(g, u) = silu(min(g, limit)) * clamp(u, -limit, limit); limit <= 0 means no clamp.
inline void ClampedSwiGlu(const float* gate, const float* up, size_t width, float limit,
                          float* out) {
  if (limit <= 0.0f) {
    for (size_t i = 0; i < width; ++i) out[i] = Silu(gate[i]) * up[i];
    return;
  }
  for (size_t i = 0; i < width; ++i) {
    out[i] = Silu(std::min(gate[i], limit)) * std::min(std::max(up[i], -limit), limit);
  }
}

}  // namespace quartet::cpu

#endif  // QUARTET_KERNELS_CPU_MATH_H_
