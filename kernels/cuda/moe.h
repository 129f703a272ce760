#ifndef QUARTET_KERNELS_CUDA_MOE_H_
#define QUARTET_KERNELS_CUDA_MOE_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "kernels/cuda/context.h"
#include "kernels/ops/mlp.h"

namespace quartet::cuda {

// For measurements: replaces the choice of experts. The owner may change it between calls of Run; a
// captured graph keeps what it was captured with.
struct MoeTestHook {
  // Device memory [rows, top_k], the experts of a row all different; null: the router chooses.
  // Weights still come from the router's logits.
  const int32_t* forced_experts = nullptr;
};

// Expert matrices are all EXL3 or all dense. At most 512 experts, at most 16 of them a row. `hook`
// may be null; else it outlives the op.
absl::StatusOr<std::unique_ptr<ops::Moe>> PrepareMoeOp(const ops::MoeWeights& weights,
                                                       Context& context,
                                                       const MoeTestHook* hook = nullptr);

}  // namespace quartet::cuda

#endif  // QUARTET_KERNELS_CUDA_MOE_H_
