#ifndef QUARTET_KERNELS_CUDA_DEVICE_ROW_DOT_CUH_
#define QUARTET_KERNELS_CUDA_DEVICE_ROW_DOT_CUH_

#include "kernels/cuda/device/convert.cuh"
#include "kernels/cuda/device/memory.cuh"
#include "kernels/cuda/device/mma.cuh"
#include "kernels/cuda/device/row_dot_shape.h"
#include "kernels/cuda/device/warp.cuh"

// The product of few rows of x with many rows of W, bound by the speed at which W comes from
// memory. One warp computes a tile of 32 outputs for N rows of x over a range of inputs:
//   sums[n][o] = sum_k x[n, k] w[o, k].
// The first weights are asked for before the kernel that makes x has ended.
// From sm_80 on by tensor cores, with W as the left and x as the right operand of mma.m16n8k16;
// both come straight from global memory in pieces of 8 inputs, 16 bytes of W. The order of k inside
// a step is free as long as both operands agree, so lane (g, t) takes inputs 8t .. 8t + 7 of rows
// g, g + 8 ... On sm_70, where eight rows leave the FP32 units time enough, by multiply-adds.

namespace quartet::cuda {

using row_dot::kRowDotOutputs;
using row_dot::kRowDotStep;

struct RowDotOperands {
  const __half* w;   // the tile's first row; rows aligned to 16 bytes, zeros from `in` to w_stride
  int64_t w_stride;  // halves
  int outputs;       // rows of the tile that exist, 1 .. 32
  const float* x;
  int64_t x_stride;  // floats
  int in;
  bool x_aligned;                // rows of x are aligned to 16 bytes
  SaturationCounters* counters;  // null: another warp counts the same values
};

#if QUARTET_ARCH >= 800

// v = x[k .. k + 8), zeros beyond `in`.
QUARTET_DEVICE void LoadX8(const float* x, int k, const RowDotOperands& d, float (&v)[8]) {
  if (d.x_aligned && k + 8 <= d.in) {
    const float4 low = *reinterpret_cast<const float4*>(x + k);
    const float4 high = *reinterpret_cast<const float4*>(x + k + 4);
    v[0] = low.x, v[1] = low.y, v[2] = low.z, v[3] = low.w;
    v[4] = high.x, v[5] = high.y, v[6] = high.z, v[7] = high.w;
    return;
  }
#pragma unroll
  for (int j = 0; j < 8; ++j) v[j] = k + j < d.in ? x[k + j] : 0.0f;
}

// Rounds to nearest even, saturating, without counting.
QUARTET_DEVICE uint32_t SaturatedHalf2(float low, float high) {
#ifndef QUARTET_SIMT
  uint32_t v;
  asm("cvt.rn.satfinite.f16x2.f32 %0, %1, %2;" : "=r"(v) : "f"(high), "f"(low));
  return v;
#else
  const auto clamp = [](float f) { return fabsf(f) > 65504.0f ? copysignf(65504.0f, f) : f; };
  return PackHalf2(clamp(low), clamp(high));
#endif
}

// 16 bytes of weights; the rest of their 128 bytes comes into the second-level cache with them.
QUARTET_DEVICE uint4 LoadWeights(const __half* p) {
#ifdef QUARTET_SIMT
  return *reinterpret_cast<const uint4*>(p);
#else
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p));
  return v;
#endif
}

// One step at a time: the other warps of the multiprocessor keep memory busy meanwhile. Neither
// loading a step ahead nor a ring of asynchronous copies was faster (H200: 51 us for [24896, 4096],
// against 56 and 62).
template <int N>
QUARTET_DEVICE void RowDot(const RowDotOperands& d, int k_begin, int k_end,
                           float* sums /*shared [N][32]*/) {
  const int g = Lane() >> 2;
  const int t = Lane() & 3;
  const __half* w[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) w[i] = d.w + min(g + 8 * i, d.outputs - 1) * d.w_stride;
  const float* x = d.x + min(g, N - 1) * d.x_stride;
  float c[2][4] = {};
  for (int k0 = k_begin; k0 < k_end; k0 += kRowDotStep) {
    uint4 piece[2][4];
    float v[2][8] = {};
#pragma unroll
    for (int u = 0; u < 2; ++u) {
      const int k = k0 + 32 * u + 8 * t;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        piece[u][i] = k < d.w_stride ? LoadWeights(w[i] + k) : make_uint4(0, 0, 0, 0);
      }
    }
    if (k0 == k_begin) AwaitPrevious();
#pragma unroll
    for (int u = 0; u < 2; ++u) {
      if (g < N) LoadX8(x, k0 + 32 * u + 8 * t, d, v[u]);
    }
#pragma unroll
    for (int u = 0; u < 2; ++u) {
      uint32_t b[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        b[j] = d.counters == nullptr ? SaturatedHalf2(v[u][2 * j], v[u][2 * j + 1])
                                     : ToHalf2(v[u][2 * j], v[u][2 * j + 1], d.counters);
      }
#pragma unroll
      for (int m = 0; m < 2; ++m) {
        const uint4& low = piece[u][2 * m];
        const uint4& high = piece[u][2 * m + 1];
        const uint32_t first[4] = {low.x, high.x, low.y, high.y};
        const uint32_t second[4] = {low.z, high.z, low.w, high.w};
        mma_detail::M16n8k16(c[m], first, b);
        mma_detail::M16n8k16(c[m], second, b + 2);
      }
    }
  }
#pragma unroll
  for (int m = 0; m < 2; ++m) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int n = 2 * t + (i & 1);
      if (n < N) sums[n * kRowDotOutputs + 16 * m + g + 8 * (i >> 1)] = c[m][i];
    }
  }
}

#else

// x[k] and x[k + 1], k even, zeros beyond `in`.
QUARTET_DEVICE float2 LoadX2(const float* x, int k, const RowDotOperands& d) {
  if (d.x_aligned && k + 2 <= d.in) return *reinterpret_cast<const float2*>(x + k);
  return make_float2(k < d.in ? x[k] : 0.0f, k + 1 < d.in ? x[k + 1] : 0.0f);
}

// Eight lanes a row of W: lane (r, t) takes inputs 8t .. of rows r, r + 4, ... r + 28.
template <int N>
QUARTET_DEVICE void RowDot(const RowDotOperands& d, int k_begin, int k_end,
                           float* sums /*shared [N][32]*/) {
  const int r = Lane() >> 3;
  const int t = Lane() & 7;
  float c[N][8] = {};
  for (int k = k_begin + 8 * t; k < k_end; k += kRowDotStep) {
    uint4 piece[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const __half* row = d.w + min(r + 4 * i, d.outputs - 1) * d.w_stride;
      piece[i] = k < d.w_stride ? LoadStreaming(reinterpret_cast<const uint4*>(row + k))
                                : make_uint4(0, 0, 0, 0);
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      float2 x[N];
#pragma unroll
      for (int n = 0; n < N; ++n) x[n] = LoadX2(d.x + n * d.x_stride, k + 2 * j, d);
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const uint32_t pairs[4] = {piece[i].x, piece[i].y, piece[i].z, piece[i].w};
        const float low = HalfToFloat(static_cast<uint16_t>(pairs[j]));
        const float high = HalfToFloat(static_cast<uint16_t>(pairs[j] >> 16));
#pragma unroll
        for (int n = 0; n < N; ++n) c[n][i] = fmaf(high, x[n].y, fmaf(low, x[n].x, c[n][i]));
      }
    }
  }
  // Eight sums over eight lanes: every exchange halves the sums that a lane still carries, until
  // lane t holds the sum of output r + 4 t.
#pragma unroll
  for (int n = 0; n < N; ++n) {
#pragma unroll
    for (int half = 4; half > 0; half /= 2) {
      const bool upper = (t & half) != 0;
#pragma unroll
      for (int i = 0; i < half; ++i) {
        const float keep = upper ? c[n][i + half] : c[n][i];
        const float give = upper ? c[n][i] : c[n][i + half];
        c[n][i] = keep + __shfl_xor_sync(kFullMask, give, half);
      }
    }
    sums[n * kRowDotOutputs + r + 4 * t] = c[n][0];
  }
}

#endif

}  // namespace quartet::cuda

#endif  // QUARTET_KERNELS_CUDA_DEVICE_ROW_DOT_CUH_
