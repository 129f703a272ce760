#ifndef QUARTET_KERNELS_CUDA_MHC_DOTS_CUH_
#define QUARTET_KERNELS_CUDA_MHC_DOTS_CUH_

#include "kernels/cuda/device/convert.cuh"
#include "kernels/cuda/mhc_map.cuh"

// Products of stream rows with fn. One warp takes one slice of kMhcSlice channels, a lane one quad
// of channels of all streams; a product is a lane's 16 terms in order of (stream, channel), then a
// tree over the lanes. Every kernel adds in this order, so that a row's bits do not depend on how
// many rows a launch has.

namespace quartet::cuda {

// How fn is stored: chunks of 16 bytes, a lane's 16 values in kChunks of them.
struct FnF16 {
  static constexpr int kValues = 8;
  QUARTET_DEVICE static void Widen(uint4 chunk, float (&v)[kValues]) {
    const uint32_t words[4] = {chunk.x, chunk.y, chunk.z, chunk.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      v[2 * i] = HalfToFloat(static_cast<uint16_t>(words[i] & 0xFFFF));
      v[2 * i + 1] = HalfToFloat(static_cast<uint16_t>(words[i] >> 16));
    }
  }
};
struct FnF32 {
  static constexpr int kValues = 4;
  QUARTET_DEVICE static void Widen(uint4 chunk, float (&v)[kValues]) {
    v[0] = __uint_as_float(chunk.x);
    v[1] = __uint_as_float(chunk.y);
    v[2] = __uint_as_float(chunk.z);
    v[3] = __uint_as_float(chunk.w);
  }
};
template <class Fn>
constexpr int kFnChunks = 4 * kMhcStreams / Fn::kValues;

// This lane's chunks of `kOuts` rows of fn.
template <class Fn, int kOuts>
struct FnRows {
  uint4 chunks[kOuts][kFnChunks<Fn>];
};

template <class Fn, int kOuts>
QUARTET_DEVICE void LoadFn(FnRows<Fn, kOuts>& f, const MhcSiteParams& p, int slice, int first) {
  const uint4* from =
      p.fn + (static_cast<int64_t>(slice) * kMhcMap + first) * kFnChunks<Fn> * 32 + Lane();
#pragma unroll
  for (int o = 0; o < kOuts; ++o) {
#pragma unroll
    for (int k = 0; k < kFnChunks<Fn>; ++k) {
      f.chunks[o][k] = __ldg(from + (o * kFnChunks<Fn> + k) * 32);
    }
  }
}

// sums[r * kStride + o] += z[r] . fn[o], this lane's terms.
template <class Fn, int kOuts, int kRows, int kStride>
QUARTET_DEVICE void AddProducts(float* sums, const FnRows<Fn, kOuts>& f,
                                const StreamQuads (&z)[kRows]) {
#pragma unroll
  for (int o = 0; o < kOuts; ++o) {
#pragma unroll
    for (int k = 0; k < kFnChunks<Fn>; ++k) {
      float w[Fn::kValues];
      Fn::Widen(f.chunks[o][k], w);
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
#pragma unroll
        for (int e = 0; e < Fn::kValues; ++e) {
          sums[r * kStride + o] = fmaf(z[r].v[k * Fn::kValues + e], w[e], sums[r * kStride + o]);
        }
      }
    }
  }
}

QUARTET_DEVICE float SumOfSquares(const StreamQuads& z) {
  float sum = 0.0f;
#pragma unroll
  for (int e = 0; e < 4 * kMhcStreams; ++e) sum = fmaf(z.v[e], z.v[e], sum);
  return sum;
}

// Lane l gets the warp's sum of v[l]: each step halves the values a lane cares for, so that 32 sums
// cost 31 exchanges. The tree is that of WarpSum.
template <int kHalf = 16>
QUARTET_DEVICE float WarpSumOfEach(float* v) {
  const bool upper = (Lane() & kHalf) != 0;
#pragma unroll
  for (int i = 0; i < kHalf; ++i) {
    const float mine = upper ? v[i + kHalf] : v[i];
    const float theirs = upper ? v[i] : v[i + kHalf];
    v[i] = mine + __shfl_xor_sync(kFullMask, theirs, kHalf);
  }
  if constexpr (kHalf > 1) {
    return WarpSumOfEach<kHalf / 2>(v);
  } else {
    return v[0];
  }
}

}  // namespace quartet::cuda

#endif  // QUARTET_KERNELS_CUDA_MHC_DOTS_CUH_
