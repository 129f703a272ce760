#ifndef QUARTET_KERNELS_CUDA_MHC_MAP_CUH_
#define QUARTET_KERNELS_CUDA_MHC_MAP_CUH_

#include "kernels/cuda/device/math.cuh"
#include "kernels/cuda/device/rows.cuh"
#include "kernels/cuda/mhc_params.h"

// From a row's 24 products and its sum of squares to the mix: one warp a row.

namespace quartet::cuda {

QUARTET_DEVICE float Sigmoid(float v) {
  return 1.0f / (1.0f + expf(-v));
}

// Adds up the row's sums [slices, kMhcSums], slice by slice, and applies the map: pre goes to
// `pre` [4], post to the mix. Lane 8 + 4j + i returns comb[j][i] before the Sinkhorn iterations,
// the other lanes something.
QUARTET_DEVICE float MapRow(const MhcSiteParams& p, int64_t row, const float* sums, int slices,
                            float* pre) {
  constexpr int kBatch = 32;  // loads under way together
  const int lane = Lane();
  const int at = lane < kMhcMap ? lane : 0;
  const int part = at < kMhcStreams ? 0 : at < 2 * kMhcStreams ? 1 : 2;
  const float scale = p.scale[part], base = p.base[at];
  const int column = lane < kMhcSums ? lane : 0;
  float total = 0.0f;
  for (int begin = 0; begin < slices; begin += kBatch) {
    float batch[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      batch[i] = begin + i < slices ? sums[(begin + i) * kMhcSums + column] : 0.0f;
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) total += batch[i];
  }
  const float squares = __shfl_sync(kFullMask, total, kMhcMap);
  const float z_scale = RootScale(squares, static_cast<float>(kMhcStreams * p.hidden), p.norm_eps);

  const float m = total * z_scale * scale + base;
  if (part == 0 && lane < kMhcStreams) pre[lane] = Sigmoid(m) + p.hc_eps;
  if (part == 1) p.post[row * kMhcStreams + at - kMhcStreams] = 2.0f * Sigmoid(m);
  const float e = expf(m - WarpMax<kMhcStreams>(m));
  return e / WarpSum<kMhcStreams>(e) + p.hc_eps;
}

// over[i] = eps * over[i] + sum_j k(j, i) in[j], out[i] = 1 / over[i]. The next iteration waits for
// this one's last instruction, so the reciprocals are taken in pairs: the unit is slow.
template <class Element>
QUARTET_DEVICE void NormaliseOnce(float eps, Element k, const float (&in)[kMhcStreams],
                                  float (&over)[kMhcStreams], float (&out)[kMhcStreams]) {
  static_assert(kMhcStreams == 4);
#pragma unroll
  for (int i = 0; i < kMhcStreams; ++i) {
    over[i] =
        eps * over[i] + ((k(0, i) * in[0] + k(1, i) * in[1]) + (k(2, i) * in[2] + k(3, i) * in[3]));
  }
#pragma unroll
  for (int i = 0; i < kMhcStreams; i += 2) {
    const float both = ReciprocalApprox(over[i] * over[i + 1]);
    out[i] = both * over[i + 1];
    out[i + 1] = both * over[i];
  }
}

// The iterations on C = diag(u) K diag(v), K what MapRow returned: only u and v change. Dividing
// the columns by their sums + eps is v[i] = 1 / (sum_j u[j] K[j][i] + eps / former v[i]); rows
// likewise. Everything stays in the registers of every lane.
QUARTET_DEVICE void Sinkhorn(const MhcSiteParams& p, int64_t row, float lane_value) {
  float k[kMhcStreams][kMhcStreams];
#pragma unroll
  for (int j = 0; j < kMhcStreams; ++j) {
#pragma unroll
    for (int i = 0; i < kMhcStreams; ++i) {
      k[j][i] = __shfl_sync(kFullMask, lane_value, 2 * kMhcStreams + kMhcStreams * j + i);
    }
  }
  const auto columns = [&](int j, int i) { return k[j][i]; };
  const auto rows = [&](int i, int j) { return k[j][i]; };
  float u[kMhcStreams], v[kMhcStreams], over_u[kMhcStreams], over_v[kMhcStreams];
#pragma unroll
  for (int i = 0; i < kMhcStreams; ++i) u[i] = v[i] = over_u[i] = over_v[i] = 1.0f;
  for (int iteration = 0; iteration < p.sinkhorn_iters; ++iteration) {
    if (iteration > 0) NormaliseOnce(p.hc_eps, rows, v, over_u, u);
    NormaliseOnce(p.hc_eps, columns, u, over_v, v);
  }
  if (Lane() == 0) {
#pragma unroll
    for (int j = 0; j < kMhcStreams; ++j) {
      StoreQuad(p.comb + row * kMhcStreams * kMhcStreams, j,
                make_float4(u[j] * k[j][0] * v[0], u[j] * k[j][1] * v[1], u[j] * k[j][2] * v[2],
                            u[j] * k[j][3] * v[3]));
    }
  }
}

// The four streams' values of one quad of channels, stream by stream.
struct StreamQuads {
  float v[4 * kMhcStreams];
};

QUARTET_DEVICE float4 QuadOf(const StreamQuads& s, int stream) {
  return make_float4(s.v[4 * stream], s.v[4 * stream + 1], s.v[4 * stream + 2],
                     s.v[4 * stream + 3]);
}
QUARTET_DEVICE void SetQuad(StreamQuads& s, int stream, float4 v) {
  s.v[4 * stream] = v.x;
  s.v[4 * stream + 1] = v.y;
  s.v[4 * stream + 2] = v.z;
  s.v[4 * stream + 3] = v.w;
}

QUARTET_DEVICE void LoadStreams(StreamQuads& s, const float* streams, int64_t row, int hidden,
                                int quad) {
#pragma unroll
  for (int j = 0; j < kMhcStreams; ++j) {
    SetQuad(s, j, LoadQuad(streams + (row * kMhcStreams + j) * hidden, quad));
  }
}
QUARTET_DEVICE void StoreStreams(const StreamQuads& s, float* streams, int64_t row, int hidden,
                                 int quad) {
#pragma unroll
  for (int j = 0; j < kMhcStreams; ++j) {
    StoreQuad(streams + (row * kMhcStreams + j) * hidden, quad, QuadOf(s, j));
  }
}

// S_new[i] = post[i] y + sum_j comb[j][i] S[j], in place.
QUARTET_DEVICE void Expand(StreamQuads& s, float4 y, const float* post, const float* comb) {
  const float y4[4] = {y.x, y.y, y.z, y.w};
  float mix[kMhcStreams][kMhcStreams];
#pragma unroll
  for (int j = 0; j < kMhcStreams; ++j) {
    const float4 c = LoadQuad(comb, j);
    mix[j][0] = c.x, mix[j][1] = c.y, mix[j][2] = c.z, mix[j][3] = c.w;
  }
  const float4 w = LoadQuad(post, 0);
  const float weight[kMhcStreams] = {w.x, w.y, w.z, w.w};
#pragma unroll
  for (int c = 0; c < 4; ++c) {
    float out[kMhcStreams];
#pragma unroll
    for (int i = 0; i < kMhcStreams; ++i) {
      out[i] = weight[i] * y4[c];
#pragma unroll
      for (int j = 0; j < kMhcStreams; ++j) out[i] += mix[j][i] * s.v[4 * j + c];
    }
#pragma unroll
    for (int i = 0; i < kMhcStreams; ++i) s.v[4 * i + c] = out[i];
  }
}

QUARTET_DEVICE float4 Collapse(const StreamQuads& s, const float* pre) {
  float x[4];
#pragma unroll
  for (int c = 0; c < 4; ++c) {
    x[c] = pre[0] * s.v[c];
#pragma unroll
    for (int j = 1; j < kMhcStreams; ++j) x[c] += pre[j] * s.v[4 * j + c];
  }
  return make_float4(x[0], x[1], x[2], x[3]);
}

}  // namespace quartet::cuda

#endif  // QUARTET_KERNELS_CUDA_MHC_MAP_CUH_
