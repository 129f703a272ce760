#ifndef QUARTET_KERNELS_OPS_NORM_H_
#define QUARTET_KERNELS_OPS_NORM_H_

#include <cstdint>
#include <span>

#include "kernels/ops/weights.h"

namespace quartet::ops {

// RMSNorm(x; w, eps) = x / sqrt(mean(x^2) + eps) * w, in FP32.
struct NormWeights {
  VectorView weight;  // [width]
  float eps = 1e-5f;
};

class RmsNorm {
 public:
  virtual ~RmsNorm() = default;
  virtual void Run(const float* x /*[rows, width]*/, int rows,
                   float* y /*[rows, width]*/) const = 0;
};

// The plain residual step of the MTP layer: x += sum of partials (in rank order), y = RMSNorm(x).
class ResidualNorm {
 public:
  virtual ~ResidualNorm() = default;
  virtual void Run(float* x /*[rows, width], updated*/,
                   std::span<const float* const> partials /*each [rows, width]*/, int rows,
                   float* y /*[rows, width]*/) const = 0;
};

}  // namespace quartet::ops

#endif  // QUARTET_KERNELS_OPS_NORM_H_
