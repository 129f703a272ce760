#include "kernels/cuda/kda.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "kernels/cpu/context.h"
#include "kernels/cpu/convert.h"
#include "kernels/cpu/linear.h"
#include "kernels/cuda/kda_host.h"
#include "kernels/cuda/linear.h"
#include "kernels/cuda/weights.h"

namespace quartet::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / 32;
constexpr auto kF16 = PackedLinear::Precision::kF16;

// Warps that hold all heads once.
int WarpsOfHeads(int heads, int head_dim) {
  return static_cast<int>(CeilDiv(heads, 128 / KdaWidth(head_dim)));
}

absl::Status CheckWeights(const ops::KdaWeights& w) {
  QUARTET_CPU_RETURN(CheckKdaHeads(w.heads, w.head_dim));
  if (w.conv_kernel < 1 || w.conv_kernel > kKdaTaps) {
    return absl::InvalidArgumentError(absl::StrCat("KDA on CUDA: convolution over ", w.conv_kernel,
                                                   " rows; 1 to ", kKdaTaps, " are possible"));
  }
  const int64_t width = static_cast<int64_t>(w.heads) * w.head_dim;
  const int64_t hidden = cpu::InFeatures(w.q);
  const int64_t rank = cpu::OutFeatures(w.f_a);
  struct Shape {
    const ops::LinearWeights* weights;
    const char* what;
    int64_t out, in;
  };
  for (const Shape& s :
       {Shape{&w.q, "KDA q", width, hidden}, Shape{&w.k, "KDA k", width, hidden},
        Shape{&w.v, "KDA v", width, hidden}, Shape{&w.f_a, "KDA f_a", rank, hidden},
        Shape{&w.g_a, "KDA g_a", rank, hidden}, Shape{&w.b, "KDA b", w.heads, hidden},
        Shape{&w.f_b, "KDA f_b", width, rank}, Shape{&w.g_b, "KDA g_b", width, rank}}) {
    QUARTET_CPU_RETURN(cpu::CheckShape(s.what, cpu::OutFeatures(*s.weights),
                                       cpu::InFeatures(*s.weights), s.out, s.in));
  }
  return absl::OkStatus();
}

// Taps of q, k and v as [kKdaTaps][3 D], the layout of the rows that they multiply.
absl::StatusOr<Buffer> UploadTaps(const ops::KdaWeights& w, Context& context) {
  const int64_t width = static_cast<int64_t>(w.heads) * w.head_dim;
  const int padding = kKdaTaps - w.conv_kernel;
  std::vector<float> taps(static_cast<size_t>(kKdaTaps * 3 * width), 0.0f);
  int64_t part = 0;
  for (const auto& [conv, name] :
       {std::pair(&w.q_conv, "KDA q_conv"), {&w.k_conv, "KDA k_conv"}, {&w.v_conv, "KDA v_conv"}}) {
    QUARTET_CPU_ASSIGN(const std::vector<float> tap,
                       cpu::Widen(*conv, width * w.conv_kernel, name));
    for (int64_t c = 0; c < width; ++c) {
      for (int j = 0; j < w.conv_kernel; ++j) {
        taps[((padding + j) * 3 + part) * width + c] = tap[c * w.conv_kernel + j];
      }
    }
    ++part;
  }
  return UploadBytes(context, taps.data(), taps.size() * sizeof(float), "KDA convolution");
}

class KdaProjectOp final : public ops::KdaProject {
 public:
  static absl::StatusOr<std::unique_ptr<ops::KdaProject>> Prepare(const ops::KdaWeights& w,
                                                                  Context& context) {
    QUARTET_CPU_RETURN(CheckWeights(w));
    auto op = std::make_unique<KdaProjectOp>();
    const int64_t width = static_cast<int64_t>(w.heads) * w.head_dim;
    op->context_ = &context;
    op->heads_ = w.heads;
    op->dim_ = w.head_dim;
    op->rank_ = static_cast<int>(cpu::OutFeatures(w.f_a));
    op->history_ = w.conv_kernel - 1;
    op->lower_bound_ = w.gate_lower_bound;
    const ops::LinearWeights stack[] = {w.q, w.k, w.v, w.f_a, w.g_a, w.b};
    QUARTET_CPU_ASSIGN(op->from_x_,
                       PackedLinear::Make(context, stack, kF16, "KDA q, k, v, f_a, g_a, b"));
    QUARTET_CPU_ASSIGN(op->f_b_, PackedLinear::Make(context, {&w.f_b, 1}, kF16, "KDA f_b"));
    QUARTET_CPU_ASSIGN(op->g_b_, PackedLinear::Make(context, {&w.g_b, 1}, kF16, "KDA g_b"));
    QUARTET_CPU_ASSIGN(op->taps_, UploadTaps(w, context));
    QUARTET_CPU_ASSIGN(std::vector<float> scale, cpu::Widen(w.a_log, w.heads, "KDA A_log"));
    for (float& a : scale) a = std::exp(a);
    QUARTET_CPU_ASSIGN(op->gate_scale_, UploadBytes(context, scale.data(),
                                                    scale.size() * sizeof(float), "KDA A_log"));
    QUARTET_CPU_ASSIGN(op->dt_bias_, UploadF32(context, w.dt_bias, width, "KDA dt_bias"));
    QUARTET_CPU_ASSIGN(op->rows_kernel_, FindKdaKernel(context, "kda_project_rows", w.head_dim));
    QUARTET_CPU_ASSIGN(op->commit_kernel_, FindKdaKernel(context, "kda_commit", w.head_dim));
    QUARTET_CPU_RETURN(op->PrepareDecode(w));
    return op;
  }

  size_t WorkspaceBytes(int max_rows) const override {
    WorkspaceCutter cutter;
    cutter.Take<float>(max_rows * Stride());
    return cutter.used() + std::max({from_x_.WorkspaceBytes(max_rows),
                                     f_b_.WorkspaceBytes(max_rows), g_b_.WorkspaceBytes(max_rows)});
  }

  void Run(const float* x, std::span<const ops::Segment> segments, int rows, ops::KdaState state,
           ops::KdaInputs out, ops::Workspace workspace) const override {
    const int64_t first = segments.front().row_begin;
    WorkspaceCutter cutter(workspace.data);
    float* u = cutter.Take<float>((first + rows) * Stride());
    float* u_first = u + first * Stride();
    const ops::Workspace rest = {cutter.rest(), workspace.bytes - cutter.used()};
    const int64_t width = static_cast<int64_t>(heads_) * dim_;
    from_x_.Run(x + first * from_x_.in(), from_x_.in(), rows, u_first, Stride(), rest);
    const KdaProjectParams params = {
        .segments = MakeKdaSegments(*context_, segments),
        .u = u,
        .u_stride = Stride(),
        .conv = state.conv,
        .conv_slot_stride = state.conv_slot_stride,
        .ring = ConvRing(state.window),
        .taps = taps_.as<float>(),
        .gate_scale = gate_scale_.as<float>(),
        .dt_bias = dt_bias_.as<float>(),
        .gate_weights = gate_weights_.as<uint16_t>(),
        .q = out.q,
        .k = out.k,
        .v = out.v,
        .g = out.g,
        .beta = out.beta,
        .gate = out.gate,
        .heads = heads_,
        .dim = dim_,
        .rank = rank_,
        .history = history_,
        .lower_bound = lower_bound_,
        .query_scale = 1.0f / std::sqrt(static_cast<float>(dim_)),
        .conv_blocks = static_cast<int32_t>(CeilDiv(3 * WarpsOfHeads(heads_, dim_), kWarps)),
    };
    if (decode_kernel_ != nullptr && rows <= kKdaDecodeRows && first == 0) {
      const unsigned blocks =
          params.conv_blocks * params.segments.count + CeilDiv(2 * width, kKdaGateRows);
      context_->device->Launch(decode_kernel_, {.grid_x = blocks, .threads = kThreads}, params);
      return;
    }
    f_b_.Run(u_first + 3 * width, Stride(), rows, out.g + first * width, width, rest);
    g_b_.Run(u_first + 3 * width + rank_, Stride(), rows, out.gate + first * width, width, rest);
    context_->device->Launch(
        rows_kernel_,
        {.grid_x = CeilDiv(4 * WarpsOfHeads(heads_, dim_), kWarps),
         .grid_y = static_cast<unsigned>(MaxTiles(params.segments, kKdaTileRows)),
         .threads = kThreads},
        params);
  }

  void Commit(std::span<const ops::Segment> segments, ops::KdaState state) const override {
    const KdaCommitParams params = {.segments = MakeKdaSegments(*context_, segments),
                                    .conv = state.conv,
                                    .conv_slot_stride = state.conv_slot_stride,
                                    .ring = ConvRing(state.window),
                                    .heads = heads_,
                                    .dim = dim_,
                                    .history = history_};
    context_->device->Launch(commit_kernel_,
                             {.grid_x = CeilDiv(3 * WarpsOfHeads(heads_, dim_), kWarps),
                              .grid_y = static_cast<unsigned>(segments.size()),
                              .threads = kThreads},
                             params);
  }

 private:
  static KdaConvRing ConvRing(const ops::KdaWindow& window) {
    return {window.conv, window.slot_stride, window.rows};
  }

  // The decode kernel multiplies by f_b and g_b itself, where they are dense: two launches fewer,
  // but sums in an order of its own.
  absl::Status PrepareDecode(const ops::KdaWeights& w) {
    const auto* f_b = std::get_if<ops::DenseMatrix>(&w.f_b);
    const auto* g_b = std::get_if<ops::DenseMatrix>(&w.g_b);
    if (f_b == nullptr || g_b == nullptr || rank_ % 8 != 0 || rank_ > kKdaMaxGateRank ||
        context_->batch_invariant) {
      return absl::OkStatus();
    }
    QUARTET_CPU_ASSIGN(std::vector<uint16_t> both, ToF16(*f_b, "KDA f_b"));
    QUARTET_CPU_ASSIGN(const std::vector<uint16_t> second, ToF16(*g_b, "KDA g_b"));
    both.insert(both.end(), second.begin(), second.end());
    QUARTET_CPU_ASSIGN(gate_weights_, UploadBytes(*context_, both.data(),
                                                  both.size() * sizeof(uint16_t), "KDA f_b, g_b"));
    QUARTET_CPU_ASSIGN(decode_kernel_, FindKdaKernel(*context_, "kda_project_decode", dim_));
    return absl::OkStatus();
  }

  // Floats between rows of u: [q, k, v, f_a, g_a, b], rows on 16 bytes.
  int64_t Stride() const { return (from_x_.out() + 3) / 4 * 4; }

  Context* context_ = nullptr;
  PackedLinear from_x_, f_b_, g_b_;
  Buffer taps_;          // [kKdaTaps, 3, D]
  Buffer gate_scale_;    // [n]
  Buffer dt_bias_;       // [D]
  Buffer gate_weights_;  // FP16 [2 D, rank]
  const Kernel* rows_kernel_ = nullptr;
  const Kernel* commit_kernel_ = nullptr;
  const Kernel* decode_kernel_ = nullptr;  // see PrepareDecode
  int heads_ = 0, dim_ = 0, rank_ = 0, history_ = 0;
  float lower_bound_ = 0.0f;
};

class KdaOutputOp final : public ops::KdaOutput {
 public:
  static absl::StatusOr<std::unique_ptr<ops::KdaOutput>> Prepare(const ops::KdaWeights& w,
                                                                 Context& context) {
    QUARTET_CPU_RETURN(CheckKdaHeads(w.heads, w.head_dim));
    QUARTET_CPU_RETURN(cpu::CheckShape("KDA o", cpu::OutFeatures(w.o), cpu::InFeatures(w.o),
                                       cpu::OutFeatures(w.o),
                                       static_cast<int64_t>(w.heads) * w.head_dim));
    auto op = std::make_unique<KdaOutputOp>();
    QUARTET_CPU_ASSIGN(op->norm_, UploadF32(context, w.o_norm, w.head_dim, "KDA o_norm"));
    QUARTET_CPU_ASSIGN(op->o_, PackedLinear::Make(context, {&w.o, 1}, kF16, "KDA o"));
    QUARTET_CPU_ASSIGN(op->kernel_, FindKdaKernel(context, "kda_norm", w.head_dim));
    op->context_ = &context;
    op->heads_ = w.heads;
    op->dim_ = w.head_dim;
    op->eps_ = w.norm_eps;
    return op;
  }

  size_t WorkspaceBytes(int max_rows) const override {
    WorkspaceCutter cutter;
    cutter.Take<float>(max_rows * o_.in());
    return cutter.used() + o_.WorkspaceBytes(max_rows);
  }

  void Run(const float* o, const float* gate, int rows, float* partial,
           ops::Workspace workspace) const override {
    WorkspaceCutter cutter(workspace.data);
    float* y = cutter.Take<float>(rows * o_.in());
    const KdaNormParams params = {.o = o,
                                  .gate = gate,
                                  .norm = norm_.as<float>(),
                                  .y = y,
                                  .vectors = static_cast<int64_t>(rows) * heads_,
                                  .dim = dim_,
                                  .eps = eps_};
    context_->device->Launch(
        kernel_,
        {.grid_x = CeilDiv(params.vectors, kWarps * (128 / KdaWidth(dim_))), .threads = kThreads},
        params);
    o_.Run(y, o_.in(), rows, partial, o_.out(), {cutter.rest(), workspace.bytes - cutter.used()});
  }

 private:
  Context* context_ = nullptr;
  PackedLinear o_;
  Buffer norm_;  // [d]
  const Kernel* kernel_ = nullptr;
  int heads_ = 0, dim_ = 0;
  float eps_ = 0.0f;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ops::KdaProject>> PrepareKdaProjectOp(const ops::KdaWeights& weights,
                                                                     Context& context) {
  return KdaProjectOp::Prepare(weights, context);
}

absl::StatusOr<std::unique_ptr<ops::KdaOutput>> PrepareKdaOutputOp(const ops::KdaWeights& weights,
                                                                   Context& context) {
  return KdaOutputOp::Prepare(weights, context);
}

}  // namespace quartet::cuda
