#include <algorithm>
#include <cassert>
#include <cmath>
#include <cstring>

#include "kernels/cpu/kda.h"
#include "kernels/cpu/memory.h"
#include "kernels/cpu/simd.h"

namespace quartet::cpu {
namespace {

constexpr size_t kChunk = 64;
constexpr size_t kBlock = 16;
constexpr size_t kBlocks = kChunk / kBlock;
constexpr size_t kPivot = 7;  // the row of a block whose cumulative log counts as zero
constexpr size_t kParallelFloats = 32'768;

class KdaRecurrenceOp : public ops::KdaRecurrence {
 public:
  KdaRecurrenceOp(int heads, int dim, const Context& context)
      : heads_(static_cast<size_t>(heads)), dim_(static_cast<size_t>(dim)), context_(context) {}

  size_t WorkspaceBytes(int max_rows) const override {
    return static_cast<size_t>(context_.pool->threads()) * ThreadBytes();
  }

  void Step(const ops::KdaInputs& in, std::span<const ops::Segment> segments, ops::KdaState state,
            float* o, ops::Workspace workspace) const override {
    ForHeads(
        segments, state, workspace,
        [&](const ops::Segment& segment, size_t head, float* s, float* scratch) {
          Walk walk = TakeWalk(scratch);
          CommitHead(segment, head, state.window, s, walk);
          const Ring ring = {state.window, segment.slot, heads_, dim_};
          if (segment.window) {
            std::copy_n(s, dim_ * dim_, walk.state);
            s = walk.state;
          }
          const size_t width = heads_ * dim_;
          for (int t = 0; t < segment.rows; ++t) {
            const size_t row = static_cast<size_t>(segment.row_begin + t);
            const size_t at = row * width + head * dim_;
            const Token token = {in.k + at, in.v + at, in.g + at, in.beta + row * heads_ + head};
            if (segment.window) ring.Keep(segment.position + t, head, token);
            StepHead(token, in.q + at, s, walk, o + at);
          }
        });
  }

  void Commit(std::span<const ops::Segment> segments, ops::KdaState state,
              ops::Workspace workspace) const override {
    ForHeads(segments, state, workspace,
             [&](const ops::Segment& segment, size_t head, float* s, float* scratch) {
               CommitHead(segment, head, state.window, s, TakeWalk(scratch));
             });
  }

  void Chunked(const ops::KdaInputs& in, std::span<const ops::Segment> segments,
               ops::KdaState state, float* o, ops::Workspace workspace) const override {
    ForHeads(segments, state, workspace,
             [&](const ops::Segment& segment, size_t head, float* s, float* scratch) {
               const size_t rows = static_cast<size_t>(segment.rows);
               for (size_t t = 0; t < rows; t += kChunk) {
                 ChunkHead(in, static_cast<size_t>(segment.row_begin) + t,
                           std::min(kChunk, rows - t), head, s, o, scratch);
               }
             });
  }

 private:
  // What one head's state absorbs of one token.
  struct Token {
    const float* k;  // [d]
    const float* v;  // [d]
    const float* g;  // [d]
    const float* beta;
  };

  // A slot's ring.
  struct Ring {
    const ops::KdaWindow& window;
    int slot;
    size_t heads, dim;

    size_t Head(int position, size_t head) const {
      return static_cast<size_t>(position % window.rows) * heads + head;
    }
    float* In(float* part) const { return part + slot * window.slot_stride; }
    Token At(int position, size_t head) const {
      const size_t at = Head(position, head);
      return {In(window.k) + at * dim, In(window.v) + at * dim, In(window.g) + at * dim,
              In(window.beta) + at};
    }
    void Keep(int position, size_t head, const Token& token) const {
      const size_t at = Head(position, head);
      std::copy_n(token.k, dim, In(window.k) + at * dim);
      std::copy_n(token.v, dim, In(window.v) + at * dim);
      std::copy_n(token.g, dim, In(window.g) + at * dim);
      In(window.beta)[at] = *token.beta;
    }
  };

  // One thread's scratch for one head's walk.
  struct Walk {
    float* decay;   // [d]
    float* output;  // [d], of tokens whose output nobody wants
    float* state;   // [d, d], of a window
  };

  Walk TakeWalk(Arena& arena) const {
    Walk walk;
    walk.decay = arena.Floats(dim_);
    walk.output = arena.Floats(dim_);
    walk.state = arena.Floats(dim_ * dim_);
    return walk;
  }
  Walk TakeWalk(float* scratch) const {
    Arena arena(ops::Workspace{reinterpret_cast<std::byte*>(scratch), ThreadBytes()});
    return TakeWalk(arena);
  }

  void StepHead(const Token& token, const float* q, float* s, const Walk& walk, float* o) const {
    for (size_t c = 0; c < dim_; ++c) walk.decay[c] = std::exp(token.g[c]);
    KdaStepHead(s, dim_, q, token.k, token.v, walk.decay, *token.beta, o);
  }

  void CommitHead(const ops::Segment& segment, size_t head, const ops::KdaWindow& window, float* s,
                  const Walk& walk) const {
    assert(segment.commit + (segment.window ? segment.rows : 0) <= window.rows);
    const Ring ring = {window, segment.slot, heads_, dim_};
    for (int p = segment.position - segment.commit; p < segment.position; ++p) {
      const Token token = ring.At(p, head);
      StepHead(token, token.k, s, walk, walk.output);
    }
  }

  // One thread's scratch for one head's chunk.
  struct Chunk {
    float* before;   // [64, d] exp(G_i - G at the block's start), <= 1
    float* after;    // [64, d] exp(G at the block's end - G_i), <= 1
    float* total;    // [4, d] exp(G over the whole block)
    float* left_k;   // [16, d] rows' side of a product
    float* left_q;   // [16, d]
    float* right_k;  // [16, d] columns' side
    float* a;        // [64, 64] beta_i sum_c k_i k_j exp(G_i - G_j), j < i
    float* m;        // [64, 64] sum_c q_i k_j exp(G_i - G_j), j <= i
    float* u;        // [64, d]
    float* faded;    // [d]
    float* sum;      // [d]
  };

  Chunk Take(Arena& arena) const {
    Chunk chunk;
    chunk.before = arena.Floats(kChunk * dim_);
    chunk.after = arena.Floats(kChunk * dim_);
    chunk.total = arena.Floats(kBlocks * dim_);
    chunk.left_k = arena.Floats(kBlock * dim_);
    chunk.left_q = arena.Floats(kBlock * dim_);
    chunk.right_k = arena.Floats(kBlock * dim_);
    chunk.a = arena.Floats(kChunk * kChunk);
    chunk.m = arena.Floats(kChunk * kChunk);
    chunk.u = arena.Floats(kChunk * dim_);
    chunk.faded = arena.Floats(dim_);
    chunk.sum = arena.Floats(dim_);
    return chunk;
  }

  // Of either form.
  size_t ThreadBytes() const {
    Arena walk, chunk;
    TakeWalk(walk);
    Take(chunk);
    return std::max(walk.used(), chunk.used());
  }

  // Heads of a segment are independent of each other; threads share them out.
  template <class Fn>
  void ForHeads(std::span<const ops::Segment> segments, ops::KdaState state,
                const ops::Workspace& workspace, Fn fn) const {
    assert(workspace.bytes >= WorkspaceBytes(0));
    size_t rows = 0;
    for (const ops::Segment& segment : segments) {
      rows += static_cast<size_t>(segment.rows + segment.commit);
    }
    const size_t thread_bytes = ThreadBytes();
    context_.pool->For(segments.size() * heads_, 1, rows * heads_ * dim_ * dim_ >= kParallelFloats,
                       [&](size_t begin, size_t end, int part) {
                         float* scratch = reinterpret_cast<float*>(
                             workspace.data + static_cast<size_t>(part) * thread_bytes);
                         for (size_t i = begin; i < end; ++i) {
                           const ops::Segment& segment = segments[i / heads_];
                           const size_t head = i % heads_;
                           float* s = state.recurrent + segment.slot * state.recurrent_slot_stride +
                                      head * dim_ * dim_;
                           if (segment.position == segment.commit) {
                             std::fill_n(s, dim_ * dim_, 0.0f);
                           }
                           fn(segment, head, s, scratch);
                         }
                       });
  }

  // Up to 64 tokens of one head. With G the cumulative log decay and S0 the state on entry:
  //   u_i = beta_i (v_i - (k_i e^{G_i})^T S0) - sum_{j<i} a_ij u_j     (that is, (I + A)^-1 ..
  //   solved
  //                                                                     from the top)
  //   o_i = (q_i e^{G_i})^T S0 + sum_{j<=i} m_ij u_j
  //   S'  = e^{G_last} S0 + sum_j (k_j e^{G_last - G_j}) u_j^T
  void ChunkHead(const ops::KdaInputs& in, size_t row0, size_t n, size_t head, float* s, float* o,
                 float* scratch) const {
    Arena arena(ops::Workspace{reinterpret_cast<std::byte*>(scratch), ThreadBytes()});
    const Chunk chunk = Take(arena);
    const size_t width = heads_ * dim_;
    const auto at = [&](const float* base, size_t i) {
      return base + (row0 + i) * width + head * dim_;
    };
    const size_t blocks = (n + kBlock - 1) / kBlock;
    for (size_t b = 0; b < blocks; ++b) {
      BlockDecays(in, row0, head, b * kBlock, std::min(n, (b + 1) * kBlock), chunk);
    }
    for (size_t b = 0; b < blocks; ++b) {
      const size_t rows_end = std::min(n, (b + 1) * kBlock);
      DiagonalBlock(in, row0, head, b * kBlock, rows_end, chunk);
      for (size_t below = 0; below < b; ++below) {
        OffDiagonalBlock(in, row0, head, b, below, rows_end, chunk);
      }
    }
    // Decay from the chunk's start to the start of the current block.
    std::fill_n(chunk.faded, dim_, 1.0f);
    for (size_t i = 0; i < n; ++i) {
      if (i > 0 && i % kBlock == 0) {
        const float* total = chunk.total + (i / kBlock - 1) * dim_;
        for (size_t c = 0; c < dim_; ++c) chunk.faded[c] *= total[c];
      }
      float* k = chunk.left_k;
      float* q = chunk.left_q;
      for (size_t c = 0; c < dim_; ++c) {
        const float decay = chunk.faded[c] * chunk.before[i * dim_ + c];
        k[c] = at(in.k, i)[c] * decay;
        q[c] = at(in.q, i)[c] * decay;
      }
      float* u = chunk.u + i * dim_;
      const float* v = at(in.v, i);
      const float beta = in.beta[(row0 + i) * heads_ + head];
      WeightedSum(k, s, dim_, dim_, dim_, chunk.sum);
      for (size_t c = 0; c < dim_; ++c) u[c] = beta * (v[c] - chunk.sum[c]);
      WeightedSum(chunk.a + i * kChunk, chunk.u, dim_, i, dim_, chunk.sum);
      for (size_t c = 0; c < dim_; ++c) u[c] -= beta * chunk.sum[c];
      float* out = o + (row0 + i) * width + head * dim_;
      WeightedSum(q, s, dim_, dim_, dim_, out);
      WeightedSum(chunk.m + i * kChunk, chunk.u, dim_, i + 1, dim_, chunk.sum);
      for (size_t c = 0; c < dim_; ++c) out[c] += chunk.sum[c];
    }
    for (size_t c = 0; c < dim_; ++c) {
      float decay = 1.0f;
      for (size_t b = 0; b < blocks; ++b) decay *= chunk.total[b * dim_ + c];
      for (size_t i = 0; i < dim_; ++i) s[c * dim_ + i] *= decay;
    }
    std::fill_n(chunk.faded, dim_, 1.0f);  // now from the end of the current block to the end
    for (size_t b = blocks; b-- > 0;) {
      for (size_t i = b * kBlock; i < std::min(n, (b + 1) * kBlock); ++i) {
        const float* k = at(in.k, i);
        for (size_t c = 0; c < dim_; ++c) {
          Axpy(k[c] * chunk.after[i * dim_ + c] * chunk.faded[c], chunk.u + i * dim_, s + c * dim_,
               dim_);
        }
      }
      for (size_t c = 0; c < dim_; ++c) chunk.faded[c] *= chunk.total[b * dim_ + c];
    }
  }

  // Decays of rows [begin, end) relative to their block's own boundaries.
  void BlockDecays(const ops::KdaInputs& in, size_t row0, size_t head, size_t begin, size_t end,
                   const Chunk& chunk) const {
    const size_t width = heads_ * dim_;
    const float* g = in.g + row0 * width + head * dim_;
    float* total = chunk.total + begin / kBlock * dim_;
    for (size_t c = 0; c < dim_; ++c) {
      float sum = 0.0f;
      for (size_t i = begin; i < end; ++i) {
        sum += g[i * width + c];
        chunk.before[i * dim_ + c] = std::exp(sum);
      }
      total[c] = std::exp(sum);
      sum = 0.0f;
      for (size_t i = end; i-- > begin;) {
        chunk.after[i * dim_ + c] = std::exp(sum);
        sum += g[i * width + c];
      }
    }
  }

  // Products inside one block. The cumulative log counts from a row in the middle, so that both
  // factors stay within e^{+-40} at the decay bound of -5 a token.
  void DiagonalBlock(const ops::KdaInputs& in, size_t row0, size_t head, size_t begin, size_t end,
                     const Chunk& chunk) const {
    const size_t width = heads_ * dim_;
    const size_t base = row0 * width + head * dim_;
    const float* g = in.g + base;
    const size_t rows = end - begin;
    const size_t pivot = std::min(begin + kPivot, end - 1);
    for (size_t c = 0; c < dim_; ++c) {
      float sum = 0.0f;
      for (size_t i = pivot; i < end; ++i) {
        if (i > pivot) sum += g[i * width + c];
        Scale(in, base, width, begin, i, c, sum, chunk);
      }
      sum = 0.0f;
      for (size_t i = pivot; i-- > begin;) {
        sum -= g[(i + 1) * width + c];
        Scale(in, base, width, begin, i, c, sum, chunk);
      }
    }
    for (size_t i = 0; i < rows; ++i) {
      float* a = chunk.a + (begin + i) * kChunk + begin;
      float* m = chunk.m + (begin + i) * kChunk + begin;
      DotRows(chunk.left_k + i * dim_, chunk.right_k, dim_, i, dim_, 1.0f, a);
      DotRows(chunk.left_q + i * dim_, chunk.right_k, dim_, i + 1, dim_, 1.0f, m);
    }
  }

  void Scale(const ops::KdaInputs& in, size_t base, size_t width, size_t begin, size_t i, size_t c,
             float log, const Chunk& chunk) const {
    const size_t from = base + i * width + c;
    const size_t to = (i - begin) * dim_ + c;
    const float grow = std::exp(log);
    chunk.left_k[to] = in.k[from] * grow;
    chunk.left_q[to] = in.q[from] * grow;
    chunk.right_k[to] = in.k[from] * std::exp(-log);
  }

  // Products of the rows of block `b` with the columns of an earlier block: the end of the earlier
  // one is the pivot, so every factor is at most 1 and what underflows is nothing.
  void OffDiagonalBlock(const ops::KdaInputs& in, size_t row0, size_t head, size_t b,
                        size_t earlier, size_t end, const Chunk& chunk) const {
    const size_t width = heads_ * dim_;
    const size_t base = row0 * width + head * dim_;
    const size_t begin = b * kBlock;
    const size_t columns = earlier * kBlock;
    for (size_t i = 0; i < kBlock; ++i) {
      for (size_t c = 0; c < dim_; ++c) {
        chunk.right_k[i * dim_ + c] =
            in.k[base + (columns + i) * width + c] * chunk.after[(columns + i) * dim_ + c];
      }
    }
    for (size_t i = begin; i < end; ++i) {
      for (size_t c = 0; c < dim_; ++c) {
        float decay = chunk.before[i * dim_ + c];
        for (size_t between = earlier + 1; between < b; ++between) {
          decay *= chunk.total[between * dim_ + c];
        }
        chunk.left_k[c] = in.k[base + i * width + c] * decay;
        chunk.left_q[c] = in.q[base + i * width + c] * decay;
      }
      DotRows(chunk.left_k, chunk.right_k, dim_, kBlock, dim_, 1.0f,
              chunk.a + i * kChunk + columns);
      DotRows(chunk.left_q, chunk.right_k, dim_, kBlock, dim_, 1.0f,
              chunk.m + i * kChunk + columns);
    }
  }

  size_t heads_, dim_;
  Context context_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ops::KdaRecurrence>> PrepareKdaRecurrenceOp(int heads, int head_dim,
                                                                           const Context& context) {
  if (heads < 1 || head_dim < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("KDA: ", heads, " heads of ", head_dim, "; both must be positive"));
  }
  return std::make_unique<KdaRecurrenceOp>(heads, head_dim, context);
}

}  // namespace quartet::cpu
