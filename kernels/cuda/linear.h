#ifndef QUARTET_KERNELS_CUDA_LINEAR_H_
#define QUARTET_KERNELS_CUDA_LINEAR_H_

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/cuda/context.h"
#include "kernels/ops/weights.h"

namespace quartet::cuda {

// y [rows, out] = x [rows, in] W^T for one or several matrices that read the same x, stacked: their
// outputs lie one after the other in a row of y. x and y are FP32; the sums too. Part of every op
// that projects.
class PackedLinear {
 public:
  enum class Precision {
    kF16,  // weights and x rounded to FP16
    kF32,  // weights exactly as stored, x FP32: what decides something that all ranks share
           // (router, indexer), always by the same own kernel
  };

  // `what` names the weights in errors. All matrices have the same number of inputs.
  static absl::StatusOr<PackedLinear> Make(Context& context,
                                           std::span<const ops::LinearWeights> stack,
                                           Precision precision, std::string_view what);

  int64_t in() const { return in_; }
  int64_t out() const { return out_; }
  size_t WorkspaceBytes(int max_rows) const;
  // Row r of x at x + r * x_stride, of y at y + r * y_stride (floats).
  void Run(const float* x, int64_t x_stride, int rows, float* y, int64_t y_stride,
           ops::Workspace workspace) const;

 private:
  Context* context_ = nullptr;
  int64_t in_ = 0;
  int64_t out_ = 0;
  Buffer weights_;  // FP32 [out, in]
  const Kernel* kernel_ = nullptr;
};

}  // namespace quartet::cuda

#endif  // QUARTET_KERNELS_CUDA_LINEAR_H_
