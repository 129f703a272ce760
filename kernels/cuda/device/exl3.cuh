#ifndef QUARTET_KERNELS_CUDA_DEVICE_EXL3_CUH_
#define QUARTET_KERNELS_CUDA_DEVICE_EXL3_CUH_

#include "kernels/cuda/device/convert.cuh"
#include "kernels/cuda/device/exl3_layout.h"
#include "kernels/cuda/device/memory.cuh"
#include "kernels/cuda/device/mma.cuh"
#include "kernels/cuda/device/warp.cuh"
#include "kernels/cuda/exl3_params.h"

// Decoding EXL3 trellises straight into tensor-core operands; exl3_single.cuh has the way without
// tensor cores for one row.
//
// A *unit* is what a warp decodes at a time: four tiles that follow one another along the inputs
// (64 inputs) of one 16-column *strip*. A tile's stream of 256 positions is cut into eight runs of
// 32 positions, K whole words each; a lane decodes run m of tile b. In both tile orders those are
// all 16 rows of two columns: m and m + 8 (sm80) or 2m and 2m + 1 (column-major). So a lane's
// weights are operands of two lines of outputs, and no data is exchanged but one word of history,
// which lane (m - 1, b) has.
//
// In memory a matrix is [strip][unit along the inputs][K words / V][32 lanes as 4m + b][V], V the
// largest of 1, 2, 4 that divides K: a warp streams its strip, whole lines at a time.
//
// A weight of the codebooks mcg and 3inst is the sum of two FP16 numbers. They go into the tensor
// core as they are, two neighbours along k against twice the same activation: the product sums them
// (without the rounding to FP16 that the format defines), and the instructions that would do it on
// the busiest pipe are saved.

namespace quartet::cuda::exl3 {

constexpr int WordVector(int bits) {
  return bits % 4 == 0 ? 4 : bits % 2 == 0 ? 2 : 1;
}

// ---- which part of a unit a lane has

#if QUARTET_ARCH >= 800
QUARTET_DEVICE int TileOfLane() {
  return Lane() & 3;
}
// Also the row of x whose activations this lane supplies.
QUARTET_DEVICE int RunOfLane() {
  return Lane() >> 2;
}
QUARTET_DEVICE int LaneOfRun(int run, int tile) {
  return 4 * run + tile;
}
#else
QUARTET_DEVICE int TileOfLane() {
  return Lane() >> 2 & 3;
}
QUARTET_DEVICE int RunOfLane() {
  return (Lane() & 3) + 4 * (Lane() >> 4);
}
QUARTET_DEVICE int LaneOfRun(int run, int tile) {
  return (run & 3) + 4 * tile + 16 * (run >> 2);
}
#endif

// ---- sums of 8 rows of x with 16 lines (outputs)

struct Sums {
#if QUARTET_ARCH >= 800
  static constexpr int kCount = 4;
#else
  static constexpr int kCount = 16;  // every quad pair has sums over its own tiles
#endif
  float v[kCount];
};
// Sums that take turns, so that a product need not wait for the one before it.
#if QUARTET_ARCH >= 800
constexpr int kTurns = 2;
#else
constexpr int kTurns = 1;            // the two lines take turns anyway
#endif

QUARTET_DEVICE void Clear(Sums& sums) {
#pragma unroll
  for (int i = 0; i < Sums::kCount; ++i) sums.v[i] = 0.0f;
}

// Adds the products of inputs r and s (of every tile): `first` and `second` hold the lane's weights
// of its first and second line, `x` its row's activations, each as a pair of halves.
QUARTET_DEVICE void MultiplyInputs(Sums& sums, uint32_t first_r, uint32_t second_r,
                                   uint32_t first_s, uint32_t second_s, uint32_t x_r,
                                   uint32_t x_s) {
  const uint32_t x[2] = {x_r, x_s};
#if QUARTET_ARCH >= 800
  const uint32_t w[4] = {first_r, second_r, first_s, second_s};
  mma_detail::M16n8k16(sums.v, w, x);
#else
  const uint32_t first[2] = {first_r, first_s};
  const uint32_t second[2] = {second_r, second_s};
  mma_detail::M8n8k4(sums.v, x, first);
  mma_detail::M8n8k4(sums.v + 8, x, second);
#endif
}

// Adds up the turns into the first.
QUARTET_DEVICE void AddTurns(Sums* sums) {
#pragma unroll
  for (int turn = 1; turn < kTurns; ++turn) {
#pragma unroll
    for (int i = 0; i < Sums::kCount; ++i) sums[0].v[i] += sums[turn].v[i];
  }
}

// After the last product: the sums over all tiles, in the lanes for which OwnsSums().
QUARTET_DEVICE void FinishSums(Sums& sums) {
#if QUARTET_ARCH < 800
#pragma unroll
  for (int i = 0; i < Sums::kCount; ++i) {
    sums.v[i] += __shfl_xor_sync(kFullMask, sums.v[i], 4);
    sums.v[i] += __shfl_xor_sync(kFullMask, sums.v[i], 8);
  }
#endif
}
QUARTET_DEVICE bool OwnsSums() {
#if QUARTET_ARCH >= 800
  return true;
#else
  return TileOfLane() == 0;
#endif
}
// The row of x that sum i belongs to, which is RowOfSums(i's bit), and its line, 0..15.
QUARTET_DEVICE int RowBitOfSum(int i) {
#if QUARTET_ARCH >= 800
  return i & 1;
#else
  return i >> 1 & 1;
#endif
}
QUARTET_DEVICE int RowOfSums(int bit) {
#if QUARTET_ARCH >= 800
  return 2 * (Lane() & 3) + bit;
#else
  return (Lane() & 1) + 2 * bit + 4 * (Lane() >> 4);
#endif
}
QUARTET_DEVICE int LineOfSum(int i) {
#if QUARTET_ARCH >= 800
  return (Lane() >> 2) + 8 * (i >> 1);
#else
  return 8 * (i >> 3) + 4 * (i >> 2 & 1) + (Lane() & 2) + (i & 1);
#endif
}
// The column of a strip that a line is.
template <bool kColumnMajor>
QUARTET_DEVICE int ColumnOfLine(int line) {
  return kColumnMajor ? 2 * (line & 7) + (line >> 3) : line;
}

// ---- from words to weights

QUARTET_DEVICE __half2 AsHalves(uint32_t v) {
  __half2 halves;
  memcpy(&halves, &v, sizeof(v));
  return halves;
}
QUARTET_DEVICE uint32_t AsWord(__half2 v) {
  uint32_t word;
  memcpy(&word, &v, sizeof(v));
  return word;
}

// A weight as two halves whose sum it is. For mul1 one of them is zero.
template <bool kMul1>
QUARTET_DEVICE uint32_t WeightPair(uint32_t product, Exl3Codebook code) {
  if constexpr (kMul1) {
    const uint32_t sum = __dp4a(product, 0x01010101u, 0x6400u);  // the half 1024 + sum of the bytes
    return AsWord(__hfma2(AsHalves(sum), AsHalves(code.mask), AsHalves(0x0000C931u)));
  } else {
    return (product & code.mask) ^ 0x3B603B60u;
  }
}

// All 32 weights of a run, in stream order. `w` holds the word before the run's and its kBits own.
//
// Where K divides 16, positions 16 / K apart have their states side by side in one word X = B:A of
// the shifted stream. B's product needs X >> 16; A's is X's product less B's, moved up: a
// multiply-add in place of a mask, since shifts and masks load the busiest pipe.
// Otherwise every state lies in a word, or in the word that begins in the middle of one: it is
// moved to the top by a multiplication and down by a shift.
template <int kBits, bool kMul1>
QUARTET_DEVICE void DecodeRun(const uint32_t* w, Exl3Codebook code, uint32_t* weights /*[32]*/) {
  if constexpr (16 % kBits == 0) {
    constexpr int kApart = 16 / kBits;
    const uint32_t both = code.addend + (code.addend << 16);
#pragma unroll
    for (int n = 0; n < kBits; ++n) {
#pragma unroll
      for (int i = 0; i < kApart; ++i) {
        const uint32_t x = __funnelshift_r(w[n + 1], w[n], i * kBits);
        const uint32_t upper = (x >> 16) * code.multiplier + code.addend;
        const uint32_t lower = upper * 0xFFFF0000u + (x * code.multiplier + both);
        const int last = (n + 1) * (32 / kBits) - 1 - i;
        weights[last] = WeightPair<kMul1>(lower, code);
        weights[last - kApart] = WeightPair<kMul1>(upper, code);
      }
    }
  } else {
    uint32_t middle[kBits];
#pragma unroll
    for (int n = 0; n < kBits; ++n) middle[n] = __funnelshift_r(w[n + 1], w[n], 16);
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      const int begin = 16 + (i + 1) * kBits;  // first bit of the state, from the start of w[0]
      const int at = begin >> 5;
      const int shift = begin & 31;
      const uint32_t top = shift <= 16 ? w[at] << shift : middle[at] << (shift - 16);
      // A permutation, since the compiler would turn two shifts into a shift and a mask.
      weights[i] =
          WeightPair<kMul1>(__byte_perm(top, 0, 0x4432) * code.multiplier + code.addend, code);
    }
  }
}

// The place in its run of row r of the lane's first (line = 0) or second column.
template <bool kColumnMajor>
constexpr int PlaceInRun(int r, int line) {
  return kColumnMajor ? 16 * line + r : 8 * ((r & 7) >> 1) + 4 * line + 2 * (r >> 3) + (r & 1);
}

// ---- a lane's words of a unit

template <int kBits>
struct Words {
  uint32_t v[kBits];
};

// Where they begin in a unit.
template <int kBits>
QUARTET_DEVICE int WordsOfLane() {
  return (4 * RunOfLane() + TileOfLane()) * WordVector(kBits);
}
// `lane_words`: of the unit, from where this lane's begin.
template <int kBits>
QUARTET_DEVICE Words<kBits> LoadWords(const uint32_t* lane_words) {
  constexpr int kVector = WordVector(kBits);
  Words<kBits> words;
#pragma unroll
  for (int i = 0; i < kBits / kVector; ++i) {
    const uint32_t* p = lane_words + i * 32 * kVector;
    if constexpr (kVector == 4) {
      const uint4 v = LoadStreaming(reinterpret_cast<const uint4*>(p));
      words.v[4 * i] = v.x, words.v[4 * i + 1] = v.y, words.v[4 * i + 2] = v.z,
                  words.v[4 * i + 3] = v.w;
    } else if constexpr (kVector == 2) {
      const uint2 v = LoadStreaming(reinterpret_cast<const uint2*>(p));
      words.v[2 * i] = v.x, words.v[2 * i + 1] = v.y;
    } else {
      words.v[i] = LoadStreaming(p);
    }
  }
  return words;
}

// The word before this lane's run of a unit and its own. All lanes of the warp call.
template <int kBits>
QUARTET_DEVICE void WordsOfRun(const Words<kBits>& words, uint32_t* w /*[kBits + 1]*/) {
  w[0] = __shfl_sync(kFullMask, words.v[kBits - 1], LaneOfRun((RunOfLane() + 7) & 7, TileOfLane()));
#pragma unroll
  for (int i = 0; i < kBits; ++i) w[i + 1] = words.v[i];
}

// A lane's activations of a unit, from shared memory.
template <int kCount>
QUARTET_DEVICE void LoadInputs(const uint32_t* tile, uint32_t* x /*[kCount]*/) {
#pragma unroll
  for (int i = 0; i < kCount / 4; ++i) {
    const uint4 four = reinterpret_cast<const uint4*>(tile)[i];
    x[4 * i] = four.x, x[4 * i + 1] = four.y, x[4 * i + 2] = four.z, x[4 * i + 3] = four.w;
  }
}

// Decodes a unit and adds its products to kTurns sums. `x` holds the lane's row of its tile: 16
// activations, each twice in a word.
template <int kBits, bool kMul1, bool kColumnMajor>
QUARTET_DEVICE void MultiplyUnit(Sums* sums, const Words<kBits>& words, Exl3Codebook code,
                                 const uint32_t* x) {
  uint32_t w[kBits + 1], weights[32];
  WordsOfRun<kBits>(words, w);
  DecodeRun<kBits, kMul1>(w, code, weights);
#pragma unroll
  for (int r = 0; r < 16; r += 2) {
    MultiplyInputs(sums[r / 2 % kTurns], weights[PlaceInRun<kColumnMajor>(r, 0)],
                   weights[PlaceInRun<kColumnMajor>(r, 1)],
                   weights[PlaceInRun<kColumnMajor>(r + 1, 0)],
                   weights[PlaceInRun<kColumnMajor>(r + 1, 1)], x[r], x[r + 1]);
  }
}

// ---- transforms

// The 128-point Hadamard transform of a block that a warp holds, elements 4 * lane .. + 3 in v,
// times 1 / sqrt(128).
QUARTET_DEVICE void Hadamard(float* v) {
  const float a = v[0] + v[1], b = v[0] - v[1], c = v[2] + v[3], d = v[2] - v[3];
  v[0] = a + c, v[1] = b + d, v[2] = a - c, v[3] = b - d;
#pragma unroll
  for (int offset = 1; offset < 32; offset *= 2) {
    const float sign = (Lane() & offset) != 0 ? -1.0f : 1.0f;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      v[i] = fmaf(sign, v[i], __shfl_xor_sync(kFullMask, v[i], offset));
    }
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) v[i] *= 0.08838834764831845f;
}

// Four halves as floats; `p` is aligned to 8 bytes.
QUARTET_DEVICE void LoadHalves(const uint16_t* p, float* v) {
  const uint2 two = *reinterpret_cast<const uint2*>(p);
  v[0] = HalfToFloat(static_cast<uint16_t>(two.x));
  v[1] = HalfToFloat(static_cast<uint16_t>(two.x >> 16));
  v[2] = HalfToFloat(static_cast<uint16_t>(two.y));
  v[3] = HalfToFloat(static_cast<uint16_t>(two.y >> 16));
}

}  // namespace quartet::cuda::exl3

#endif  // QUARTET_KERNELS_CUDA_DEVICE_EXL3_CUH_
