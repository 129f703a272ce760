#include <algorithm>
#include <cassert>
#include <cmath>
#include <utility>
#include <vector>

#include "kernels/cpu/dsa.h"
#include "kernels/cpu/kv.h"
#include "kernels/cpu/linear.h"
#include "kernels/cpu/memory.h"
#include "kernels/cpu/packed_matrix.h"

namespace quartet::cpu {
namespace {

constexpr size_t kParallelMacs = 400'000;

class SparseMlaOp : public ops::SparseMla {
 public:
  static absl::StatusOr<std::unique_ptr<ops::SparseMla>> Prepare(const ops::MlaWeights& mla,
                                                                 const ops::IndexerWeights& index,
                                                                 const Context& context) {
    auto op = std::make_unique<SparseMlaOp>();
    if (mla.heads < 1 || mla.nope_dim < 1 || mla.v_dim < 1 || index.kpool < 1 ||
        index.topk_pools < 1) {
      return absl::InvalidArgumentError(absl::StrCat(
          "MLA: ", mla.heads, " heads of ", mla.nope_dim, " and ", mla.v_dim, ", pools of ",
          index.kpool, ", the best ", index.topk_pools, "; all must be positive"));
    }
    QUARTET_CPU_RETURN(CheckShape("MLA q_b", OutFeatures(mla.q_b), InFeatures(mla.q_b),
                                  static_cast<int64_t>(mla.heads) * mla.nope_dim,
                                  OutFeatures(mla.q_a)));
    QUARTET_CPU_ASSIGN(op->q_b_, LinearOp::Prepare(mla.q_b, "MLA q_b", context));
    const int64_t rank = OutFeatures(mla.kv_a);
    const int64_t per_head = static_cast<int64_t>(mla.nope_dim) + mla.v_dim;
    QUARTET_CPU_RETURN(CheckShape("MLA kv_b", OutFeatures(mla.kv_b), InFeatures(mla.kv_b),
                                  mla.heads * per_head, rank));
    QUARTET_CPU_RETURN(CheckShape("MLA o", OutFeatures(mla.o), InFeatures(mla.o),
                                  OutFeatures(mla.o), static_cast<int64_t>(mla.heads) * mla.v_dim));
    QUARTET_CPU_ASSIGN(const std::vector<float> kv_b, WidenLinear(mla.kv_b, "MLA kv_b", context));
    for (int h = 0; h < mla.heads; ++h) {
      const float* head = kv_b.data() + h * per_head * rank;
      op->key_.push_back(PackedMatrix::FromColumns(head, rank, mla.nope_dim));
      op->value_.push_back(PackedMatrix::FromRows(head + mla.nope_dim * rank, mla.v_dim, rank));
    }
    QUARTET_CPU_ASSIGN(op->o_, LinearOp::Prepare(mla.o, "MLA o", context));
    op->heads_ = static_cast<size_t>(mla.heads);
    op->nope_ = static_cast<size_t>(mla.nope_dim);
    op->v_ = static_cast<size_t>(mla.v_dim);
    op->rank_ = static_cast<size_t>(rank);
    op->kpool_ = index.kpool;
    op->topk_ = index.topk_pools;
    op->context_ = context;
    return op;
  }

  size_t WorkspaceBytes(int max_rows, int max_context) const override {
    Arena arena;
    Take(arena, static_cast<size_t>(max_rows));
    for (int t = 0; t < context_.pool->threads(); ++t) TakeThread(arena, Positions(max_context));
    return arena.used();
  }

  void Run(const ops::DsaQueries& queries, const ops::Selection& selection,
           std::span<const ops::Segment> segments, int rows, ops::KvLayer kv, float* partial,
           ops::Workspace workspace) const override {
    const size_t count = static_cast<size_t>(rows);
    Arena arena(workspace);
    const Buffers buffers = Take(arena, count);
    // The widest selection of this call settles the thread buffers.
    int context = 0;
    for (const ops::Segment& s : segments) context = std::max(context, s.position + s.rows);
    const size_t positions = Positions(context);
    Arena measure;
    TakeThread(measure, positions);
    const size_t thread_bytes = measure.used();
    const size_t threads_at = arena.used();

    ThreadPool* pool = context_.pool;
    q_b_.Run(queries.latent, static_cast<size_t>(q_b_.in()), count, buffers.q, heads_ * nope_,
             buffers.scratch, pool);
    for (size_t h = 0; h < heads_; ++h) {
      key_[h].Multiply(buffers.q + h * nope_, heads_ * nope_, count, buffers.latent + h * rank_,
                       heads_ * rank_, pool);
    }
    for (const ops::Segment& segment : segments) {
      const size_t segment_rows = static_cast<size_t>(segment.rows);
      pool->For(segment_rows, 1, segment_rows * positions * heads_ * rank_ * 2 >= kParallelMacs,
                [&](size_t begin, size_t end, int part) {
                  const size_t at = threads_at + static_cast<size_t>(part) * thread_bytes;
                  assert(at + thread_bytes <= workspace.bytes);
                  Arena own(ops::Workspace{workspace.data + at, thread_bytes});
                  const ThreadBuffers mine = TakeThread(own, positions);
                  for (size_t t = begin; t < end; ++t) {
                    Row(selection, segment, t, kv, buffers.latent, mine);
                  }
                });
    }
    for (size_t h = 0; h < heads_; ++h) {
      value_[h].Multiply(buffers.latent + h * rank_, heads_ * rank_, count, buffers.out + h * v_,
                         heads_ * v_, pool);
    }
    o_.Run(buffers.out, heads_ * v_, count, partial, static_cast<size_t>(o_.out()), buffers.scratch,
           pool);
  }

 private:
  struct Buffers {
    float* q;       // [rows, n, nope]
    float* latent;  // [rows, n, r]: absorbed queries, then weighted latents
    float* out;     // [rows, n, v]
    float* scratch;
  };
  struct ThreadBuffers {
    float* latents;  // [positions, r] of one row's selection
    float* logits;   // [positions]
  };

  Buffers Take(Arena& arena, size_t rows) const {
    Buffers buffers;
    buffers.q = arena.Floats(rows * heads_ * nope_);
    buffers.latent = arena.Floats(rows * heads_ * rank_);
    buffers.out = arena.Floats(rows * heads_ * v_);
    buffers.scratch = arena.Floats(std::max(q_b_.ScratchFloats(rows), o_.ScratchFloats(rows)));
    return buffers;
  }

  ThreadBuffers TakeThread(Arena& arena, size_t positions) const {
    ThreadBuffers buffers;
    buffers.latents = arena.Floats(positions * rank_);
    buffers.logits = arena.Floats(positions);
    return buffers;
  }

  // The most positions that one row can attend to.
  size_t Positions(int max_context) const {
    return static_cast<size_t>(
        std::min<int64_t>(max_context, static_cast<int64_t>(topk_) * kpool_ + kpool_ - 1));
  }

  // Replaces the row's absorbed queries by sum_s a_s c_s.
  void Row(const ops::Selection& selection, const ops::Segment& segment, size_t t,
           const ops::KvLayer& kv, float* latent, const ThreadBuffers& mine) const {
    const size_t row = static_cast<size_t>(segment.row_begin) + t;
    const Stored type = LatentType(kv.dtype);
    size_t count = 0;
    const auto load = [&](int position) {
      LoadRow(type, LatentRow(kv, segment.pages, position, static_cast<int64_t>(rank_)), rank_,
              *context_.e4m3, mine.latents + count * rank_);
      ++count;
    };
    const int32_t* pools = selection.pools + row * static_cast<size_t>(topk_);
    for (int32_t i = 0; i < selection.counts[row]; ++i) {
      for (int j = 0; j < kpool_; ++j) load(pools[i] * kpool_ + j);
    }
    const int last = selection.tail_positions != nullptr ? selection.tail_positions[row]
                                                         : segment.position + static_cast<int>(t);
    for (int position = (last + 1) / kpool_ * kpool_; position <= last; ++position) load(position);

    const float scale = 1.0f / std::sqrt(static_cast<float>(nope_));
    for (size_t h = 0; h < heads_; ++h) {
      float* z = latent + (row * heads_ + h) * rank_;
      DotRows(z, mine.latents, rank_, count, rank_, scale, mine.logits);
      float largest = -INFINITY;
      for (size_t s = 0; s < count; ++s) largest = std::max(largest, mine.logits[s]);
      float sum = 0.0f;
      for (size_t s = 0; s < count; ++s) {
        mine.logits[s] = std::exp(mine.logits[s] - largest);
        sum += mine.logits[s];
      }
      WeightedSum(mine.logits, mine.latents, rank_, count, rank_, z);
      const float inverse = count == 0 ? 0.0f : 1.0f / sum;
      for (size_t i = 0; i < rank_; ++i) z[i] *= inverse;
    }
  }

  LinearOp q_b_;
  std::vector<PackedMatrix> key_;    // per head W_UK: q [nope] -> [r]
  std::vector<PackedMatrix> value_;  // per head W_UV: z [r] -> [v]
  LinearOp o_;
  size_t heads_ = 0, nope_ = 0, v_ = 0, rank_ = 0;
  int kpool_ = 0, topk_ = 0;
  Context context_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ops::SparseMla>> PrepareSparseMlaOp(
    const ops::MlaWeights& mla, const ops::IndexerWeights& indexer, const Context& context) {
  return SparseMlaOp::Prepare(mla, indexer, context);
}

}  // namespace quartet::cpu
