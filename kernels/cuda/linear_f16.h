#ifndef QUARTET_KERNELS_CUDA_LINEAR_F16_H_
#define QUARTET_KERNELS_CUDA_LINEAR_F16_H_

#include <array>
#include <memory>
#include <span>
#include <string_view>

#include "kernels/cuda/device/row_dot_shape.h"
#include "kernels/cuda/gemm_shape.h"
#include "kernels/cuda/linear.h"

namespace quartet::cuda {

// How linear_rows cuts a matrix.
struct RowsShape {
  int blocks;
  int slots;       // tiles of 32 outputs a block: 1; 2 = gated, one of gate and one of up
  int k_warps;     // warps that share a tile
  int k_per_warp;  // inputs of a warp, a multiple of 64
  int splits;      // blocks that share a tile

  size_t PartialFloats(int rows) const {
    return static_cast<size_t>(blocks) * splits * slots * rows * row_dot::kRowDotOutputs;
  }
};
RowsShape ChooseRowsShape(int64_t in, int64_t out, bool gated, const DeviceInfo& info);

// How gemm cuts a product.
struct GemmShape {
  int kind;  // of gemm::kTiles
  int row_tiles;
  int out_tiles;
  int splits;
  int depth_per_split;  // a multiple of 64
};
GemmShape ChooseGemmShape(int rows, int64_t in, int64_t out, const DeviceInfo& info);

// Dense matrices in FP16, stacked: up to 8 rows by linear_rows, more by gemm, from
// kLibraryMinRows on by cuBLAS where it is there.
class LinearF16 final : public LinearPart {
 public:
  static absl::StatusOr<std::unique_ptr<LinearPart>> Make(
      Context& context, std::span<const ops::DenseMatrix> matrices, std::string_view what,
      bool shared_decision);

  int64_t in() const override { return in_; }
  int64_t out() const override { return out_; }
  size_t WorkspaceBytes(int max_rows) const override;
  void Run(const float* x, int64_t x_stride, int rows, float* y, int64_t y_stride,
           ops::Workspace workspace) const override;
  bool RunsGated(int rows) const override;
  void RunGated(const float* x, int64_t x_stride, int rows, float* y, int64_t y_stride, float limit,
                ops::Workspace workspace) const override;

 private:
  static constexpr int kRowKernels = 8;

  absl::Status FindKernels();
  bool UsesLibrary(int rows) const;
  size_t WorkspaceFor(int rows) const;
  unsigned GemmSharedBytes(int kind) const;
  // The product, or gate and up of it (shape.slots == 2).
  void RunRows(const RowsShape& shape, float limit, const float* x, int64_t x_stride, int rows,
               float* y, int64_t y_stride, ops::Workspace workspace) const;
  void RunGemm(const uint16_t* x, int rows, float* y, int64_t y_stride, float* partial) const;

  Context* context_ = nullptr;
  int64_t in_ = 0;
  int64_t out_ = 0;
  int64_t stride_ = 0;  // halves between rows of the weights and of x in FP16
  bool shared_decision_ = false;
  Buffer weights_;  // [out, stride]
  Buffer arrived_;
  RowsShape rows_shape_{};
  RowsShape gated_shape_{};
  std::array<const Kernel*, kRowKernels> row_kernels_{};
  std::array<const Kernel*, gemm::kTileKinds> gemm_kernels_{};
  const Kernel* to_half_ = nullptr;
};

}  // namespace quartet::cuda

#endif  // QUARTET_KERNELS_CUDA_LINEAR_F16_H_
