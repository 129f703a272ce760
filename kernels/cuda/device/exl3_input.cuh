#ifndef QUARTET_KERNELS_CUDA_DEVICE_EXL3_INPUT_CUH_
#define QUARTET_KERNELS_CUDA_DEVICE_EXL3_INPUT_CUH_

#include "kernels/cuda/device/exl3.cuh"
#include "kernels/cuda/device/glu.cuh"
#include "kernels/cuda/device/memory.cuh"

// What an EXL3 product multiplies: rows of x, or the activation of gate and up, scaled by suh and
// transformed, as FP16.

namespace quartet::cuda::exl3 {

// v rounded to FP16, as bits. Saturates; adds one to `count` then.
QUARTET_DEVICE uint32_t HalfBits(float v, uint32_t& count) {
  const bool beyond = fabsf(v) >= 65520.0f;
  count += beyond ? 1 : 0;
  return __half_as_ushort(__float2half_rn(beyond ? copysignf(65504.0f, v) : v));
}
QUARTET_DEVICE void CountSaturated(uint32_t count, SaturationCounters* saturation) {
  if (count != 0 && saturation != nullptr) {
    atomicAdd(&saturation->f16, static_cast<unsigned long long>(count));
  }
}

// Four elements of a row of `width` floats, zeros beyond it.
QUARTET_DEVICE void LoadPadded(const float* row, int at, int width, float* v) {
  if (at + 4 <= width && (reinterpret_cast<uintptr_t>(row + at) & 15) == 0) {
    const float4 four = *reinterpret_cast<const float4*>(row + at);
    v[0] = four.x, v[1] = four.y, v[2] = four.z, v[3] = four.w;
    return;
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) v[i] = at + i < width ? row[at + i] : 0.0f;
}

// Four floats that another kernel wrote and that are read once: not from the first cache.
QUARTET_DEVICE float4 LoadFresh4(const float* p) {
#ifdef QUARTET_SIMT
  return *reinterpret_cast<const float4*>(p);
#else
  float4 v;
  asm volatile("ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "l"(p)
               : "memory");
  return v;
#endif
}

// The sums of four elements over the parts of a product, first part first, in `kRuns` places that
// lie `apart`. Eight loads are under way at a time: each takes most of a microsecond.
template <int kRuns>
QUARTET_DEVICE void SumParts(const float* sums, int64_t apart, int64_t part_stride, int parts,
                             float (*v)[4]) {
  constexpr int kAtOnce = 8 / kRuns;
#pragma unroll
  for (int run = 0; run < kRuns; ++run) v[run][0] = v[run][1] = v[run][2] = v[run][3] = 0.0f;
#pragma unroll 1
  for (int left = parts; left > 0; left -= kAtOnce) {
    float4 four[kRuns][kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
#pragma unroll
      for (int run = 0; run < kRuns; ++run) {
        four[run][i] =
            i < left ? LoadFresh4(sums + run * apart) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
      }
      sums += part_stride;
    }
#pragma unroll
    for (int run = 0; run < kRuns; ++run) {
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        v[run][0] += four[run][i].x, v[run][1] += four[run][i].y;
        v[run][2] += four[run][i].z, v[run][3] += four[run][i].w;
      }
    }
  }
}
QUARTET_DEVICE void SumParts(const float* sums, int64_t part_stride, int parts, float* v) {
  float one[1][4];
  SumParts<1>(sums, 0, part_stride, parts, one);
#pragma unroll
  for (int i = 0; i < 4; ++i) v[i] = one[0][i];
}

// The activation of four inner elements from the sums of gate and up: output transforms and scales,
// SwiGLU; zeros beyond what is used.
QUARTET_DEVICE void Activate(float* gate, float* up, const float* gate_scale, const float* up_scale,
                             int at, int used, float limit, float* v) {
  Hadamard(gate);
  Hadamard(up);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float a = ClampedSwiGlu(gate[i] * gate_scale[i], up[i] * up_scale[i], limit);
    v[i] = at + i < used ? a : 0.0f;
  }
}

// ---- inputs of a block's products in shared memory

// What a block needs: `inputs` inputs from `begin` on, both multiples of 128.
struct InputSlice {
  int rows;
  int begin;
  int inputs;
  int row_words;                   // of shared memory
  SaturationCounters* saturation;  // null where another block counts the same values
};

// Four inputs as bits of halves, each twice in a word.
QUARTET_DEVICE void StageFour(const uint32_t* halves, int at, uint32_t* row) {
  constexpr uint32_t kTwice = 0x10001;
  *reinterpret_cast<uint4*>(row + at / 16 * kTileWords + at % 16) =
      make_uint4(halves[0] * kTwice, halves[1] * kTwice, halves[2] * kTwice, halves[3] * kTwice);
}

// Four inputs of the only row; a warp has a block. They are brought to a size at which sums of
// products neither overflow in FP16 nor lose bits below it: the largest of the block to 2^8 .. 2^9.
QUARTET_DEVICE void StageFourSingle(const uint32_t* halves, int at, uint32_t* row) {
  // Halves without their signs are in the order of their bits; one that is no number counts as
  // large.
  uint32_t most = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) most = max(most, halves[i] & 0x7FFF);
  const int exponent = static_cast<int>(WarpMax(most) >> 10) - 15;
  const int up = min(8 - exponent, 14);
  const auto factor = static_cast<uint32_t>(up + 15) << 10;
  const __half2 factors = AsHalves(factor | factor << 16);
  uint32_t* tile = row + at / 16 * kSingleTileWords;
  *reinterpret_cast<uint2*>(tile + at % 16 / 2) =
      make_uint2(AsWord(__hmul2(AsHalves(halves[0] | halves[1] << 16), factors)),
                 AsWord(__hmul2(AsHalves(halves[2] | halves[3] << 16), factors)));
  if (at % 16 == 0) tile[8] = static_cast<uint32_t>(127 - up) << 23;
}

// Rounds a block's four inputs of this lane and stages them as the block's number of rows wants.
QUARTET_DEVICE void Stage(const float* v, int at, const InputSlice& slice, int row,
                          uint32_t* shared) {
  uint32_t halves[4], saturated = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) halves[i] = HalfBits(v[i], saturated);
  CountSaturated(saturated, slice.saturation);
  if (slice.rows == 1) {
    StageFourSingle(halves, at, shared);
  } else {
    StageFour(halves, at, shared + row * slice.row_words);
  }
}

// Rows of x: scaled, transformed and rounded here. Row r of the slice is row x_rows[r] of x.
// `meanwhile` is called when the first loads are under way. There is little code on purpose: with
// half of it, and these loads first, the inputs of one row were ready 0.7 us sooner.
template <typename Meanwhile>
QUARTET_DEVICE void StageRows(const Exl3ProductParams& p, const InputSlice& slice,
                              const int32_t* x_rows, const uint16_t* suh, uint32_t* shared,
                              Meanwhile meanwhile) {
  const int blocks = slice.inputs / kBlock;  // of a row
  const int tasks = slice.rows * blocks;
  if (Warp() >= tasks) meanwhile();
#pragma unroll 1
  for (int task = Warp(); task < tasks; task += WarpsOfBlock()) {
    const int row = task / blocks;
    const int at_slice = task % blocks * kBlock + 4 * Lane();
    float v[4], scale[4];
    LoadPadded(p.x + x_rows[row] * p.x_stride, slice.begin + at_slice, p.used_in, v);
    LoadHalves(suh + slice.begin + at_slice, scale);
    if (task == Warp()) meanwhile();
#pragma unroll
    for (int i = 0; i < 4; ++i) v[i] *= scale[i];
    Hadamard(v);
    Stage(v, at_slice, slice, row, shared);
  }
}

// The activations of gate and up, made here by every block that needs them: they are few, and no
// kernel must wait for another to make them. Row r of the slice is slots[r].
QUARTET_DEVICE void StageActivations(const Exl3ProductParams& p, const InputSlice& slice,
                                     const Exl3Group& group, uint32_t* shared) {
  const int blocks = slice.inputs / kBlock;  // of a row
  const int64_t width = 2 * static_cast<int64_t>(p.in);
#pragma unroll 1
  for (int task = Warp(); task < slice.rows * blocks; task += WarpsOfBlock()) {
    const int row = task / blocks;
    const int at_slice = task % blocks * kBlock + 4 * Lane();
    const int at = slice.begin + at_slice;
    float gate_up[2][4], gate_scale[4], up_scale[4], scale[4], v[4];
    LoadHalves(group.matrices[0].svh + at, gate_scale);
    LoadHalves(group.matrices[1].svh + at, up_scale);
    LoadHalves(group.matrices[2].suh + at, scale);
    SumParts<2>(p.gate_up + group.slots[row] * width + at, p.in, p.slots * width, p.gate_up_parts,
                gate_up);
    Activate(gate_up[0], gate_up[1], gate_scale, up_scale, at, p.used_in, p.limit, v);
#pragma unroll
    for (int i = 0; i < 4; ++i) v[i] *= scale[i];
    Hadamard(v);
    Stage(v, at_slice, slice, row, shared);
  }
}

}  // namespace quartet::cuda::exl3

#endif  // QUARTET_KERNELS_CUDA_DEVICE_EXL3_INPUT_CUH_
