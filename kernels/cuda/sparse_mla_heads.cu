// The per-head halves of kv_b: absorbed queries q~_h = q_h W_UK,h before the attention and
// out_h = W_UV,h z_h after it. Both are y_h = x_h W_h^T, W_UK stored transposed.

#include "kernels/cuda/device/memory.cuh"
#include "kernels/cuda/device/reduce.cuh"
#include "kernels/cuda/dsa_paged.cuh"
#include "kernels/cuda/sparse_mla_params.h"

namespace quartet::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;

template <bool Half>
QUARTET_DEVICE float LoadX(const void* x, int64_t at) {
  if constexpr (Half) return HalfToFloat(static_cast<const uint16_t*>(x)[at]);
  return static_cast<const float*>(x)[at];
}
template <bool Half>
QUARTET_DEVICE void StoreY(void* y, int64_t at, float v, SaturationCounters* saturation) {
  if constexpr (Half) {
    static_cast<__half*>(y)[at] = ToHalf(v, saturation);
  } else {
    static_cast<float*>(y)[at] = v;
  }
}
// A tile of sums: row r of it is row `row` + r of y, column o output `out` + o, both even.
template <bool Half>
QUARTET_DEVICE void StoreTile(const HeadLinearParams& p, int head, int row, int out,
                              const FragC& c) {
#pragma unroll
  for (int i = 0; i < 8; i += 2) {
    const int r = row + RowOfC(i);
    const int o = out + ColOfC(i);
    if (r >= p.rows || o >= p.out) continue;
    const int64_t at = (static_cast<int64_t>(r) * p.heads + head) * p.out + o;
    if constexpr (Half) {
      *reinterpret_cast<uint32_t*>(static_cast<uint16_t*>(p.y) + at) =
          ToHalf2(c.v[i], c.v[i + 1], p.saturation);
    } else {
      *reinterpret_cast<float2*>(static_cast<float*>(p.y) + at) = make_float2(c.v[i], c.v[i + 1]);
    }
  }
}
// Eight inputs of a row as FP16; zeros beyond the rows and the inputs.
template <bool Half>
QUARTET_DEVICE uint4 FetchX(const HeadLinearParams& p, int row, int head, int k) {
  if (row >= p.rows || k >= p.in) return make_uint4(0, 0, 0, 0);
  const int64_t at = (static_cast<int64_t>(row) * p.heads + head) * p.in + k;
  if constexpr (Half) {
    return *reinterpret_cast<const uint4*>(static_cast<const uint16_t*>(p.x) + at);
  } else {
    return RoundEight(static_cast<const float*>(p.x) + at,
                      blockIdx.x == 0 ? p.saturation : nullptr);
  }
}

// ---- one row: eight outputs a warp

constexpr int kOutputs = 8;

// Grid (ceil(out / 64), heads).
template <bool HalfX>
QUARTET_DEVICE void OneRow(const HeadLinearParams& p) {
  const int head = static_cast<int>(blockIdx.y);
  const int first = static_cast<int>(blockIdx.x) * kWarps * kOutputs + Warp() * kOutputs;
  const uint16_t* w = p.w + static_cast<int64_t>(head) * p.out * p.in;
  float sums[kOutputs] = {};
  for (int k = Lane() * 8; k < p.in; k += 256) {
    uint4 weights[kOutputs];
#pragma unroll
    for (int o = 0; o < kOutputs; ++o) {
      const int64_t row = min(first + o, p.out - 1);
      weights[o] = LoadStreaming(reinterpret_cast<const uint4*>(w + row * p.in + k));
    }
    float x[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      x[i] = LoadX<HalfX>(p.x, static_cast<int64_t>(head) * p.in + k + i);
    }
#pragma unroll
    for (int o = 0; o < kOutputs; ++o) {
      const uint32_t words[4] = {weights[o].x, weights[o].y, weights[o].z, weights[o].w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        sums[o] += x[2 * i] * HalfToFloat(static_cast<uint16_t>(words[i]));
        sums[o] += x[2 * i + 1] * HalfToFloat(static_cast<uint16_t>(words[i] >> 16));
      }
    }
  }
  const float sum = WarpSums<kOutputs>(sums);  // lane l: output l / 4
  const int out = first + Lane() / 4;
  if (Lane() % 4 == 0 && out < p.out) {
    StoreY<!HalfX>(p.y, static_cast<int64_t>(head) * p.out + out, sum, p.saturation);
  }
}

// ---- up to 16 rows: a block reads 64 outputs' weights at once, 16 a warp

// Grid (ceil(out / 64), heads), 128 threads. Shared: see HeadLinearSharedBytes.
template <bool HalfX>
QUARTET_DEVICE void FewRows(const HeadLinearParams& p) {
  constexpr int kBlock = kHeadLinearThreads;
  const int padded = (p.in + 15) / 16 * 16;
  const int stride = padded + 8;  // halves
  auto* w = reinterpret_cast<__half*>(QUARTET_DYNAMIC_SHARED());
  __half* x = w + kHeadLinearOutputs * stride;
  const int head = static_cast<int>(blockIdx.y);
  const int out0 = static_cast<int>(blockIdx.x) * kHeadLinearOutputs;
  const int pieces = padded / 8;
  for (int i = static_cast<int>(threadIdx.x); i < kHeadLinearOutputs * pieces; i += kBlock) {
    const int o = i / pieces;
    const int k = i % pieces * 8;
    const bool valid = out0 + o < p.out && k < p.in;
    const int64_t row = static_cast<int64_t>(head) * p.out + (valid ? out0 + o : 0);
    CopyAsync16(w + o * stride + k, p.w + row * p.in + (valid ? k : 0), valid);
  }
  CopyAsyncCommit();
  for (int i = static_cast<int>(threadIdx.x); i < 16 * pieces; i += kBlock) {
    const int k = i % pieces * 8;
    *reinterpret_cast<uint4*>(x + i / pieces * stride + k) = FetchX<HalfX>(p, i / pieces, head, k);
  }
  CopyAsyncWait<0>();
  __syncthreads();
  FragC c;
  Clear(c);
  for (int k = 0; k < padded; k += 16) {
    FragA a;
    FragB b;
    LoadA(a, x + k, stride);
    LoadB(b, w + Warp() * 16 * stride + k, stride);
    Mma(c, a, b);
  }
  StoreTile<!HalfX>(p, head, 0, out0 + Warp() * 16, c);
}

// ---- many rows: 128 x 128 tiles, 32 inputs a step

constexpr int kTile = 128;
constexpr int kStep = 32;
constexpr int kStride = kStep + 8;  // halves

// What a thread fetches of one step: pieces of eight inputs, two of x and two of W.
struct Fetched {
  uint4 x[2];
  uint4 w[2];
};

template <bool HalfX>
QUARTET_DEVICE Fetched Fetch(const HeadLinearParams& p, int row0, int out0, int head, int k) {
  Fetched f;
  const uint16_t* w = p.w + static_cast<int64_t>(head) * p.out * p.in;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int piece = static_cast<int>(threadIdx.x) + i * kThreads;
    const int r = piece / 4;
    const int at = k + piece % 4 * 8;
    f.x[i] = FetchX<HalfX>(p, row0 + r, head, at);
    f.w[i] = out0 + r < p.out && at < p.in
                 ? *reinterpret_cast<const uint4*>(w + static_cast<int64_t>(out0 + r) * p.in + at)
                 : make_uint4(0, 0, 0, 0);
  }
  return f;
}

QUARTET_DEVICE void Deposit(const Fetched& f, __half* x, __half* w) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int piece = static_cast<int>(threadIdx.x) + i * kThreads;
    const int at = piece / 4 * kStride + piece % 4 * 8;
    *reinterpret_cast<uint4*>(x + at) = f.x[i];
    *reinterpret_cast<uint4*>(w + at) = f.w[i];
  }
}

// Grid (ceil(out / 128), ceil(rows / 128), heads); warps 4 x 2, each 32 rows x 64 outputs.
template <bool HalfX>
QUARTET_DEVICE void ManyRows(const HeadLinearParams& p) {
  __shared__ __align__(16) __half shared_x[2][kTile * kStride];
  __shared__ __align__(16) __half shared_w[2][kTile * kStride];
  const int out0 = static_cast<int>(blockIdx.x) * kTile;
  const int row0 = static_cast<int>(blockIdx.y) * kTile;
  const int head = static_cast<int>(blockIdx.z);
  const int warp_row = Warp() / 2 * 32;
  const int warp_out = Warp() % 2 * 64;
  FragC c[2][4];
#pragma unroll
  for (int m = 0; m < 2; ++m) {
#pragma unroll
    for (int n = 0; n < 4; ++n) Clear(c[m][n]);
  }
  const int steps = (p.in + kStep - 1) / kStep;
  Deposit(Fetch<HalfX>(p, row0, out0, head, 0), shared_x[0], shared_w[0]);
  __syncthreads();
  for (int s = 0; s < steps; ++s) {
    Fetched next;
    if (s + 1 < steps) next = Fetch<HalfX>(p, row0, out0, head, (s + 1) * kStep);
    const __half* x = shared_x[s & 1] + warp_row * kStride;
    const __half* w = shared_w[s & 1] + warp_out * kStride;
#pragma unroll
    for (int k = 0; k < kStep; k += 16) {
      FragA a[2];
#pragma unroll
      for (int m = 0; m < 2; ++m) LoadA(a[m], x + m * 16 * kStride + k, kStride);
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        FragB b;
        LoadB(b, w + n * 16 * kStride + k, kStride);
#pragma unroll
        for (int m = 0; m < 2; ++m) Mma(c[m][n], a[m], b);
      }
    }
    if (s + 1 < steps) Deposit(next, shared_x[(s + 1) & 1], shared_w[(s + 1) & 1]);
    __syncthreads();
  }
#pragma unroll
  for (int m = 0; m < 2; ++m) {
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      StoreTile<!HalfX>(p, head, row0 + warp_row + m * 16, out0 + warp_out + n * 16, c[m][n]);
    }
  }
}

}  // namespace

// FP32 in, FP16 out.
QUARTET_KERNEL(mla_absorb_one, 256, 2, HeadLinearParams) {
  OneRow<false>(p);
}
QUARTET_KERNEL(mla_absorb_few, 128, 2, HeadLinearParams) {
  FewRows<false>(p);
}
QUARTET_KERNEL(mla_absorb_many, 256, 2, HeadLinearParams) {
  ManyRows<false>(p);
}
// FP16 in, FP32 out.
QUARTET_KERNEL(mla_value_one, 256, 2, HeadLinearParams) {
  OneRow<true>(p);
}
QUARTET_KERNEL(mla_value_few, 128, 2, HeadLinearParams) {
  FewRows<true>(p);
}
QUARTET_KERNEL(mla_value_many, 256, 2, HeadLinearParams) {
  ManyRows<true>(p);
}

}  // namespace quartet::cuda
