#ifndef QUARTET_KERNELS_CPU_MLP_H_
#define QUARTET_KERNELS_CPU_MLP_H_

#include <memory>
#include <string_view>

#include "absl/status/statusor.h"
#include "kernels/cpu/context.h"
#include "kernels/cpu/linear.h"
#include "kernels/ops/mlp.h"

namespace quartet::cpu {

// Rows that an MLP takes through its three products together, so that what lies between them stays
// in a core's cache.
inline constexpr size_t kMlpRows = 96;

// One gated MLP. Immutable after Prepare.
class MlpCore {
 public:
  static absl::StatusOr<MlpCore> Prepare(const ops::MlpWeights& weights, std::string_view what,
                                         const Context& context);

  int64_t in() const { return gate_up_.in(); }
  int64_t out() const { return down_.out(); }
  int64_t inner() const { return down_.in(); }
  // Floats of scratch for `rows` rows a call, at most kMlpRows of them.
  size_t ScratchFloats(size_t rows) const;
  // y [rows, out] from x [rows, in], rows <= kMlpRows.
  void RunBlock(const float* x, size_t rows, float* y, float* scratch, ThreadPool* pool) const;
  // The same for any number of rows.
  void Run(const float* x, size_t rows, float* y, float* scratch, ThreadPool* pool) const;

 private:
  FusedLinear gate_up_;
  LinearOp down_;
  float limit_ = 0.0f;
};

absl::StatusOr<std::unique_ptr<ops::Mlp>> PrepareMlpOp(const ops::MlpWeights& weights,
                                                       const Context& context);
absl::StatusOr<std::unique_ptr<ops::Moe>> PrepareMoeOp(const ops::MoeWeights& weights,
                                                       const Context& context);

// One row's routing: s = sigmoid(logits); the top_k experts by s + bias, best first, equal ones by
// lower index, NaN last; weights s / (sum of the selected s + 1e-20) * scaling. scores is scratch
// of `count` floats.
void Route(const float* logits, const float* bias, int count, int top_k, float scaling,
           float* scores, int32_t* experts, float* weights);

}  // namespace quartet::cpu

#endif  // QUARTET_KERNELS_CPU_MLP_H_
