#ifndef QUARTET_KERNELS_CUDA_EXL3_GEMM_H_
#define QUARTET_KERNELS_CUDA_EXL3_GEMM_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "kernels/cuda/context.h"
#include "kernels/cuda/exl3_bank.h"
#include "kernels/cuda/exl3_params.h"

namespace quartet::cuda {

// Products of many rows: transform, then multiply by tiles of rows.
class Exl3Gemm {
 public:
  static absl::StatusOr<Exl3Gemm> Make(Context& context, const PackedExl3& bank);

  // Rows of x, see Exl3TransformParams.
  void TransformRows(const Exl3TransformParams& params) const;
  // Activations of the sums of gate and up.
  void TransformActivations(const Exl3TransformParams& params) const;
  // How many rows a tile should have where a matrix has `rows` rows.
  static int RowTile(int64_t rows);
  // `row_tile` is what RowTile gave; `row_tiles` the most tiles that there can be.
  void Multiply(const Exl3GemmParams& params, int row_tile, int row_tiles) const;

 private:
  Context* context_ = nullptr;
  const Kernel* rows_ = nullptr;
  const Kernel* activations_ = nullptr;
  const Kernel* small_ = nullptr;
  const Kernel* large_ = nullptr;
};

}  // namespace quartet::cuda

#endif  // QUARTET_KERNELS_CUDA_EXL3_GEMM_H_
