#include "kernels/cpu/kda.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

#include "kernels/cpu/convert.h"
#include "kernels/cpu/linear.h"
#include "kernels/cpu/math.h"
#include "kernels/cpu/memory.h"

namespace quartet::cpu {
namespace {

constexpr float kL2Eps = 1e-6f;
constexpr int kMaxConv = 8;
constexpr size_t kParallelFloats = 16'384;

class KdaProjectOp : public ops::KdaProject {
 public:
  static absl::StatusOr<std::unique_ptr<ops::KdaProject>> Prepare(const ops::KdaWeights& w,
                                                                  const Context& context) {
    auto op = std::make_unique<KdaProjectOp>();
    if (w.heads < 1 || w.head_dim < 1 || w.conv_kernel < 1 || w.conv_kernel > kMaxConv) {
      return absl::InvalidArgumentError(absl::StrCat(
          "KDA: ", w.heads, " heads of ", w.head_dim, ", convolution over ", w.conv_kernel,
          "; all must be positive and the convolution at most ", kMaxConv));
    }
    const int64_t width = static_cast<int64_t>(w.heads) * w.head_dim;
    const int64_t hidden = InFeatures(w.q);
    for (const auto& [weight, name] :
         {std::pair(&w.q, "KDA q"), {&w.k, "KDA k"}, {&w.v, "KDA v"}}) {
      QUARTET_CPU_RETURN(
          CheckShape(name, OutFeatures(*weight), InFeatures(*weight), width, hidden));
    }
    QUARTET_CPU_RETURN(CheckShape("KDA b", OutFeatures(w.b), InFeatures(w.b), w.heads, hidden));
    QUARTET_CPU_RETURN(
        CheckShape("KDA f_b", OutFeatures(w.f_b), InFeatures(w.f_b), width, OutFeatures(w.f_a)));
    QUARTET_CPU_RETURN(
        CheckShape("KDA g_b", OutFeatures(w.g_b), InFeatures(w.g_b), width, OutFeatures(w.g_a)));
    QUARTET_CPU_ASSIGN(op->from_x_, FusedLinear::Prepare({{&w.q, "KDA q"},
                                                          {&w.k, "KDA k"},
                                                          {&w.v, "KDA v"},
                                                          {&w.f_a, "KDA f_a"},
                                                          {&w.g_a, "KDA g_a"},
                                                          {&w.b, "KDA b"}},
                                                         context));
    QUARTET_CPU_ASSIGN(op->f_b_, LinearOp::Prepare(w.f_b, "KDA f_b", context));
    QUARTET_CPU_ASSIGN(op->g_b_, LinearOp::Prepare(w.g_b, "KDA g_b", context));
    // Taps of q, k and v as [tap][3 D], the layout of the rows that they multiply.
    const int64_t taps = w.conv_kernel;
    op->taps_.resize(static_cast<size_t>(taps * 3 * width));
    int64_t part = 0;
    for (const auto& [conv, name] : {std::pair(&w.q_conv, "KDA q_conv"),
                                     {&w.k_conv, "KDA k_conv"},
                                     {&w.v_conv, "KDA v_conv"}}) {
      QUARTET_CPU_ASSIGN(const std::vector<float> tap, Widen(*conv, width * taps, name));
      for (int64_t c = 0; c < width; ++c) {
        for (int64_t j = 0; j < taps; ++j) {
          op->taps_[j * 3 * width + part * width + c] = tap[c * taps + j];
        }
      }
      ++part;
    }
    QUARTET_CPU_ASSIGN(op->gate_scale_, Widen(w.a_log, w.heads, "KDA A_log"));
    for (float& a : op->gate_scale_) a = std::exp(a);
    QUARTET_CPU_ASSIGN(op->dt_bias_, Widen(w.dt_bias, width, "KDA dt_bias"));
    op->heads_ = static_cast<size_t>(w.heads);
    op->dim_ = static_cast<size_t>(w.head_dim);
    op->conv_ = static_cast<size_t>(w.conv_kernel);
    op->lower_bound_ = w.gate_lower_bound;
    op->context_ = context;
    return op;
  }

  size_t WorkspaceBytes(int max_rows) const override {
    Arena arena;
    Take(arena, static_cast<size_t>(max_rows));
    return arena.used();
  }

  void Run(const float* x, std::span<const ops::Segment> segments, int rows, ops::KdaState state,
           ops::KdaInputs out, ops::Workspace workspace) const override {
    const size_t count = static_cast<size_t>(rows);
    const size_t width = heads_ * dim_;
    const size_t ld = static_cast<size_t>(from_x_.width());
    Arena arena(workspace);
    const auto first = static_cast<size_t>(segments.front().row_begin);
    const auto in = static_cast<size_t>(from_x_.in());
    const Buffers buffers = Take(arena, first + count);
    float* u = buffers.u + first * ld;
    ThreadPool* pool = context_.pool;
    from_x_.Run(x + first * in, in, count, u, buffers.scratch, pool);
    f_b_.Run(u + from_x_.offset(3), ld, count, out.g + first * width, width, buffers.scratch, pool);
    g_b_.Run(u + from_x_.offset(4), ld, count, out.gate + first * width, width, buffers.scratch,
             pool);
    for (const ops::Segment& segment : segments) {
      float* history = CommitSegment(segment, state);
      const size_t begin = static_cast<size_t>(segment.row_begin);
      const size_t segment_rows = static_cast<size_t>(segment.rows);
      pool->For(segment_rows, 1, segment_rows * 3 * width >= kParallelFloats,
                [&](size_t from, size_t to, int) {
                  for (size_t t = from; t < to; ++t) Row(buffers.u, begin, t, history, out);
                });
      const auto row = [&](size_t t) { return buffers.u + (begin + t) * ld; };
      if (segment.window) {
        for (size_t t = 0; t < segment_rows; ++t) {
          std::memcpy(WindowRow(segment, segment.position + static_cast<int>(t), state), row(t),
                      3 * width * sizeof(float));
        }
      } else {
        Advance(segment_rows, history, row);
      }
    }
  }

  void Commit(std::span<const ops::Segment> segments, ops::KdaState state) const override {
    for (const ops::Segment& segment : segments) CommitSegment(segment, state);
  }

 private:
  struct Buffers {
    float* u;  // [rows, from_x_.width()]
    float* scratch;
  };

  Buffers Take(Arena& arena, size_t rows) const {
    Buffers buffers;
    buffers.u = arena.Floats(rows * static_cast<size_t>(from_x_.width()));
    buffers.scratch = arena.Floats(std::max(
        {from_x_.ScratchFloats(rows), f_b_.ScratchFloats(rows), g_b_.ScratchFloats(rows)}));
    return buffers;
  }

  // Row t of the segment that begins at row `begin`.
  void Row(const float* u, size_t begin, size_t t, const float* history, ops::KdaInputs out) const {
    const size_t width = heads_ * dim_;
    const size_t ld = static_cast<size_t>(from_x_.width());
    const size_t row = begin + t;
    const float* source[kMaxConv];  // pre-conv rows, oldest first
    for (size_t j = 0; j < conv_; ++j) {
      source[j] =
          t + j + 1 >= conv_ ? u + (row + j + 1 - conv_) * ld : history + (t + j) * 3 * width;
    }
    float* target[3] = {out.q + row * width, out.k + row * width, out.v + row * width};
    for (size_t part = 0; part < 3; ++part) {
      float* to = target[part];
      const size_t channel = part * width;
      for (size_t c = 0; c < width; ++c) {
        float sum = 0.0f;
        for (size_t j = 0; j < conv_; ++j) {
          sum += taps_[j * 3 * width + channel + c] * source[j][channel + c];
        }
        to[c] = Silu(sum);
      }
    }
    const float query_scale = 1.0f / std::sqrt(static_cast<float>(dim_));
    for (size_t h = 0; h < heads_; ++h) {
      Normalise(out.q + row * width + h * dim_, query_scale);
      Normalise(out.k + row * width + h * dim_, 1.0f);
    }
    float* g = out.g + row * width;
    const float* b = u + row * ld + from_x_.offset(5);
    for (size_t h = 0; h < heads_; ++h) {
      for (size_t c = h * dim_; c < (h + 1) * dim_; ++c) {
        g[c] = lower_bound_ * Sigmoid(gate_scale_[h] * (g[c] + dt_bias_[c]));
      }
      out.beta[row * heads_ + h] = Sigmoid(b[h]);
    }
  }

  void Normalise(float* z, float factor) const {
    const float scale = factor / std::sqrt(Dot(z, z, dim_) + kL2Eps);
    for (size_t i = 0; i < dim_; ++i) z[i] *= scale;
  }

  // Moves the history on by `rows` rows, of which row(t) is the t-th.
  template <class RowAt>
  void Advance(size_t rows, float* history, RowAt row) const {
    const size_t row_floats = 3 * heads_ * dim_;
    const size_t kept = conv_ - 1;
    for (size_t i = 0; i < kept; ++i) {
      const size_t from = rows + i;  // among kept old rows and then `rows` new ones
      const float* source = from < kept ? history + from * row_floats : row(from - kept);
      std::memcpy(history + i * row_floats, source, row_floats * sizeof(float));
    }
  }

  // The history of the segment's slot, as it is before the segment's rows.
  float* CommitSegment(const ops::Segment& segment, const ops::KdaState& state) const {
    assert(segment.commit + (segment.window ? segment.rows : 0) <= state.window.rows);
    float* history = state.conv + segment.slot * state.conv_slot_stride;
    const int base = segment.position - segment.commit;
    if (base == 0) std::fill_n(history, (conv_ - 1) * 3 * heads_ * dim_, 0.0f);
    if (segment.commit > 0) {
      Advance(static_cast<size_t>(segment.commit), history,
              [&](size_t t) { return WindowRow(segment, base + static_cast<int>(t), state); });
    }
    return history;
  }

  float* WindowRow(const ops::Segment& segment, int position, const ops::KdaState& state) const {
    return state.window.conv + segment.slot * state.window.slot_stride +
           static_cast<size_t>(position % state.window.rows) * 3 * heads_ * dim_;
  }

  FusedLinear from_x_;
  LinearOp f_b_, g_b_;
  std::vector<float> taps_, gate_scale_, dt_bias_;
  size_t heads_ = 0, dim_ = 0, conv_ = 0;
  float lower_bound_ = 0.0f;
  Context context_;
};

class KdaOutputOp : public ops::KdaOutput {
 public:
  static absl::StatusOr<std::unique_ptr<ops::KdaOutput>> Prepare(const ops::KdaWeights& w,
                                                                 const Context& context) {
    auto op = std::make_unique<KdaOutputOp>();
    QUARTET_CPU_RETURN(CheckShape("KDA o", OutFeatures(w.o), InFeatures(w.o), OutFeatures(w.o),
                                  static_cast<int64_t>(w.heads) * w.head_dim));
    QUARTET_CPU_ASSIGN(op->norm_, Widen(w.o_norm, w.head_dim, "KDA o_norm"));
    QUARTET_CPU_ASSIGN(op->o_, LinearOp::Prepare(w.o, "KDA o", context));
    op->heads_ = static_cast<size_t>(w.heads);
    op->dim_ = static_cast<size_t>(w.head_dim);
    op->eps_ = w.norm_eps;
    op->context_ = context;
    return op;
  }

  size_t WorkspaceBytes(int max_rows) const override {
    Arena arena;
    Take(arena, static_cast<size_t>(max_rows));
    return arena.used();
  }

  void Run(const float* o, const float* gate, int rows, float* partial,
           ops::Workspace workspace) const override {
    const size_t count = static_cast<size_t>(rows);
    const size_t width = heads_ * dim_;
    Arena arena(workspace);
    const Buffers buffers = Take(arena, count);
    context_.pool->For(count * heads_, heads_, count * width >= kParallelFloats,
                       [&](size_t begin, size_t end, int) {
                         for (size_t i = begin; i < end; ++i) {
                           float* y = buffers.y + i * dim_;
                           RmsNormRow(o + i * dim_, norm_.data(), dim_, eps_, y);
                           for (size_t c = 0; c < dim_; ++c) y[c] *= Sigmoid(gate[i * dim_ + c]);
                         }
                       });
    o_.Run(buffers.y, width, count, partial, static_cast<size_t>(o_.out()), buffers.scratch,
           context_.pool);
  }

 private:
  struct Buffers {
    float* y;  // [rows, n, d]
    float* scratch;
  };

  Buffers Take(Arena& arena, size_t rows) const {
    Buffers buffers;
    buffers.y = arena.Floats(rows * heads_ * dim_);
    buffers.scratch = arena.Floats(o_.ScratchFloats(rows));
    return buffers;
  }

  LinearOp o_;
  std::vector<float> norm_;
  size_t heads_ = 0, dim_ = 0;
  float eps_ = 0.0f;
  Context context_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ops::KdaProject>> PrepareKdaProjectOp(const ops::KdaWeights& weights,
                                                                     const Context& context) {
  return KdaProjectOp::Prepare(weights, context);
}

absl::StatusOr<std::unique_ptr<ops::KdaOutput>> PrepareKdaOutputOp(const ops::KdaWeights& weights,
                                                                   const Context& context) {
  return KdaOutputOp::Prepare(weights, context);
}

}  // namespace quartet::cpu
