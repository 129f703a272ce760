#ifndef QUARTET_KERNELS_CUDA_LINEAR_EXACT_H_
#define QUARTET_KERNELS_CUDA_LINEAR_EXACT_H_

#include <memory>
#include <span>
#include <string_view>

#include "kernels/cuda/linear.h"

namespace quartet::cuda {

// Dense matrices kept as stored, multiplied in FP32 in an order that does not depend on the rows.
class LinearExact final : public LinearPart {
 public:
  // All of one stored type.
  static absl::StatusOr<std::unique_ptr<LinearPart>> Make(
      Context& context, std::span<const ops::DenseMatrix> matrices, std::string_view what);

  int64_t in() const override { return in_; }
  int64_t out() const override { return out_; }
  size_t WorkspaceBytes(int max_rows) const override;
  void Run(const float* x, int64_t x_stride, int rows, float* y, int64_t y_stride,
           ops::Workspace workspace) const override;

 private:
  // Which kernel takes how many rows, and on which grid.
  struct Plan {
    bool many;
    unsigned out_tiles;
    unsigned row_tiles;
    unsigned parts;        // blocks that share a tile
    size_t partial_bytes;  // of workspace
  };
  Plan PlanFor(int rows) const;

  Context* context_ = nullptr;
  int64_t in_ = 0;
  int64_t out_ = 0;
  int64_t stride_ = 0;
  Buffer weights_;
  Buffer arrived_;
  const Kernel* few_ = nullptr;
  const Kernel* many_ = nullptr;
};

}  // namespace quartet::cuda

#endif  // QUARTET_KERNELS_CUDA_LINEAR_EXACT_H_
