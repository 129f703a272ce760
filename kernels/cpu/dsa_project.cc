#include <algorithm>
#include <cassert>
#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

#include "kernels/cpu/convert.h"
#include "kernels/cpu/dsa.h"
#include "kernels/cpu/kv.h"
#include "kernels/cpu/linear.h"
#include "kernels/cpu/math.h"
#include "kernels/cpu/memory.h"

namespace quartet::cpu {
namespace {

constexpr float kLayerNormEps = 1e-6f;
constexpr int kMaxPool = 64;
constexpr size_t kParallelFloats = 65'536;

class DsaProjectOp : public ops::DsaProject {
 public:
  static absl::StatusOr<std::unique_ptr<ops::DsaProject>> Prepare(const ops::MlaWeights& mla,
                                                                  const ops::IndexerWeights& index,
                                                                  const Context& context) {
    auto op = std::make_unique<DsaProjectOp>();
    if (mla.heads < 1 || mla.nope_dim < 1 || index.heads < 1 || index.dim < 1 || index.kpool < 1 ||
        index.kpool > kMaxPool) {
      return absl::InvalidArgumentError(
          absl::StrCat("DSA: ", mla.heads, " heads of ", mla.nope_dim, ", indexer ", index.heads,
                       " heads of ", index.dim, ", pools of ", index.kpool,
                       "; all must be positive and pools at most ", kMaxPool));
    }
    const int64_t hidden = InFeatures(mla.q_a);
    const int64_t q_rank = OutFeatures(mla.q_a);
    QUARTET_CPU_RETURN(
        CheckShape("indexer wk", OutFeatures(index.wk), InFeatures(index.wk), index.dim, hidden));
    QUARTET_CPU_RETURN(CheckShape("indexer gate", OutFeatures(index.gate), InFeatures(index.gate),
                                  index.dim, hidden));
    QUARTET_CPU_RETURN(CheckShape("indexer head weights", OutFeatures(index.head_weights),
                                  InFeatures(index.head_weights), index.heads, hidden));
    QUARTET_CPU_ASSIGN(op->from_x_,
                       FusedLinear::Prepare({{&mla.q_a, "MLA q_a"},
                                             {&mla.kv_a, "MLA kv_a"},
                                             {&index.wk, "indexer wk"},
                                             {&index.gate, "indexer gate"},
                                             {&index.head_weights, "indexer head weights"}},
                                            context));
    QUARTET_CPU_ASSIGN(op->q_norm_, Widen(mla.q_a_norm.weight, q_rank, "MLA q_a_norm"));
    QUARTET_CPU_ASSIGN(op->kv_norm_,
                       Widen(mla.kv_a_norm.weight, OutFeatures(mla.kv_a), "MLA kv_a_norm"));
    QUARTET_CPU_ASSIGN(op->k_weight_,
                       Widen(index.k_norm_weight, index.dim, "indexer k_norm weight"));
    QUARTET_CPU_ASSIGN(op->k_bias_, Widen(index.k_norm_bias, index.dim, "indexer k_norm bias"));
    QUARTET_CPU_ASSIGN(
        op->ape_, Widen(index.ape, static_cast<int64_t>(index.kpool) * index.dim, "indexer ape"));
    op->q_norm_eps_ = mla.q_a_norm.eps;
    op->kv_norm_eps_ = mla.kv_a_norm.eps;
    op->dim_ = static_cast<size_t>(index.dim);
    op->index_heads_ = static_cast<size_t>(index.heads);
    op->kpool_ = index.kpool;
    op->context_ = context;
    return op;
  }

  size_t WorkspaceBytes(int max_rows) const override {
    Arena arena;
    Take(arena, static_cast<size_t>(max_rows));
    return arena.used();
  }

  void Run(const float* x, std::span<const ops::Segment> segments, int rows, ops::KvLayer kv,
           ops::OpenPool open, ops::DsaQueries out, ops::Workspace workspace) const override {
    assert(kv.page_tokens % kpool_ == 0 && open.ring_rows % kpool_ == 0);
    const size_t count = static_cast<size_t>(rows);
    Arena arena(workspace);
    const Buffers buffers = Take(arena, count);
    ThreadPool* pool = context_.pool;
    const size_t width = static_cast<size_t>(from_x_.width());
    from_x_.Run(x, static_cast<size_t>(from_x_.in()), count, buffers.u, buffers.scratch, pool);
    const bool parallel = count * width >= kParallelFloats;
    pool->For(count, 1, parallel, [&](size_t begin, size_t end, int) {
      for (size_t r = begin; r < end; ++r) NormRow(buffers.u + r * width, out, r);
    });
    for (const ops::Segment& segment : segments) {
      const float* u = buffers.u + static_cast<size_t>(segment.row_begin) * width;
      float* ring = open.data + segment.slot * open.slot_stride;
      pool->For(static_cast<size_t>(segment.rows), 1, parallel, [&](size_t begin, size_t end, int) {
        for (size_t t = begin; t < end; ++t) {
          Append(u, segment, t, kv, ring, open.ring_rows);
        }
      });
      // Only now, since pools that this segment completes may need rows that these replace.
      const int kept = segment.more ? 0 : std::min(segment.rows, open.ring_rows);
      for (int t = segment.rows - kept; t < segment.rows; ++t) {
        float* slot =
            ring + static_cast<size_t>((segment.position + t) % open.ring_rows) * 2 * dim_;
        const float* row = u + static_cast<size_t>(t) * width;
        std::memcpy(slot, row + from_x_.offset(2), dim_ * sizeof(float));
        std::memcpy(slot + dim_, row + from_x_.offset(3), dim_ * sizeof(float));
      }
    }
  }

 private:
  struct Buffers {
    float* u;  // [rows, from_x_.width()]
    float* scratch;
  };

  Buffers Take(Arena& arena, size_t rows) const {
    Buffers buffers;
    buffers.u = arena.Floats(rows * static_cast<size_t>(from_x_.width()));
    buffers.scratch = arena.Floats(from_x_.ScratchFloats(rows));
    return buffers;
  }

  // The norms of a projected row, in place but for the query's latent, and its head weights.
  void NormRow(float* row, const ops::DsaQueries& out, size_t r) const {
    RmsNormRow(row + from_x_.offset(0), q_norm_.data(), q_norm_.size(), q_norm_eps_,
               out.latent + r * q_norm_.size());
    float* latent = row + from_x_.offset(1);
    RmsNormRow(latent, kv_norm_.data(), kv_norm_.size(), kv_norm_eps_, latent);
    float* k = row + from_x_.offset(2);
    float sum = 0.0f;
    for (size_t c = 0; c < dim_; ++c) sum += k[c];
    const float mean = sum / static_cast<float>(dim_);
    for (size_t c = 0; c < dim_; ++c) k[c] -= mean;
    const float scale =
        1.0f / std::sqrt(Dot(k, k, dim_) / static_cast<float>(dim_) + kLayerNormEps);
    for (size_t c = 0; c < dim_; ++c) k[c] = k[c] * scale * k_weight_[c] + k_bias_[c];
    const float* w = row + from_x_.offset(4);
    const float head_scale = 1.0f / std::sqrt(static_cast<float>(index_heads_));
    for (size_t h = 0; h < index_heads_; ++h) out.index_w[r * index_heads_ + h] = w[h] * head_scale;
  }

  // Row t of a segment (u: the segment's first row) into the pages.
  void Append(const float* u, const ops::Segment& segment, size_t t, const ops::KvLayer& kv,
              const float* ring, int ring_rows) const {
    const size_t width = static_cast<size_t>(from_x_.width());
    const int position = segment.position + static_cast<int>(t);
    const int64_t latent_width = static_cast<int64_t>(kv_norm_.size());
    StoreRow(LatentType(kv.dtype), u + t * width + from_x_.offset(1), kv_norm_.size(),
             LatentRow(kv, segment.pages, position, latent_width), context_.saturation);
    if ((position + 1) % kpool_ != 0) return;
    const float* key[kMaxPool];
    const float* gate[kMaxPool];
    for (int j = 0; j < kpool_; ++j) {
      const int back = kpool_ - 1 - j;
      if (static_cast<int>(t) >= back) {
        const float* row = u + (t - static_cast<size_t>(back)) * width;
        key[j] = row + from_x_.offset(2);
        gate[j] = row + from_x_.offset(3);
      } else {
        key[j] = ring + static_cast<size_t>((position - back) % ring_rows) * 2 * dim_;
        gate[j] = key[j] + dim_;
      }
    }
    constexpr size_t kStep = 64;
    float pooled[kStep];
    const Stored type = PoolKeyType(kv.dtype);
    std::byte* to =
        PoolKeyRow(kv, segment.pages, position / kpool_, kpool_, static_cast<int64_t>(dim_));
    for (size_t c0 = 0; c0 < dim_; c0 += kStep) {
      const size_t n = std::min(kStep, dim_ - c0);
      for (size_t c = 0; c < n; ++c) pooled[c] = PooledKey(key, gate, c0 + c);
      StoreRow(type, pooled, n, to + static_cast<int64_t>(c0) * StoredBytes(type),
               context_.saturation);
    }
  }

  // sum_j softmax_j(gate[j] + ape[j]) key[j] at channel c.
  float PooledKey(const float* const* key, const float* const* gate, size_t c) const {
    float logit[kMaxPool];
    float largest = -INFINITY;
    for (int j = 0; j < kpool_; ++j) {
      logit[j] = gate[j][c] + ape_[static_cast<size_t>(j) * dim_ + c];
      largest = std::max(largest, logit[j]);
    }
    float total = 0.0f;
    float sum = 0.0f;
    for (int j = 0; j < kpool_; ++j) {
      const float weight = std::exp(logit[j] - largest);
      total += weight;
      sum += weight * key[j][c];
    }
    return sum / total;
  }

  FusedLinear from_x_;
  std::vector<float> q_norm_, kv_norm_, k_weight_, k_bias_, ape_;
  float q_norm_eps_ = 0.0f, kv_norm_eps_ = 0.0f;
  size_t dim_ = 0, index_heads_ = 0;
  int kpool_ = 0;
  Context context_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ops::DsaProject>> PrepareDsaProjectOp(
    const ops::MlaWeights& mla, const ops::IndexerWeights& indexer, const Context& context) {
  return DsaProjectOp::Prepare(mla, indexer, context);
}

}  // namespace quartet::cpu
