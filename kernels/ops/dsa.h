#ifndef QUARTET_KERNELS_OPS_DSA_H_
#define QUARTET_KERNELS_OPS_DSA_H_

#include <cstdint>
#include <span>

#include "kernels/ops/batch.h"
#include "kernels/ops/norm.h"
#include "kernels/ops/weights.h"

namespace quartet::ops {

// Sparse multi-head latent attention without positions: n heads (this rank's), latent width r =
// kv_lora_rank.
struct MlaWeights {
  LinearWeights q_a;      // [q_lora_rank, hidden], replicated
  NormWeights q_a_norm;   // [q_lora_rank]
  LinearWeights q_b;      // [n * nope, q_lora_rank]
  LinearWeights kv_a;     // [r, hidden], replicated
  NormWeights kv_a_norm;  // [r]
  LinearWeights kv_b;     // [n * (nope + v), r]: per head nope rows W_UK, then v rows W_UV
  LinearWeights o;        // [hidden, n * v]
  int heads = 0;
  int nope_dim = 0;
  int v_dim = 0;
};

// The indexer, replicated: all ranks must select the same pools.
struct IndexerWeights {
  LinearWeights wq_b;                     // [index_heads * index_dim, q_lora_rank]
  LinearWeights wk;                       // [index_dim, hidden]
  VectorView k_norm_weight, k_norm_bias;  // [index_dim]; LayerNorm, eps 1e-6
  LinearWeights gate;                     // [index_dim, hidden]: index_kpool_compress_gate
  VectorView ape;                         // [kpool, index_dim]
  LinearWeights head_weights;             // [index_heads, hidden]: weights_proj
  int heads = 0;
  int dim = 0;
  int kpool = 4;       // tokens a pool
  int topk_pools = 0;  // index_topk / kpool
};

// Raw indexer rows (key after LayerNorm, gate logits) of the newest positions of a slot: position p
// in ring row p % ring_rows. The open pool's rows live only here; ring_rows is a multiple of kpool,
// at least kpool + the speculation window.
struct OpenPool {
  float* data =
      nullptr;  // slot s at data + s * slot_stride: [ring_rows, 2, index_dim], key then gate
  int64_t slot_stride = 0;  // floats
  int ring_rows = 0;
};

// What queries are made of: MLA's from `latent` by q_b, the indexer's by wq_b.
struct DsaQueries {
  float* latent = nullptr;  // [rows, q_lora_rank]: RMSNorm(x q_a^T)
  float* index_w =
      nullptr;  // [rows, index_heads]: (x weights_proj^T) * index_heads^-1/2, signed, FP32
};

// Projections of x, and the appends to the caches: latent c = RMSNorm(x kv_a^T) of every row; raw
// indexer rows into the ring; the pooled key of every pool that a row completes, P[c] = sum_j
// softmax_j(e[j][c] + ape[j][c]) k[j][c] over its kpool tokens.
class DsaProject {
 public:
  virtual ~DsaProject() = default;
  virtual size_t WorkspaceBytes(int max_rows) const = 0;
  virtual void Run(const float* x /*[rows, hidden]*/, std::span<const Segment> segments, int rows,
                   KvLayer kv, OpenPool open, DsaQueries out, Workspace workspace) const = 0;
};

// Which pools each row attends to. q = latent wq_b^T. Score of pool m: sum_h w[h] relu((q[h] . P_m)
// index_dim^-1/2). Candidates are the pools whose last token is visible, kpool m + kpool - 1 <=
// position; the topk_pools best are taken, equal scores by lower index. Besides the pools a row
// always attends to the tail, kpool * floor((pos + 1) / kpool) .. pos, which is not listed.
struct Selection {
  int32_t* pools =
      nullptr;  // [rows, topk_pools], the first counts[row] valid, ascending by pool index
  int32_t* counts = nullptr;  // [rows]
  float* margins = nullptr;   // [rows] or null: score of the last selected minus the best rejected,
                              // +inf if none was rejected
  // [rows] or null: take the tail as of this position instead of the row's own, for a list that a
  // later draft step reuses.
  const int32_t* tail_positions = nullptr;
};

class IndexerSelect {
 public:
  virtual ~IndexerSelect() = default;
  virtual size_t WorkspaceBytes(int max_rows, int max_context) const = 0;
  virtual void Run(const DsaQueries& queries, std::span<const Segment> segments, KvLayer kv,
                   Selection out, Workspace workspace) const = 0;
};

// Absorbed attention over the selected latents c_s: q = latent q_b^T; q~ = q_h W_UK,h; a =
// softmax_s(q~ . c_s * nope^-1/2) in FP32 (no sink); out_h = W_UV,h sum_s a_s c_s; then
// concat(heads) Wo^T: this rank's partial sum. Latents are read as stored (rounded), also those
// that this step wrote. Positions are summed in ascending order. The selection may be what is
// forked (Backend::Fork): Run joins before it reads it.
class SparseMla {
 public:
  virtual ~SparseMla() = default;
  virtual size_t WorkspaceBytes(int max_rows, int max_context) const = 0;
  virtual void Run(const DsaQueries& queries, const Selection& selection,
                   std::span<const Segment> segments, int rows, KvLayer kv,
                   float* partial /*[rows, hidden]*/, Workspace workspace) const = 0;
};

}  // namespace quartet::ops

#endif  // QUARTET_KERNELS_OPS_DSA_H_
