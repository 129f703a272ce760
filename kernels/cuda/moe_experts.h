#ifndef QUARTET_KERNELS_CUDA_MOE_EXPERTS_H_
#define QUARTET_KERNELS_CUDA_MOE_EXPERTS_H_

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/cuda/context.h"
#include "kernels/cuda/moe_params.h"
#include "kernels/ops/mlp.h"

namespace quartet::cuda {

// The choice that a step's router makes, in device memory.
struct RouterChoice {
  const float* logits = nullptr;    // [rows, experts]
  const float* bias = nullptr;      // [experts]
  const int32_t* forced = nullptr;  // see MoeTestHook
  float scaling = 1.0f;
  ops::RouterTrace trace;
};

// The routed experts of a layer, all of one kind: chooses them and adds their weighted sum.
class RoutedExperts {
 public:
  virtual ~RoutedExperts() = default;
  virtual size_t WorkspaceBytes(int max_rows) const = 0;
  // partial [rows, hidden] += sum over slots, best first. x [rows, hidden]. What is forked may
  // still be writing partial: joins before it touches it.
  virtual void Run(const float* x, int rows, const RouterChoice& choice, float* partial,
                   ops::Workspace workspace) const = 0;
};

// Experts whose three matrices are EXL3 each. INVALID_ARGUMENT and UNIMPLEMENTED as PackExl3 says;
// shapes are the same for all experts (checked by the caller).
absl::StatusOr<std::unique_ptr<RoutedExperts>> MakeExl3Experts(
    Context& context, const std::vector<ops::MlpWeights>& experts, int top_k);
// Experts whose matrices are dense; any shape, no great speed.
absl::StatusOr<std::unique_ptr<RoutedExperts>> MakeDenseExperts(
    Context& context, const std::vector<ops::MlpWeights>& experts, int top_k);

}  // namespace quartet::cuda

#endif  // QUARTET_KERNELS_CUDA_MOE_EXPERTS_H_
