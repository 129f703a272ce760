#include "kernels/cpu/linear.h"

#include <algorithm>
#include <cassert>
#include <utility>
#include <variant>

#include "kernels/cpu/convert.h"
#include "kernels/cpu/memory.h"

namespace quartet::cpu {
namespace {

// Rows from which a transform over `width` columns is spread over the pool.
bool WorthSpreading(size_t rows, size_t width) {
  return rows * width >= 65'536;
}

}  // namespace

int64_t InFeatures(const ops::LinearWeights& weights) {
  if (const auto* dense = std::get_if<ops::DenseMatrix>(&weights)) return dense->cols;
  const auto& m = std::get<ops::Exl3Matrix>(weights);
  return m.used_in == 0 ? m.in : m.used_in;
}

int64_t OutFeatures(const ops::LinearWeights& weights) {
  if (const auto* dense = std::get_if<ops::DenseMatrix>(&weights)) return dense->rows;
  const auto& m = std::get<ops::Exl3Matrix>(weights);
  return m.used_out == 0 ? m.out : m.used_out;
}

absl::StatusOr<LinearOp> LinearOp::Prepare(const ops::LinearWeights& weights, std::string_view what,
                                           const Context& context) {
  if (const auto* dense = std::get_if<ops::DenseMatrix>(&weights)) {
    return PrepareStack({*dense}, {std::string(what)}, context);
  }
  const auto& m = std::get<ops::Exl3Matrix>(weights);
  QUARTET_CPU_RETURN(CheckExl3(m, what));
  LinearOp op;
  op.in_ = InFeatures(weights);
  op.out_ = OutFeatures(weights);
  op.input_scales_ = InputScales(m);
  op.output_scales_ = OutputScales(m);
  for (float& scale : op.output_scales_) scale *= 1.0f / 128;
  const std::vector<uint16_t> inner = DecodeInner(m, *context.codebooks);
  std::vector<float> widened(inner.size());
  std::transform(inner.begin(), inner.end(), widened.begin(), F16ToF32);
  op.matrix_ = PackedMatrix::FromColumns(widened.data(), m.out, m.in);
  return op;
}

absl::StatusOr<LinearOp> LinearOp::PrepareStack(const std::vector<ops::DenseMatrix>& parts,
                                                const std::vector<std::string>& what,
                                                const Context& context) {
  LinearOp op;
  std::vector<float> stacked;
  for (size_t i = 0; i < parts.size(); ++i) {
    QUARTET_CPU_ASSIGN(std::vector<float> widened, Widen(parts[i], what[i]));
    QUARTET_CPU_RETURN(
        CheckShape(what[i], parts[i].rows, parts[i].cols, parts[i].rows, parts[0].cols));
    op.out_ += parts[i].rows;
    if (stacked.empty()) {
      stacked = std::move(widened);
    } else {
      stacked.insert(stacked.end(), widened.begin(), widened.end());
    }
  }
  op.in_ = parts[0].cols;
  op.matrix_ = PackedMatrix::FromRows(stacked.data(), op.out_, op.in_);
  return op;
}

size_t LinearOp::ScratchFloats(size_t rows) const {
  if (input_scales_.empty()) return 0;
  return rows * (input_scales_.size() + output_scales_.size());
}

void LinearOp::Run(const float* x, size_t ldx, size_t rows, float* y, size_t ldy, float* scratch,
                   ThreadPool* pool) const {
  if (input_scales_.empty()) {
    matrix_.Multiply(x, ldx, rows, y, ldy, pool);
    return;
  }
  const size_t padded_in = input_scales_.size();
  const size_t padded_out = output_scales_.size();
  const size_t in = static_cast<size_t>(in_);
  const size_t out = static_cast<size_t>(out_);
  float* turned = scratch;
  float* z = scratch + rows * padded_in;
  pool->For(rows, 1, WorthSpreading(rows, padded_in), [&](size_t begin, size_t end, int) {
    for (size_t r = begin; r < end; ++r) {
      float* to = turned + r * padded_in;
      for (size_t k = 0; k < in; ++k) to[k] = x[r * ldx + k] * input_scales_[k];
      std::fill(to + in, to + padded_in, 0.0f);
      for (size_t k = 0; k < padded_in; k += 128) Hadamard128(to + k);
    }
  });
  matrix_.Multiply(turned, padded_in, rows, z, padded_out, pool);
  pool->For(rows, 1, WorthSpreading(rows, padded_out), [&](size_t begin, size_t end, int) {
    for (size_t r = begin; r < end; ++r) {
      float* from = z + r * padded_out;
      for (size_t n = 0; n < out; n += 128) Hadamard128(from + n);
      for (size_t n = 0; n < out; ++n) y[r * ldy + n] = from[n] * output_scales_[n];
    }
  });
}

absl::StatusOr<FusedLinear> FusedLinear::Prepare(const std::vector<Part>& parts,
                                                 const Context& context) {
  FusedLinear fused;
  fused.in_ = InFeatures(*parts[0].weights);
  std::vector<ops::DenseMatrix> dense;
  std::vector<std::string> names;
  int64_t dense_offset = 0;
  const auto flush = [&]() -> absl::Status {
    if (dense.empty()) return absl::OkStatus();
    QUARTET_CPU_ASSIGN(LinearOp op, LinearOp::PrepareStack(dense, names, context));
    fused.groups_.push_back({std::move(op), dense_offset});
    dense.clear();
    names.clear();
    return absl::OkStatus();
  };
  for (const Part& part : parts) {
    const int64_t out = OutFeatures(*part.weights);
    QUARTET_CPU_RETURN(CheckShape(part.what, out, InFeatures(*part.weights), out, fused.in_));
    fused.offsets_.push_back(fused.width_);
    if (const auto* matrix = std::get_if<ops::DenseMatrix>(part.weights)) {
      if (dense.empty()) dense_offset = fused.width_;
      dense.push_back(*matrix);
      names.push_back(part.what);
    } else {
      QUARTET_CPU_RETURN(flush());
      QUARTET_CPU_ASSIGN(LinearOp op, LinearOp::Prepare(*part.weights, part.what, context));
      fused.groups_.push_back({std::move(op), fused.width_});
    }
    fused.width_ += out;
  }
  QUARTET_CPU_RETURN(flush());
  return fused;
}

size_t FusedLinear::ScratchFloats(size_t rows) const {
  size_t most = 0;
  for (const Group& group : groups_) most = std::max(most, group.op.ScratchFloats(rows));
  return most;
}

void FusedLinear::Run(const float* x, size_t ldx, size_t rows, float* y, float* scratch,
                      ThreadPool* pool) const {
  for (const Group& group : groups_) {
    group.op.Run(x, ldx, rows, y + group.offset, static_cast<size_t>(width_), scratch, pool);
  }
}

absl::StatusOr<std::vector<float>> WidenLinear(const ops::LinearWeights& weights,
                                               std::string_view what, const Context& context) {
  if (const auto* dense = std::get_if<ops::DenseMatrix>(&weights)) return Widen(*dense, what);
  const auto& m = std::get<ops::Exl3Matrix>(weights);
  QUARTET_CPU_RETURN(CheckExl3(m, what));
  return ReconstructRows(m, *context.codebooks);
}

namespace {

class LinearLayer : public ops::Linear {
 public:
  LinearLayer(LinearOp op, const Context& context) : op_(std::move(op)), context_(context) {}

  int64_t in() const override { return op_.in(); }
  int64_t out() const override { return op_.out(); }
  size_t WorkspaceBytes(int max_rows) const override {
    return op_.ScratchFloats(static_cast<size_t>(max_rows)) * sizeof(float);
  }
  void Run(const float* x, int rows, float* y, ops::Workspace workspace) const override {
    assert(workspace.bytes >= WorkspaceBytes(rows));
    op_.Run(x, static_cast<size_t>(op_.in()), static_cast<size_t>(rows), y,
            static_cast<size_t>(op_.out()), reinterpret_cast<float*>(workspace.data),
            context_.pool);
  }

 private:
  LinearOp op_;
  Context context_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ops::Linear>> PrepareLinearOp(const ops::LinearWeights& weights,
                                                             const Context& context) {
  QUARTET_CPU_ASSIGN(LinearOp op, LinearOp::Prepare(weights, "linear weight", context));
  return std::make_unique<LinearLayer>(std::move(op), context);
}

}  // namespace quartet::cpu
