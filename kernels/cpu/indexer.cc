#include <algorithm>
#include <cassert>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "kernels/cpu/dsa.h"
#include "kernels/cpu/kv.h"
#include "kernels/cpu/linear.h"
#include "kernels/cpu/memory.h"
#include "kernels/cpu/simd.h"

namespace quartet::cpu {
namespace {

// Pool keys widened at a time.
constexpr size_t kKeyBlock = 64;
constexpr size_t kParallelMacs = 400'000;

class IndexerSelectOp : public ops::IndexerSelect {
 public:
  IndexerSelectOp(const ops::IndexerWeights& weights, LinearOp wq_b, const Context& context)
      : wq_b_(std::move(wq_b)),
        heads_(static_cast<size_t>(weights.heads)),
        dim_(static_cast<size_t>(weights.dim)),
        kpool_(weights.kpool),
        topk_(weights.topk_pools),
        context_(context) {}

  size_t WorkspaceBytes(int max_rows, int max_context) const override {
    Arena arena;
    TakeQueries(arena, static_cast<size_t>(max_rows));
    for (int t = 0; t < context_.pool->threads(); ++t) {
      Take(arena, static_cast<size_t>(max_context / kpool_));
    }
    return arena.used();
  }

  void Run(const ops::DsaQueries& queries, std::span<const ops::Segment> segments, ops::KvLayer kv,
           ops::Selection out, ops::Workspace workspace) const override {
    size_t rows = 0;
    for (const ops::Segment& s : segments) rows += static_cast<size_t>(s.rows);
    Arena shared(workspace);
    const Queries own = TakeQueries(shared, rows);
    wq_b_.Run(queries.latent, static_cast<size_t>(wq_b_.in()), rows, own.q, heads_ * dim_,
              own.scratch, context_.pool);
    const size_t threads_at = shared.used();
    // The scratch of a thread is sized for the longest sequence of this call.
    int most = 0;
    for (const ops::Segment& s : segments) most = std::max(most, (s.position + s.rows) / kpool_);
    const size_t max_pools = static_cast<size_t>(most);
    Arena measure;
    Take(measure, max_pools);
    const size_t thread_bytes = measure.used();
    for (const ops::Segment& segment : segments) {
      const size_t count = static_cast<size_t>(segment.rows);
      context_.pool->For(count, 1, count * max_pools * heads_ * dim_ >= kParallelMacs,
                         [&](size_t begin, size_t end, int part) {
                           const size_t at = threads_at + static_cast<size_t>(part) * thread_bytes;
                           assert(at + thread_bytes <= workspace.bytes);
                           Arena arena(ops::Workspace{workspace.data + at, thread_bytes});
                           const Buffers buffers = Take(arena, max_pools);
                           for (size_t t = begin; t < end; ++t)
                             Row(own.q, queries.index_w, segment, t, kv, out, buffers);
                         });
    }
  }

 private:
  struct Queries {
    float* q;  // [rows, heads, dim]
    float* scratch;
  };
  struct Buffers {
    float* keys;    // [64, dim]
    float* dots;    // [heads]
    float* scores;  // [pools]
    int32_t* order;
  };

  Queries TakeQueries(Arena& arena, size_t rows) const {
    Queries queries;
    queries.q = arena.Floats(rows * heads_ * dim_);
    queries.scratch = arena.Floats(wq_b_.ScratchFloats(rows));
    return queries;
  }

  Buffers Take(Arena& arena, size_t pools) const {
    Buffers buffers;
    buffers.keys = arena.Floats(kKeyBlock * dim_);
    buffers.dots = arena.Floats(heads_);
    buffers.scores = arena.Floats(pools);
    buffers.order = arena.Ints(pools);
    return buffers;
  }

  void Row(const float* q, const float* w, const ops::Segment& segment, size_t t,
           const ops::KvLayer& kv, const ops::Selection& out, const Buffers& buffers) const {
    const size_t row = static_cast<size_t>(segment.row_begin) + t;
    const int position = segment.position + static_cast<int>(t);
    const int candidates = (position + 1) / kpool_;
    int32_t* selected = out.pools + row * static_cast<size_t>(topk_);
    float margin = std::numeric_limits<float>::infinity();
    if (candidates <= topk_) {
      // Everything visible is taken, whatever its score.
      std::iota(selected, selected + candidates, 0);
      out.counts[row] = candidates;
    } else {
      const Stored type = PoolKeyType(kv.dtype);
      const size_t count = static_cast<size_t>(candidates);
      for (size_t first = 0; first < count; first += kKeyBlock) {
        const size_t n = std::min(kKeyBlock, count - first);
        for (size_t m = 0; m < n; ++m) {
          LoadRow(type,
                  PoolKeyRow(kv, segment.pages, static_cast<int64_t>(first + m), kpool_,
                             static_cast<int64_t>(dim_)),
                  dim_, *context_.e4m3, buffers.keys + m * dim_);
        }
        IndexScores(q + row * heads_ * dim_, w + row * heads_, heads_, dim_, buffers.keys, n,
                    buffers.dots, buffers.scores + first);
      }
      out.counts[row] =
          SelectPools(buffers.scores, candidates, topk_, buffers.order, selected, &margin);
    }
    if (out.margins != nullptr) out.margins[row] = margin;
  }

  LinearOp wq_b_;
  size_t heads_, dim_;
  int kpool_, topk_;
  Context context_;
};

}  // namespace

void IndexScores(const float* q, const float* w, size_t heads, size_t dim, const float* keys,
                 size_t count, float* scratch, float* scores) {
  const float scale = 1.0f / std::sqrt(static_cast<float>(dim));
  for (size_t m = 0; m < count; ++m) {
    DotRows(keys + m * dim, q, dim, heads, dim, scale, scratch);
    float score = 0.0f;
    for (size_t h = 0; h < heads; ++h) score += w[h] * std::max(scratch[h], 0.0f);
    scores[m] = score;
  }
}

int SelectPools(const float* scores, int count, int keep, int32_t* order, int32_t* selected,
                float* margin) {
  const auto value = [&](int32_t m) {
    return std::isnan(scores[m]) ? -std::numeric_limits<float>::infinity() : scores[m];
  };
  const auto better = [&](int32_t a, int32_t b) {
    const float left = value(a);
    const float right = value(b);
    return left != right ? left > right : a < b;
  };
  *margin = std::numeric_limits<float>::infinity();
  const int taken = std::min(count, keep);
  std::iota(order, order + count, 0);
  if (taken < count && taken > 0) {
    std::nth_element(order, order + taken, order + count, better);
    const int32_t worst = *std::max_element(order, order + taken, better);
    *margin = value(worst) - value(order[taken]);
  }
  std::copy(order, order + taken, selected);
  std::sort(selected, selected + taken);
  return taken;
}

absl::StatusOr<std::unique_ptr<ops::IndexerSelect>> PrepareIndexerSelectOp(
    const ops::IndexerWeights& weights, const Context& context) {
  if (weights.heads < 1 || weights.dim < 1 || weights.kpool < 1 || weights.topk_pools < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("indexer: ", weights.heads, " heads of ", weights.dim, ", pools of ",
                     weights.kpool, ", the best ", weights.topk_pools, "; all must be positive"));
  }
  QUARTET_CPU_RETURN(CheckShape("indexer wq_b", OutFeatures(weights.wq_b), InFeatures(weights.wq_b),
                                int64_t{weights.heads} * weights.dim, InFeatures(weights.wq_b)));
  QUARTET_CPU_ASSIGN(LinearOp wq_b, LinearOp::Prepare(weights.wq_b, "indexer wq_b", context));
  return std::make_unique<IndexerSelectOp>(weights, std::move(wq_b), context);
}

}  // namespace quartet::cpu
