#ifndef QUARTET_KERNELS_OPS_MLP_H_
#define QUARTET_KERNELS_OPS_MLP_H_

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/ops/batch.h"
#include "kernels/ops/weights.h"

namespace quartet::ops {

// down(glu(x gate^T, x up^T)) with glu(g, u) = silu(min(g, L)) * clamp(u, -L, L): the gate has no
// lower clamp, and the clamp comes before the activation. limit <= 0 means no clamp. The inner
// width is this rank's slice, the result a partial sum.
struct MlpWeights {
  LinearWeights gate, up;  // [inner / tp, hidden]
  LinearWeights down;      // [hidden, inner / tp]
  float limit = 10.0f;
};

class Mlp {
 public:
  virtual ~Mlp() = default;
  virtual size_t WorkspaceBytes(int max_rows) const = 0;
  virtual void Run(const float* x /*[rows, hidden]*/, int rows, float* partial /*[rows, hidden]*/,
                   Workspace workspace) const = 0;
};

// Router, routed experts, shared expert and their sum, in FP32 end to end:
//   s = sigmoid(x gate^T); the top_k experts by s + bias, equal values by lower index; w = s / (sum
//   of selected s + 1e-20) * routed_scaling; y = sum over slots (best first) of w_j Expert_j(x),
//   then + Shared(x). Weights apply after down.
struct MoeWeights {
  LinearWeights router;             // [experts, hidden], replicated
  VectorView correction_bias;       // [experts], used in the selection only
  std::vector<MlpWeights> experts;  // K may differ between tensors
  MlpWeights shared;
  int top_k = 0;
  float routed_scaling = 1.0f;
};

// For tests and statistics; null pointers are skipped.
struct RouterTrace {
  int32_t* experts = nullptr;  // [rows, top_k], best first
  float* weights = nullptr;    // [rows, top_k]
  float* logits = nullptr;     // [rows, experts]
};

class Moe {
 public:
  virtual ~Moe() = default;
  virtual size_t WorkspaceBytes(int max_rows) const = 0;
  virtual void Run(const float* x /*[rows, hidden]*/, int rows, float* partial /*[rows, hidden]*/,
                   RouterTrace trace, Workspace workspace) const = 0;
};

// A linear layer by itself: y = x W^T for dense weights, y = x W for EXL3.
class Linear {
 public:
  virtual ~Linear() = default;
  virtual int64_t in() const = 0;
  virtual int64_t out() const = 0;
  virtual size_t WorkspaceBytes(int max_rows) const = 0;
  virtual void Run(const float* x /*[rows, in]*/, int rows, float* y /*[rows, out]*/,
                   Workspace workspace) const = 0;
};

}  // namespace quartet::ops

#endif  // QUARTET_KERNELS_OPS_MLP_H_
