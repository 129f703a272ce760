// Projections that decide something which all ranks share (router, indexer): weights as stored, x
// and sums FP32, and always the same order of additions, whatever the number of rows:
//   slice = 128 inputs, one after the other, by fused multiply-adds;
//   group = 8 slices, one after the other; result = groups, one after the other.
// linear_exact_few gives a slice to a block, so that a small matrix uses the whole card;
// linear_exact_many walks the slices with a register tile.

#include "kernels/cuda/device/arrive.cuh"
#include "kernels/cuda/device/convert.cuh"
#include "kernels/cuda/device/memory.cuh"
#include "kernels/cuda/device/warp.cuh"
#include "kernels/cuda/linear_exact_shape.h"
#include "kernels/cuda/linear_params.h"

namespace quartet::cuda {
namespace {

using exact::kFewOuts;
using exact::kFewRows;
using exact::kManyOuts;
using exact::kManyRows;
using exact::kSlice;
using exact::kSlicesPerGroup;
constexpr int kThreads = 256;

// A stored type: four weights as they are loaded (so that a thread can wait for them later) and in
// FP32.
struct F32 {
  using Element = float;
  using Four = uint4;
  QUARTET_DEVICE static float4 Widen(const uint4& v) {
    return make_float4(__uint_as_float(v.x), __uint_as_float(v.y), __uint_as_float(v.z),
                       __uint_as_float(v.w));
  }
};

struct F16 {
  using Element = uint16_t;
  using Four = uint2;
  QUARTET_DEVICE static float4 Widen(const uint2& v) {
    return make_float4(
        HalfToFloat(static_cast<uint16_t>(v.x)), HalfToFloat(static_cast<uint16_t>(v.x >> 16)),
        HalfToFloat(static_cast<uint16_t>(v.y)), HalfToFloat(static_cast<uint16_t>(v.y >> 16)));
  }
};

struct Bf16 {
  using Element = uint16_t;
  using Four = uint2;
  QUARTET_DEVICE static float4 Widen(const uint2& v) {
    return make_float4(__uint_as_float(v.x << 16), __uint_as_float(v.x & 0xFFFF0000u),
                       __uint_as_float(v.y << 16), __uint_as_float(v.y & 0xFFFF0000u));
  }
};

// Four inputs of a row from k on; zeros where there is no such row or input. Zeros at the end of a
// slice change no sum.
template <class Weight>
QUARTET_DEVICE typename Weight::Four LoadW4(const LinearExactParams& p, int out, int k) {
  if (out >= p.out || k >= p.w_stride) return {};
  return LoadStreaming(reinterpret_cast<const typename Weight::Four*>(
      static_cast<const typename Weight::Element*>(p.weights) + out * p.w_stride + k));
}
QUARTET_DEVICE float4 LoadX4(const LinearExactParams& p, int row, int k) {
  if (row >= p.rows) return make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  const float* x = p.x + row * p.x_stride + k;
  if (p.x_aligned != 0 && k + 4 <= p.in) return *reinterpret_cast<const float4*>(x);
  return make_float4(k < p.in ? x[0] : 0.0f, k + 1 < p.in ? x[1] : 0.0f, k + 2 < p.in ? x[2] : 0.0f,
                     k + 3 < p.in ? x[3] : 0.0f);
}

QUARTET_DEVICE void Store(const LinearExactParams& p, int row, int out, float sum) {
  if (row < p.rows && out < p.out) p.y[row * p.y_stride + out] = sum;
}

// The chains of one slice for `kRows` rows a warp: finish(row in the tile, chain).
template <int kRows, class Finish>
QUARTET_DEVICE void Chains(const float* x, const float* w, int stride, int rows, Finish finish) {
  const int first = Warp() * kRows;
  if (first >= rows) return;
  float chain[kRows] = {};
#pragma unroll 8
  for (int k = 0; k < kSlice; k += 4) {
    const float4 b = *reinterpret_cast<const float4*>(w + Lane() * stride + k);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const float4 a = *reinterpret_cast<const float4*>(x + (first + r) * stride + k);
      chain[r] = fmaf(a.x, b.x, chain[r]);
      chain[r] = fmaf(a.y, b.y, chain[r]);
      chain[r] = fmaf(a.z, b.z, chain[r]);
      chain[r] = fmaf(a.w, b.w, chain[r]);
    }
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) finish(first + r, chain[r]);
}

// Grid (out tiles of 32, row tiles of 8, slices); a lane an output.
template <class Weight>
QUARTET_DEVICE void Few(const LinearExactParams& p) {
  constexpr int kStride = kSlice + 4;  // keeps rows on different banks
  constexpr int kPieces = kSlice / 4;  // of a row
  __shared__ __align__(16) float w[kFewOuts * kStride];
  __shared__ __align__(16) float x[kFewRows * kStride];
  const int tid = static_cast<int>(threadIdx.x);
  const int out0 = static_cast<int>(blockIdx.x) * kFewOuts;
  const int row0 = static_cast<int>(blockIdx.y) * kFewRows;
  const int k0 = static_cast<int>(blockIdx.z) * kSlice;
  typename Weight::Four four[kFewOuts * kPieces / kThreads];
#pragma unroll
  for (int i = 0; i < kFewOuts * kPieces / kThreads; ++i) {
    const int piece = tid + i * kThreads;
    four[i] = LoadW4<Weight>(p, out0 + piece / kPieces, k0 + piece % kPieces * 4);
  }
  static_assert(kFewRows * kPieces == kThreads);
  AwaitPrevious();
  LetNextIn();
  *reinterpret_cast<float4*>(x + tid / kPieces * kStride + tid % kPieces * 4) =
      LoadX4(p, row0 + tid / kPieces, k0 + tid % kPieces * 4);
#pragma unroll
  for (int i = 0; i < kFewOuts * kPieces / kThreads; ++i) {
    const int piece = tid + i * kThreads;
    *reinterpret_cast<float4*>(w + piece / kPieces * kStride + piece % kPieces * 4) =
        Weight::Widen(four[i]);
  }
  __syncthreads();

  constexpr int kTile = kFewRows * kFewOuts;
  const int slices = static_cast<int>(gridDim.z);
  const int tile = static_cast<int>(blockIdx.y * gridDim.x + blockIdx.x);
  float* partial = p.partial + static_cast<int64_t>(tile) * slices * kTile;
  const auto finish = [&](int row, float chain) {
    if (slices == 1) {
      // As the sum over one slice: +0 where the chain is -0.
      Store(p, row0 + row, out0 + Lane(), 0.0f + chain);
    } else {
      partial[blockIdx.z * kTile + row * kFewOuts + Lane()] = chain;
    }
  };
  // Two rows a warp halve the reads of W from shared memory.
  const int rows = min(kFewRows, p.rows - row0);
  if (rows <= kFewRows / 2) {
    Chains<1>(x, w, kStride, rows, finish);
  } else {
    Chains<2>(x, w, kStride, rows, finish);
  }
  if (slices == 1 || !LastToArrive(p.arrived + tile, gridDim.z)) return;
  static_assert(kTile == kThreads);
  if (row0 + Warp() >= p.rows) return;
  // The loads of four groups are under way at once: each takes most of a microsecond.
  constexpr int kTogether = 4 * kSlicesPerGroup;
  float sum = 0.0f;
  for (int begin = 0; begin < slices; begin += kTogether) {
    float v[kTogether];
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      v[i] = begin + i < slices ? LoadFresh(partial + (begin + i) * kTile + tid) : 0.0f;
    }
#pragma unroll
    for (int g = 0; g < kTogether; g += kSlicesPerGroup) {
      float group = 0.0f;
#pragma unroll
      for (int i = 0; i < kSlicesPerGroup; ++i) group += v[g + i];
      sum += group;
    }
  }
  Store(p, row0 + Warp(), out0 + Lane(), sum);
}

// A register tile of 8 rows and 4 outputs.
struct Tile {
  QUARTET_DEVICE void Clear() {
#pragma unroll
    for (auto& row : v) {
#pragma unroll
      for (float& f : row) f = 0.0f;
    }
  }
  float v[8][4];
};

// Grid (out tiles of 64, row tiles of 128, 1 or groups). Thread (ty, tx) of 16 x 16 has rows
// 4 ty .. and 64 + 4 ty .., outputs 4 tx ...
template <class Weight>
struct Many {
  static constexpr int kDepth = 16;  // inputs in shared memory at once
  static constexpr int kXStride = kManyRows + 4;
  static constexpr int kWStride = kManyOuts + 4;

  const LinearExactParams& p;
  float* x;  // shared [2][16][kXStride]
  float* w;  // shared [2][16][kWStride]
  int tid = static_cast<int>(threadIdx.x);
  int row0 = static_cast<int>(blockIdx.y) * kManyRows;
  int out0 = static_cast<int>(blockIdx.x) * kManyOuts;
  float4 next_x[2];
  typename Weight::Four next_w;

  QUARTET_DEVICE int RowOf(int i) const { return tid / 16 * 4 + i % 4 + i / 4 * 64; }
  QUARTET_DEVICE int OutOf(int j) const { return tid % 16 * 4 + j; }

  QUARTET_DEVICE void Fetch(int k) {
    const int piece = tid % 4 * 4;
    next_x[0] = LoadX4(p, row0 + tid / 4, k + piece);
    next_x[1] = LoadX4(p, row0 + 64 + tid / 4, k + piece);
    next_w = LoadW4<Weight>(p, out0 + tid / 4, k + piece);
  }
  QUARTET_DEVICE static void Put(float* to, int stride, const float4& v) {
    to[0] = v.x, to[stride] = v.y, to[2 * stride] = v.z, to[3 * stride] = v.w;
  }
  QUARTET_DEVICE void Store(int stage) {
    float* to = x + (stage * kDepth + tid % 4 * 4) * kXStride + tid / 4;
    Put(to, kXStride, next_x[0]);
    Put(to + 64, kXStride, next_x[1]);
    Put(w + (stage * kDepth + tid % 4 * 4) * kWStride + tid / 4, kWStride, Weight::Widen(next_w));
  }
  QUARTET_DEVICE void Multiply(int stage, Tile& chain) const {
#pragma unroll
    for (int k = 0; k < kDepth; ++k) {
      const float* xs = x + (stage * kDepth + k) * kXStride + tid / 16 * 4;
      const float4 low = *reinterpret_cast<const float4*>(xs);
      const float4 high = *reinterpret_cast<const float4*>(xs + 64);
      const float4 right =
          *reinterpret_cast<const float4*>(w + (stage * kDepth + k) * kWStride + tid % 16 * 4);
      const float a[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
      const float b[4] = {right.x, right.y, right.z, right.w};
#pragma unroll
      for (int i = 0; i < 8; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) chain.v[i][j] = fmaf(a[i], b[j], chain.v[i][j]);
      }
    }
  }

  // The sum of group `g` over its slices.
  QUARTET_DEVICE void Group(int g, Tile& sum) {
    constexpr int kSteps = kSlice / kDepth;  // of a slice
    const int k_begin = g * kSlice * kSlicesPerGroup;
    const int slices = min(kSlicesPerGroup, (p.in - k_begin + kSlice - 1) / kSlice);
    Tile chain;
    sum.Clear();
    chain.Clear();
    Fetch(k_begin);
    Store(0);
    __syncthreads();
    for (int step = 0; step < slices * kSteps; ++step) {
      const bool more = step + 1 < slices * kSteps;
      if (more) Fetch(k_begin + (step + 1) * kDepth);
      Multiply(step % 2, chain);
      if (more) Store((step + 1) % 2);
      __syncthreads();
      if ((step + 1) % kSteps != 0) continue;
#pragma unroll
      for (int i = 0; i < 8; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) sum.v[i][j] += chain.v[i][j];
      }
      chain.Clear();
    }
  }

  // One block after another group: the result so far waits in y.
  QUARTET_DEVICE void AllGroups(int groups) {
    for (int g = 0; g < groups; ++g) {
      Tile sum;
      Group(g, sum);
#pragma unroll
      for (int i = 0; i < 8; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const int row = row0 + RowOf(i);
          const int out = out0 + OutOf(j);
          if (row >= p.rows || out >= p.out) continue;
          float& y = p.y[row * p.y_stride + out];
          y = (g == 0 ? 0.0f : y) + sum.v[i][j];
        }
      }
    }
  }

  // One group a block; the last one adds them up.
  QUARTET_DEVICE void OneGroup(int groups) {
    constexpr int kTile = kManyRows * kManyOuts;
    Tile sum;
    Group(static_cast<int>(blockIdx.z), sum);
    const int tile = static_cast<int>(blockIdx.y * gridDim.x + blockIdx.x);
    float* partial = p.partial + static_cast<int64_t>(tile) * groups * kTile;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      *reinterpret_cast<float4*>(partial + blockIdx.z * kTile + RowOf(i) * kManyOuts + OutOf(0)) =
          make_float4(sum.v[i][0], sum.v[i][1], sum.v[i][2], sum.v[i][3]);
    }
    if (!LastToArrive(p.arrived + tile, gridDim.z)) return;
    for (int e = tid; e < kTile; e += kThreads) {
      cuda::Store(p, row0 + e / kManyOuts, out0 + e % kManyOuts,
                  SumFresh(partial + e, groups, kTile));
    }
  }
};

template <class Weight>
QUARTET_DEVICE void RunMany(const LinearExactParams& p) {
  using Kernel = Many<Weight>;
  __shared__ __align__(16) float x[2 * Kernel::kDepth * Kernel::kXStride];
  __shared__ __align__(16) float w[2 * Kernel::kDepth * Kernel::kWStride];
  Kernel kernel{p, x, w};
  const int groups = (p.in + kSlice * kSlicesPerGroup - 1) / (kSlice * kSlicesPerGroup);
  if (gridDim.z == 1) {
    kernel.AllGroups(groups);
  } else {
    kernel.OneGroup(groups);
  }
}

}  // namespace

QUARTET_EARLY_KERNEL(linear_exact_few_f32, kThreads, 2, LinearExactParams) {
  Few<F32>(p);
}
QUARTET_EARLY_KERNEL(linear_exact_few_f16, kThreads, 2, LinearExactParams) {
  Few<F16>(p);
}
QUARTET_EARLY_KERNEL(linear_exact_few_bf16, kThreads, 2, LinearExactParams) {
  Few<Bf16>(p);
}
QUARTET_KERNEL(linear_exact_many_f32, kThreads, 2, LinearExactParams) {
  RunMany<F32>(p);
}
QUARTET_KERNEL(linear_exact_many_f16, kThreads, 2, LinearExactParams) {
  RunMany<F16>(p);
}
QUARTET_KERNEL(linear_exact_many_bf16, kThreads, 2, LinearExactParams) {
  RunMany<Bf16>(p);
}

}  // namespace quartet::cuda
