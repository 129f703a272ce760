#include "kernels/cpu/embedding.h"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <utility>
#include <vector>

#include "kernels/cpu/convert.h"
#include "kernels/cpu/linear.h"
#include "kernels/cpu/math.h"
#include "kernels/cpu/memory.h"

namespace quartet::cpu {
namespace {

class EmbeddingOp : public ops::Embedding {
 public:
  EmbeddingOp(std::vector<float> table, int64_t rows, int64_t width, int64_t vocab_begin)
      : table_(std::move(table)), rows_(rows), width_(width), begin_(vocab_begin) {}

  void Run(const int32_t* ids, int rows, float* x) const override {
    for (int r = 0; r < rows; ++r) {
      const int64_t local = ids[r] - begin_;
      float* to = x + r * width_;
      if (local < 0 || local >= rows_) {
        std::fill_n(to, width_, 0.0f);
      } else {
        std::copy_n(table_.data() + local * width_, width_, to);
      }
    }
  }

 private:
  std::vector<float> table_;
  int64_t rows_, width_, begin_;
};

class HeadOp : public ops::Head {
 public:
  HeadOp(LinearOp op, const Context& context) : op_(std::move(op)), context_(context) {}

  int64_t vocab_local() const override { return op_.out(); }
  size_t WorkspaceBytes(int max_rows) const override {
    return op_.ScratchFloats(static_cast<size_t>(max_rows)) * sizeof(float);
  }
  void Run(const float* h, int rows, float* logits, ops::Workspace workspace) const override {
    assert(workspace.bytes >= WorkspaceBytes(rows));
    op_.Run(h, static_cast<size_t>(op_.in()), static_cast<size_t>(rows), logits,
            static_cast<size_t>(op_.out()), reinterpret_cast<float*>(workspace.data),
            context_.pool);
  }

 private:
  LinearOp op_;
  Context context_;
};

class MtpEntryOp : public ops::MtpEntry {
 public:
  static absl::StatusOr<std::unique_ptr<ops::MtpEntry>> Prepare(const ops::MtpEntryWeights& w,
                                                                const Context& context) {
    auto op = std::make_unique<MtpEntryOp>();
    const int64_t hidden = w.enorm.weight.size;
    QUARTET_CPU_RETURN(CheckShape("eh_proj", OutFeatures(w.eh_proj), InFeatures(w.eh_proj),
                                  OutFeatures(w.eh_proj), 2 * hidden));
    QUARTET_CPU_ASSIGN(op->enorm_, Widen(w.enorm.weight, hidden, "enorm"));
    QUARTET_CPU_ASSIGN(op->hnorm_, Widen(w.hnorm.weight, hidden, "hnorm"));
    QUARTET_CPU_ASSIGN(op->eh_proj_, LinearOp::Prepare(w.eh_proj, "eh_proj", context));
    op->enorm_eps_ = w.enorm.eps;
    op->hnorm_eps_ = w.hnorm.eps;
    op->context_ = context;
    return op;
  }

  size_t WorkspaceBytes(int max_rows) const override {
    Arena arena;
    Take(arena, static_cast<size_t>(max_rows));
    return arena.used();
  }

  void Run(const float* embedding, const float* h, const int32_t* positions, int rows, float* x,
           ops::Workspace workspace) const override {
    const size_t count = static_cast<size_t>(rows);
    const size_t hidden = enorm_.size();
    Arena arena(workspace);
    const Buffers buffers = Take(arena, count);
    for (size_t r = 0; r < count; ++r) {
      float* row = buffers.both + r * 2 * hidden;
      if (positions[r] == 0) {
        std::fill_n(row, hidden, 0.0f);
      } else {
        RmsNormRow(embedding + r * hidden, enorm_.data(), hidden, enorm_eps_, row);
      }
      RmsNormRow(h + r * hidden, hnorm_.data(), hidden, hnorm_eps_, row + hidden);
    }
    eh_proj_.Run(buffers.both, 2 * hidden, count, x, static_cast<size_t>(eh_proj_.out()),
                 buffers.scratch, context_.pool);
  }

 private:
  struct Buffers {
    float* both;  // [rows, 2 hidden]
    float* scratch;
  };

  Buffers Take(Arena& arena, size_t rows) const {
    Buffers buffers;
    buffers.both = arena.Floats(rows * 2 * enorm_.size());
    buffers.scratch = arena.Floats(eh_proj_.ScratchFloats(rows));
    return buffers;
  }

  std::vector<float> enorm_, hnorm_;
  LinearOp eh_proj_;
  float enorm_eps_ = 0.0f, hnorm_eps_ = 0.0f;
  Context context_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ops::Embedding>> PrepareEmbeddingOp(
    const ops::EmbeddingWeights& weights, const Context& context) {
  QUARTET_CPU_ASSIGN(std::vector<float> table, Widen(weights.table, "embedding"));
  return std::make_unique<EmbeddingOp>(std::move(table), weights.table.rows, weights.table.cols,
                                       weights.vocab_begin);
}

absl::StatusOr<std::unique_ptr<ops::Head>> PrepareHeadOp(const ops::HeadWeights& weights,
                                                         const Context& context) {
  QUARTET_CPU_ASSIGN(LinearOp op, LinearOp::Prepare(weights.weight, "head", context));
  return std::make_unique<HeadOp>(std::move(op), context);
}

absl::StatusOr<std::unique_ptr<ops::MtpEntry>> PrepareMtpEntryOp(
    const ops::MtpEntryWeights& weights, const Context& context) {
  return MtpEntryOp::Prepare(weights, context);
}

}  // namespace quartet::cpu
