#ifndef QUARTET_KERNELS_CUDA_LINEAR_H_
#define QUARTET_KERNELS_CUDA_LINEAR_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/cuda/context.h"
#include "kernels/ops/weights.h"

namespace quartet::cuda {

// Some of a stack's matrices that one set of kernels multiplies.
class LinearPart {
 public:
  virtual ~LinearPart() = default;
  virtual int64_t in() const = 0;
  virtual int64_t out() const = 0;
  virtual size_t WorkspaceBytes(int max_rows) const = 0;
  virtual void Run(const float* x, int64_t x_stride, int rows, float* y, int64_t y_stride,
                   ops::Workspace workspace) const = 0;

  // Whether RunGated takes this many rows: ClampedSwiGlu(gate, up) [rows, out / 2] of a part that
  // is gate | up. Its workspace is Run's.
  virtual bool RunsGated(int rows) const { return false; }
  virtual void RunGated(const float* x, int64_t x_stride, int rows, float* y, int64_t y_stride,
                        float limit, ops::Workspace workspace) const {}
};

// y [rows, out] = x [rows, in] W^T for one or several matrices that read the same x, stacked: their
// outputs lie one after the other in a row of y. x and y are FP32; the sums too. Part of every op
// that projects.
class PackedLinear {
 public:
  enum class Precision {
    kF16,  // weights and x rounded to FP16
    kF32,  // weights exactly as stored, x FP32: what decides something that all ranks share
           // (router, indexer), always by the same own kernels, which add in the same order
           // whatever the number of rows
  };

  // `what` names the weights in errors. All matrices have the same number of inputs. With
  // `shared_decision` kF16 too takes own kernels alone, never a library's. INVALID_ARGUMENT: not a
  // matrix, or unlike inputs; OUT_OF_RANGE: a weight beyond FP16 (kF16).
  static absl::StatusOr<PackedLinear> Make(Context& context,
                                           std::span<const ops::LinearWeights> stack,
                                           Precision precision, std::string_view what,
                                           bool shared_decision = false);

  int64_t in() const { return in_; }
  int64_t out() const { return out_; }
  size_t WorkspaceBytes(int max_rows) const;
  // Row r of x at x + r * x_stride, of y at y + r * y_stride (floats).
  void Run(const float* x, int64_t x_stride, int rows, float* y, int64_t y_stride,
           ops::Workspace workspace) const;

  // Of a stack gate | up: y [rows, out / 2] = silu(min(gate, limit)) * clamp(up, -limit, limit);
  // limit <= 0 means no clamp. One kernel where the part can.
  size_t GatedWorkspaceBytes(int max_rows) const;
  void RunGated(const float* x, int64_t x_stride, int rows, float* y, int64_t y_stride, float limit,
                ops::Workspace workspace) const;

 private:
  absl::Status Append(absl::StatusOr<std::unique_ptr<LinearPart>> part, std::string_view what);

  std::vector<std::unique_ptr<LinearPart>> parts_;
  Context* context_ = nullptr;
  int64_t in_ = 0;
  int64_t out_ = 0;
  const Kernel* glu_ = nullptr;
};

}  // namespace quartet::cuda

#endif  // QUARTET_KERNELS_CUDA_LINEAR_H_
