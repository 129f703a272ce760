#ifndef QUARTET_KERNELS_OPS_MHC_H_
#define QUARTET_KERNELS_OPS_MHC_H_

#include <cstdint>
#include <span>

#include "kernels/ops/batch.h"
#include "kernels/ops/norm.h"
#include "kernels/ops/weights.h"

namespace quartet::ops {

// Manifold hyper-connections. A token carries n = hc_mult residual streams S [n, hidden], all FP32.
// A site maps them:
//   z    = S_flat / sqrt(mean(S_flat^2) + norm_eps)                 S_flat is stream-major, no
//   weight m    = z fn^T                                                   -> pre [n], post [n],
//   comb [n][n] pre  = sigmoid(m_pre * scale[0] + base[0:n]) + hc_eps post = 2 sigmoid(m_post *
//   scale[1] + base[n:2n]) C    = softmax over i of (m_comb[j][i] * scale[2] + base[2n + n j + i])
//   + hc_eps, then Sinkhorn: columns first
//          (C[j][i] /= sum_j C[j][i] + hc_eps), then (iters - 1) times rows and columns; it ends on
//          columns
//   x    = RMSNorm(sum_j pre[j] S[j]; norm)                         the input of the sublayer
// and, once the sublayer gave y, expands: S_new[i] = post[i] y + sum_j C[j][i] S[j] (C transposed:
// j in, i out).
struct MhcSiteWeights {
  DenseMatrix fn;    // [2n + n n, n * hidden]
  VectorView base;   // [2n + n n]
  VectorView scale;  // [3]
  NormWeights norm;  // of the sublayer's input, [hidden]
  int hc_mult = 4;
  int sinkhorn_iters = 20;
  float hc_eps = 1e-6f;
  float norm_eps = 1e-5f;  // inside the root of z
};

// What a site's map leaves for its own expansion.
struct MhcMix {
  float* post = nullptr;  // [rows, n]
  float* comb = nullptr;  // [rows, n, n], [j][i]
};

// One site. The boundary between two sublayers is one op: reduce the partial sums of y, expand with
// the mix of the site before, then map, collapse and norm with this site's weights. Rows are
// independent, so a sub-range of tokens may be passed by offset pointers.
class MhcSite {
 public:
  virtual ~MhcSite() = default;
  // The first site: every stream starts as a copy of the embedding row.
  virtual void Begin(const float* embedding /*[rows, hidden]*/, int rows,
                     float* streams /*[rows, n, hidden]*/, MhcMix mix,
                     float* x /*[rows, hidden]*/) const = 0;
  // `partials` are summed in the order given (rank order). `mix` holds the former site's values and
  // receives this one's.
  virtual void Boundary(std::span<const float* const> partials /*each [rows, hidden]*/, int rows,
                        float* streams /*[rows, n, hidden], updated*/, MhcMix mix,
                        float* x /*[rows, hidden]*/) const = 0;
};

// After the last sublayer: expand, take the plain mean of the streams, and norm.
class MhcFinish {
 public:
  virtual ~MhcFinish() = default;
  virtual void Run(std::span<const float* const> partials, int rows,
                   float* streams /*[rows, n, hidden], updated*/, MhcMix mix,
                   float* h /*[rows, hidden]*/) const = 0;
};

}  // namespace quartet::ops

#endif  // QUARTET_KERNELS_OPS_MHC_H_
