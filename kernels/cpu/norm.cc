#include "kernels/cpu/norm.h"

#include <utility>
#include <vector>

#include "kernels/cpu/convert.h"
#include "kernels/cpu/math.h"

namespace quartet::cpu {
namespace {

constexpr size_t kParallelFloats = 262'144;

class RmsNormOp : public ops::RmsNorm {
 public:
  RmsNormOp(std::vector<float> weight, float eps, const Context& context)
      : weight_(std::move(weight)), eps_(eps), context_(context) {}

  void Run(const float* x, int rows, float* y) const override {
    const size_t width = weight_.size();
    const size_t count = static_cast<size_t>(rows);
    context_.pool->For(count, 1, count * width >= kParallelFloats,
                       [&](size_t begin, size_t end, int) {
                         for (size_t r = begin; r < end; ++r) {
                           RmsNormRow(x + r * width, weight_.data(), width, eps_, y + r * width);
                         }
                       });
  }

 private:
  std::vector<float> weight_;
  float eps_;
  Context context_;
};

class ResidualNormOp : public ops::ResidualNorm {
 public:
  ResidualNormOp(std::vector<float> weight, float eps, const Context& context)
      : weight_(std::move(weight)), eps_(eps), context_(context) {}

  void Run(float* x, std::span<const float* const> partials, int rows, float* y) const override {
    const size_t width = weight_.size();
    const size_t count = static_cast<size_t>(rows);
    context_.pool->For(count, 1, count * width >= kParallelFloats,
                       [&](size_t begin, size_t end, int) {
                         for (size_t r = begin; r < end; ++r) {
                           const size_t at = r * width;
                           for (size_t i = at; i < at + width; ++i) {
                             float sum = partials[0][i];
                             for (size_t p = 1; p < partials.size(); ++p) sum += partials[p][i];
                             x[i] += sum;
                           }
                           RmsNormRow(x + at, weight_.data(), width, eps_, y + at);
                         }
                       });
  }

 private:
  std::vector<float> weight_;
  float eps_;
  Context context_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ops::RmsNorm>> PrepareRmsNormOp(const ops::NormWeights& weights,
                                                               const Context& context) {
  QUARTET_CPU_ASSIGN(std::vector<float> weight,
                     Widen(weights.weight, weights.weight.size, "RMSNorm weight"));
  return std::make_unique<RmsNormOp>(std::move(weight), weights.eps, context);
}

absl::StatusOr<std::unique_ptr<ops::ResidualNorm>> PrepareResidualNormOp(
    const ops::NormWeights& weights, const Context& context) {
  QUARTET_CPU_ASSIGN(std::vector<float> weight,
                     Widen(weights.weight, weights.weight.size, "RMSNorm weight"));
  return std::make_unique<ResidualNormOp>(std::move(weight), weights.eps, context);
}

}  // namespace quartet::cpu
