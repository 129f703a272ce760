#include <algorithm>
#include <cassert>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "kernels/cpu/convert.h"
#include "kernels/cpu/math.h"
#include "kernels/cpu/memory.h"
#include "kernels/cpu/mlp.h"

namespace quartet::cpu {
namespace {

constexpr size_t kParallelMacs = 1'000'000;
constexpr size_t kParallelFloats = 131'072;

class MoeOp : public ops::Moe {
 public:
  static absl::StatusOr<std::unique_ptr<ops::Moe>> Prepare(const ops::MoeWeights& w,
                                                           const Context& context) {
    auto op = std::make_unique<MoeOp>();
    const int64_t experts = static_cast<int64_t>(w.experts.size());
    const int64_t hidden = InFeatures(w.router);
    if (w.top_k < 1 || w.top_k > experts) {
      return absl::InvalidArgumentError(
          absl::StrCat("MoE: the best ", w.top_k, " of ", experts, " experts"));
    }
    QUARTET_CPU_RETURN(
        CheckShape("router", OutFeatures(w.router), InFeatures(w.router), experts, hidden));
    QUARTET_CPU_ASSIGN(op->router_, LinearOp::Prepare(w.router, "router", context));
    QUARTET_CPU_ASSIGN(op->bias_, Widen(w.correction_bias, experts, "router correction bias"));
    QUARTET_CPU_ASSIGN(op->shared_, MlpCore::Prepare(w.shared, "shared expert", context));
    op->experts_.reserve(w.experts.size());
    for (int64_t e = 0; e < experts; ++e) {
      const std::string name = absl::StrCat("expert ", e);
      QUARTET_CPU_ASSIGN(MlpCore core, MlpCore::Prepare(w.experts[e], name, context));
      QUARTET_CPU_RETURN(CheckShape(name, core.out(), core.in(), op->shared_.out(), hidden));
      op->experts_.push_back(std::move(core));
    }
    op->hidden_ = static_cast<size_t>(hidden);
    op->top_k_ = static_cast<size_t>(w.top_k);
    op->scaling_ = w.routed_scaling;
    op->context_ = context;
    return op;
  }

  size_t WorkspaceBytes(int max_rows) const override {
    Arena arena;
    Take(arena, static_cast<size_t>(max_rows));
    return arena.used();
  }

  void Run(const float* x, int rows, float* partial, ops::RouterTrace trace,
           ops::Workspace workspace) const override {
    const size_t count = static_cast<size_t>(rows);
    Arena arena(workspace);
    const Buffers b = Take(arena, count);
    RouteRows(x, count, b, trace);
    Sort(count, b);
    RunExperts(x, count, b);
    shared_.Run(x, count, partial, b.scratch, context_.pool);
    const size_t out = static_cast<size_t>(shared_.out());
    context_.pool->For(count, 1, count * top_k_ * out >= kParallelFloats,
                       [&](size_t begin, size_t end, int) {
                         for (size_t r = begin; r < end; ++r) Combine(r, out, b, partial);
                       });
  }

 private:
  // A slot is one (row, choice) pair, number row * top_k + choice.
  struct Buffers {
    float* logits;    // [rows, experts]
    float* scores;    // [threads, experts]
    float* weights;   // [slots]
    int32_t* expert;  // [slots]
    int32_t* begin;   // [experts + 1] where each expert's slots begin in the sorted order
    int32_t* order;   // [slots] slot numbers sorted by expert, then by number
    int32_t* place;   // [slots] the inverse
    float* outputs;   // [slots, hidden] in sorted order
    float* scratch;   // the router's and the shared expert's
    float* threads;   // per thread: gathered rows, then an expert's scratch
    size_t per_thread;
  };

  Buffers Take(Arena& arena, size_t rows) const {
    const size_t slots = rows * top_k_;
    const size_t threads = static_cast<size_t>(context_.pool->threads());
    const size_t block = std::min(rows, kMlpRows);
    Buffers b;
    b.logits = arena.Floats(rows * experts_.size());
    b.scores = arena.Floats(threads * experts_.size());
    b.weights = arena.Floats(slots);
    b.expert = arena.Ints(slots);
    b.begin = arena.Ints(experts_.size() + 1);
    b.order = arena.Ints(slots);
    b.place = arena.Ints(slots);
    b.outputs = arena.Floats(slots * static_cast<size_t>(shared_.out()));
    b.scratch = arena.Floats(std::max(router_.ScratchFloats(rows), shared_.ScratchFloats(rows)));
    size_t expert_scratch = 0;
    for (const MlpCore& core : experts_) {
      expert_scratch = std::max(expert_scratch, core.ScratchFloats(block));
    }
    b.per_thread = block * hidden_ + expert_scratch;
    b.threads = arena.Floats(threads * b.per_thread);
    return b;
  }

  void RouteRows(const float* x, size_t rows, const Buffers& b,
                 const ops::RouterTrace& trace) const {
    const size_t experts = experts_.size();
    router_.Run(x, hidden_, rows, b.logits, experts, b.scratch, context_.pool);
    context_.pool->For(rows, 1, rows * experts >= kParallelFloats,
                       [&](size_t begin, size_t end, int part) {
                         for (size_t r = begin; r < end; ++r) {
                           Route(b.logits + r * experts, bias_.data(), static_cast<int>(experts),
                                 static_cast<int>(top_k_), scaling_,
                                 b.scores + static_cast<size_t>(part) * experts,
                                 b.expert + r * top_k_, b.weights + r * top_k_);
                         }
                       });
    const size_t slots = rows * top_k_;
    if (trace.experts != nullptr) std::copy_n(b.expert, slots, trace.experts);
    if (trace.weights != nullptr) std::copy_n(b.weights, slots, trace.weights);
    if (trace.logits != nullptr) std::copy_n(b.logits, rows * experts, trace.logits);
  }

  void Sort(size_t rows, const Buffers& b) const {
    const size_t slots = rows * top_k_;
    std::fill_n(b.begin, experts_.size() + 1, 0);
    for (size_t i = 0; i < slots; ++i) ++b.begin[b.expert[i] + 1];
    for (size_t e = 0; e < experts_.size(); ++e) b.begin[e + 1] += b.begin[e];
    for (size_t i = 0; i < slots; ++i) {
      // Advances each expert's begin to its end; put back below.
      b.place[i] = b.begin[b.expert[i]]++;
      b.order[b.place[i]] = static_cast<int32_t>(i);
    }
    for (size_t e = experts_.size(); e > 0; --e) b.begin[e] = b.begin[e - 1];
    b.begin[0] = 0;
  }

  void RunExperts(const float* x, size_t rows, const Buffers& b) const {
    const size_t macs = rows * top_k_ * 3 * hidden_ * static_cast<size_t>(experts_[0].inner());
    // Which thread runs an expert, or whether all threads share one expert's products, changes no
    // bit of a row's result.
    const auto work = [&](int part, int parts) {
      float* gathered = b.threads + static_cast<size_t>(part) * b.per_thread;
      int turn = 0;
      for (size_t e = 0; e < experts_.size(); ++e) {
        if (b.begin[e] == b.begin[e + 1]) continue;
        if (turn++ % parts == part) RunExpert(x, e, b, gathered);
      }
    };
    if (macs >= kParallelMacs && rows * top_k_ > 1) {
      context_.pool->Run(work);
    } else {
      work(0, 1);
    }
  }

  void RunExpert(const float* x, size_t e, const Buffers& b, float* gathered) const {
    const MlpCore& core = experts_[e];
    const size_t end = static_cast<size_t>(b.begin[e + 1]);
    const size_t out = static_cast<size_t>(core.out());
    for (size_t first = static_cast<size_t>(b.begin[e]); first < end; first += kMlpRows) {
      const size_t rows = std::min(kMlpRows, end - first);
      for (size_t i = 0; i < rows; ++i) {
        const size_t row = static_cast<size_t>(b.order[first + i]) / top_k_;
        std::memcpy(gathered + i * hidden_, x + row * hidden_, hidden_ * sizeof(float));
      }
      core.RunBlock(gathered, rows, b.outputs + first * out, gathered + rows * hidden_,
                    context_.pool);
    }
  }

  // partial[row] holds the shared expert's output.
  void Combine(size_t row, size_t width, const Buffers& b, float* partial) const {
    float* y = partial + row * width;
    const size_t slot = row * top_k_;
    for (size_t c = 0; c < width; ++c) {
      float sum = 0.0f;
      for (size_t j = 0; j < top_k_; ++j) {
        sum += b.weights[slot + j] * b.outputs[static_cast<size_t>(b.place[slot + j]) * width + c];
      }
      y[c] = sum + y[c];
    }
  }

  LinearOp router_;
  std::vector<float> bias_;
  std::vector<MlpCore> experts_;
  MlpCore shared_;
  size_t hidden_ = 0, top_k_ = 0;
  float scaling_ = 1.0f;
  Context context_;
};

}  // namespace

void Route(const float* logits, const float* bias, int count, int top_k, float scaling,
           float* scores, int32_t* experts, float* weights) {
  constexpr float kTaken = -std::numeric_limits<float>::infinity();
  for (int e = 0; e < count; ++e) {
    const float choice = Sigmoid(logits[e]) + bias[e];
    // Below every number but above "taken", so that NaN rows still select top_k different experts.
    scores[e] =
        std::isnan(choice) || choice == kTaken ? std::numeric_limits<float>::lowest() : choice;
  }
  float sum = 0.0f;
  for (int j = 0; j < top_k; ++j) {
    int best = 0;
    for (int e = 1; e < count; ++e) {
      if (scores[e] > scores[best]) best = e;
    }
    experts[j] = best;
    weights[j] = Sigmoid(logits[best]);
    sum += weights[j];
    scores[best] = kTaken;
  }
  for (int j = 0; j < top_k; ++j) weights[j] = weights[j] / (sum + 1e-20f) * scaling;
}

absl::StatusOr<std::unique_ptr<ops::Moe>> PrepareMoeOp(const ops::MoeWeights& weights,
                                                       const Context& context) {
  return MoeOp::Prepare(weights, context);
}

}  // namespace quartet::cpu
