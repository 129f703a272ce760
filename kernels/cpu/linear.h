#ifndef QUARTET_KERNELS_CPU_LINEAR_H_
#define QUARTET_KERNELS_CPU_LINEAR_H_

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/cpu/context.h"
#include "kernels/cpu/packed_matrix.h"
#include "kernels/ops/mlp.h"
#include "kernels/ops/weights.h"

namespace quartet::cpu {

// Inputs and outputs of a linear layer as the model sees them.
int64_t InFeatures(const ops::LinearWeights& weights);
int64_t OutFeatures(const ops::LinearWeights& weights);

// One linear layer, dense or EXL3. Immutable after Prepare.
class LinearOp {
 public:
  LinearOp() = default;
  static absl::StatusOr<LinearOp> Prepare(const ops::LinearWeights& weights, std::string_view what,
                                          const Context& context);
  // Dense weights of the same input stacked into one matrix; outputs follow one another.
  static absl::StatusOr<LinearOp> PrepareStack(const std::vector<ops::DenseMatrix>& parts,
                                               const std::vector<std::string>& what,
                                               const Context& context);

  int64_t in() const { return in_; }
  int64_t out() const { return out_; }
  // Floats of scratch that Run needs.
  size_t ScratchFloats(size_t rows) const;
  // Rows of x are ldx floats apart, rows of y ldy.
  void Run(const float* x, size_t ldx, size_t rows, float* y, size_t ldy, float* scratch,
           ThreadPool* pool) const;

 private:
  PackedMatrix matrix_;               // dense: W; EXL3: the inner matrix Q
  std::vector<float> input_scales_;   // EXL3: suh
  std::vector<float> output_scales_;  // EXL3: svh / 128, which holds both transforms' 1/sqrt(128)
  int64_t in_ = 0;
  int64_t out_ = 0;
};

// Several linear layers that read the same x, written side by side: the output of part i stands at
// offset(i) of a row of width(). Neighbouring dense parts become one matrix.
class FusedLinear {
 public:
  struct Part {
    const ops::LinearWeights* weights;
    std::string what;
  };

  static absl::StatusOr<FusedLinear> Prepare(const std::vector<Part>& parts,
                                             const Context& context);

  int64_t in() const { return in_; }
  int64_t width() const { return width_; }
  int64_t offset(size_t part) const { return offsets_[part]; }
  size_t ScratchFloats(size_t rows) const;
  // y [rows, width()].
  void Run(const float* x, size_t ldx, size_t rows, float* y, float* scratch,
           ThreadPool* pool) const;

 private:
  struct Group {
    LinearOp op;
    int64_t offset;
  };

  std::vector<Group> groups_;
  std::vector<int64_t> offsets_;
  int64_t in_ = 0;
  int64_t width_ = 0;
};

// The matrix itself, [out, in] in FP32.
absl::StatusOr<std::vector<float>> WidenLinear(const ops::LinearWeights& weights,
                                               std::string_view what, const Context& context);

absl::StatusOr<std::unique_ptr<ops::Linear>> PrepareLinearOp(const ops::LinearWeights& weights,
                                                             const Context& context);

}  // namespace quartet::cpu

#endif  // QUARTET_KERNELS_CPU_LINEAR_H_
