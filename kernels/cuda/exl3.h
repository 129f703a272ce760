#ifndef QUARTET_KERNELS_CUDA_EXL3_H_
#define QUARTET_KERNELS_CUDA_EXL3_H_

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "absl/status/statusor.h"
#include "kernels/cuda/context.h"
#include "kernels/cuda/exl3_bank.h"
#include "kernels/cuda/exl3_gemm.h"
#include "kernels/ops/batch.h"
#include "kernels/ops/weights.h"

namespace quartet::cuda {

// One EXL3 matrix: y [rows, out] = x [rows, in] W, x and y FP32. Transforms in FP32, products of
// FP16 with FP32 sums. Used like PackedLinear.
class Exl3Linear {
 public:
  // `what` names the matrix in errors. INVALID_ARGUMENT where the matrix contradicts itself.
  static absl::StatusOr<Exl3Linear> Make(Context& context, const ops::Exl3Matrix& matrix,
                                         std::string_view what);

  int64_t in() const { return in_; }    // what is used of the matrix' inputs
  int64_t out() const { return out_; }  // and of its outputs
  size_t WorkspaceBytes(int max_rows) const;
  // Row r of x at x + r * x_stride, of y at y + r * y_stride (floats).
  void Run(const float* x, int64_t x_stride, int rows, float* y, int64_t y_stride,
           ops::Workspace workspace) const;

 private:
  struct Buffers {
    uint16_t* inputs = nullptr;  // many rows: FP16 [rows][padded in]
    float* sums = nullptr;       // [parts][rows][padded out]
  };
  Buffers Take(WorkspaceCutter& cutter, int rows, const Exl3Cut& cut) const;
  Exl3Cut Cut(int rows) const;
  void FewRows(const float* x, int64_t x_stride, int rows, const Exl3Cut& cut, float* sums) const;
  void ManyRows(const float* x, int64_t x_stride, int rows, const Buffers& b) const;

  Context* context_ = nullptr;
  int64_t in_ = 0;
  int64_t out_ = 0;
  int64_t padded_in_ = 0;
  int64_t padded_out_ = 0;
  PackedExl3 bank_;
  Exl3Product product_;
  Exl3Gemm gemm_;
  const Kernel* output_ = nullptr;
};

}  // namespace quartet::cuda

#endif  // QUARTET_KERNELS_CUDA_EXL3_H_
