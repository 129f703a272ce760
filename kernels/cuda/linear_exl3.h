#ifndef QUARTET_KERNELS_CUDA_LINEAR_EXL3_H_
#define QUARTET_KERNELS_CUDA_LINEAR_EXL3_H_

#include <memory>
#include <string_view>
#include <utility>

#include "kernels/cuda/exl3.h"
#include "kernels/cuda/linear.h"

namespace quartet::cuda {

// One EXL3 matrix of a stack.
class LinearExl3 final : public LinearPart {
 public:
  static absl::StatusOr<std::unique_ptr<LinearPart>> Make(Context& context,
                                                          const ops::Exl3Matrix& matrix,
                                                          std::string_view what) {
    absl::StatusOr<Exl3Linear> linear = Exl3Linear::Make(context, matrix, what);
    if (!linear.ok()) return linear.status();
    return std::make_unique<LinearExl3>(*std::move(linear));
  }
  explicit LinearExl3(Exl3Linear linear) : linear_(std::move(linear)) {}

  int64_t in() const override { return linear_.in(); }
  int64_t out() const override { return linear_.out(); }
  size_t WorkspaceBytes(int max_rows) const override { return linear_.WorkspaceBytes(max_rows); }
  void Run(const float* x, int64_t x_stride, int rows, float* y, int64_t y_stride,
           ops::Workspace workspace) const override {
    linear_.Run(x, x_stride, rows, y, y_stride, workspace);
  }

 private:
  Exl3Linear linear_;
};

}  // namespace quartet::cuda

#endif  // QUARTET_KERNELS_CUDA_LINEAR_EXL3_H_
