#ifndef QUARTET_KERNELS_CUDA_DEVICE_EXL3_SINGLE_CUH_
#define QUARTET_KERNELS_CUDA_DEVICE_EXL3_SINGLE_CUH_

#include "kernels/cuda/device/exl3.cuh"

// Products of a single row of x, which is what most experts of a decode step have. Tensor cores
// would do it with one of eight columns in use, and their instructions do not run beside those that
// decode; an H200 also slows its clock down for them. So a lane multiplies its weights itself: a
// weight's two halves with twice the same activation in one instruction. 16 products are summed in
// FP16, two such sums added, and the rest is FP32: the result is off by 7.3e-4, that of several
// rows by 3.0e-4 (random numbers, against FP32: SumsOfASingleRowLoseLittle in exl3_test.cc).

namespace quartet::cuda::exl3 {

// In so many of 8 words the lowest state's product is what the highest one leaves of the word's,
// see DecodeRun: a multiply-add in place of a permutation. Multiplications of halves load the
// multiply pipe of sm_90; older ones have another for them.
#if QUARTET_ARCH >= 900
constexpr int kSubtracted = 4;
#else
constexpr int kSubtracted = 8;
#endif

// DecodeRun where K divides 8. Shifted by all multiples of K below 8, the stream has every state in
// two neighbouring bytes of a word, or at the end of one and the beginning of the next. A
// permutation puts them twice in a word, which is the state times 2^16 + 1, and the inverse of that
// modulo 2^32 is in the multiplier.
template <int kBits, bool kMul1>
QUARTET_DEVICE void DecodeRunByBytes(const uint32_t* w, Exl3Codebook code,
                                     uint32_t* weights /*[32]*/) {
  const uint32_t of_two = code.multiplier * 0xFFFF0001u;
  const uint32_t both = code.addend + (code.addend << 16);
#pragma unroll
  for (int shift = 0; shift < 8; shift += kBits) {
    uint32_t x[kBits + 1];  // the shifted stream, last word first
#pragma unroll
    for (int n = 0; n < kBits; ++n) x[n] = __funnelshift_r(w[kBits - n], w[kBits - n - 1], shift);
    x[kBits] = w[0] >> shift;  // of which the last byte counts
#pragma unroll
    for (int n = 0; n < kBits; ++n) {
      const int last = 31 - (shift + 32 * n) / kBits;  // the state at the end of the word
      uint32_t products[4];
#pragma unroll
      for (int byte = 3; byte >= 0; --byte) {
        constexpr uint32_t kSelect[4] = {0x1010, 0x2121, 0x3232, 0x4343};
        products[byte] = __byte_perm(x[n], x[n + 1], kSelect[byte]) * of_two + code.addend;
      }
      if ((shift + n) * kSubtracted % 8 < kSubtracted) {
        products[0] = products[2] * 0xFFFF0000u + (x[n] * code.multiplier + both);
      }
#pragma unroll
      for (int byte = 0; byte < 4; ++byte) {
        weights[last - 8 * byte / kBits] = WeightPair<kMul1>(products[byte], code);
      }
    }
  }
}

// Sums of this lane's weights, before those of the four tiles come together.
struct SingleSums {
  float v[2][2];  // [first or second line][lower or upper halves of weights]
};

// The sum of the lane's products of a unit, for its first and its second line.
template <int kBits, bool kMul1, bool kColumnMajor>
QUARTET_DEVICE void MultiplySingleUnit(const Words<kBits>& words, Exl3Codebook code,
                                       const uint32_t* tile, __half2* sums /*[2]*/) {
  uint32_t x[8];  // 16 halves
  LoadInputs<8>(tile, x);
  uint32_t w[kBits + 1], weights[32];
  WordsOfRun<kBits>(words, w);
  if constexpr (8 % kBits == 0) {
    DecodeRunByBytes<kBits, kMul1>(w, code, weights);
  } else {
    DecodeRun<kBits, kMul1>(w, code, weights);
  }
#pragma unroll
  for (int r = 0; r < 16; ++r) {
    const __half2 two = AsHalves(x[r / 2]);
    const __half2 input = r % 2 == 0 ? __low2half2(two) : __high2half2(two);
#pragma unroll
    for (int line = 0; line < 2; ++line) {
      const __half2 weight = AsHalves(weights[PlaceInRun<kColumnMajor>(r, line)]);
      sums[line] = r == 0 ? __hmul2(weight, input) : __hfma2(weight, input, sums[line]);
    }
  }
}

// Adds the sums of two units of a block of inputs; `tile` is that of either.
QUARTET_DEVICE void AddUnits(SingleSums& sums, const __half2* first, const __half2* second,
                             const uint32_t* tile) {
  const float scale = __uint_as_float(tile[8]);
#pragma unroll
  for (int line = 0; line < 2; ++line) {
    const float2 sum = __half22float2(__hadd2(first[line], second[line]));
    sums.v[line][0] = fmaf(sum.x, scale, sums.v[line][0]);
    sums.v[line][1] = fmaf(sum.y, scale, sums.v[line][1]);
  }
}

// The sum over all tiles: of the run's first line in lanes of even tiles, of its second in others.
QUARTET_DEVICE float SumOfLines(const SingleSums& sums) {
  constexpr int kNextTile = QUARTET_ARCH >= 800 ? 1 : 4;  // in lanes
  const float first = sums.v[0][0] + sums.v[0][1], second = sums.v[1][0] + sums.v[1][1];
  const bool odd = (TileOfLane() & 1) != 0;
  float sum = odd ? second : first;
  sum += __shfl_xor_sync(kFullMask, odd ? first : second, kNextTile);
  return sum + __shfl_xor_sync(kFullMask, sum, 2 * kNextTile);
}

}  // namespace quartet::cuda::exl3

#endif  // QUARTET_KERNELS_CUDA_DEVICE_EXL3_SINGLE_CUH_
