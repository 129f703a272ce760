#ifndef QUARTET_KERNELS_CUDA_SAMPLER_NOISE_CUH_
#define QUARTET_KERNELS_CUDA_SAMPLER_NOISE_CUH_

#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/sampler_params.h"

namespace quartet::cuda {

// What a random number is for: the last word of the generator's counter.
constexpr uint32_t kSampleDraw = 0;
constexpr uint32_t kSampleAccept = 1;

// The first two words of Philox4x32-10, bit for bit those of kernels/cpu/philox.h, as one number.
QUARTET_DEVICE uint64_t Philox(uint32_t c0, uint32_t c1, uint32_t c2, uint32_t c3, uint32_t k0,
                               uint32_t k1) {
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const uint32_t high0 = __umulhi(0xD2511F53u, c0), low0 = 0xD2511F53u * c0;
    const uint32_t high1 = __umulhi(0xCD9E8D57u, c2), low1 = 0xCD9E8D57u * c2;
    c0 = high1 ^ c1 ^ k0;
    c1 = low1;
    c2 = high0 ^ c3 ^ k1;
    c3 = low0;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return static_cast<uint64_t>(c0) << 32 | c1;
}

// Within two units in the last place; the conversion of 64 bits is a slow one.
QUARTET_DEVICE float ToFloat(uint64_t v) {
  return fmaf(static_cast<float>(static_cast<uint32_t>(v >> 32)), 0x1p32f,
              static_cast<float>(static_cast<uint32_t>(v)));
}

// -log(-log(u)), u the middle of one of 2^52 equal cells of (0, 1), within 5e-6. FP32 holds u well
// near 0 but not near 1, so there the inner logarithm is the series in 1 - u.
QUARTET_DEVICE float GumbelNoise(const SampleRow& row, int id) {
  const uint64_t cell = Philox(static_cast<uint32_t>(id), row.position, row.choice, kSampleDraw,
                               row.key[0], row.key[1]) >>
                        12;
  const uint64_t twice = 2 * cell + 1;  // u in units of 2^-53
  const float u = ToFloat(twice) * 0x1p-53f;
  const float w = ToFloat((uint64_t{1} << 53) - twice) * 0x1p-53f;  // 1 - u
  constexpr float kSeriesUpTo = 0.0625f;
  const float series =
      w + w * w * (1 / 2.f + w * (1 / 3.f + w * (1 / 4.f + w * (1 / 5.f + w * (1 / 6.f)))));
  return -logf(w < kSeriesUpTo ? series : -logf(u));
}

QUARTET_DEVICE double DrawValue(const SampleRow& row, float logit, int id) {
  return static_cast<double>(logit) * row.over_temperature +
         static_cast<double>(GumbelNoise(row, id));
}

// Order-preserving map from logits to integers above 0, -0 as +0, and back.
QUARTET_DEVICE uint32_t LogitKey(float logit) {
  const uint32_t bits = __float_as_uint(logit + 0.0f);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}
QUARTET_DEVICE float LogitOfKey(uint32_t key) {
  return __uint_as_float((key & 0x80000000u) != 0 ? key & 0x7FFFFFFFu : ~key);
}

// A value with an id; the better one is the larger, on a tie the one with the lower id.
struct Candidate {
  double value;
  int32_t id;  // -1: none
};

QUARTET_DEVICE Candidate Better(Candidate a, Candidate b) {
  if (b.id < 0) return a;
  if (a.id < 0) return b;
  return b.value > a.value || (b.value == a.value && b.id < a.id) ? b : a;
}

QUARTET_DEVICE Candidate WarpBest(Candidate c) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) {
    const Candidate other = {__shfl_xor_sync(0xFFFFFFFFu, c.value, offset),
                             __shfl_xor_sync(0xFFFFFFFFu, c.id, offset)};
    c = Better(c, other);
  }
  return c;
}

// Every thread gets the block's best. `scratch` holds one candidate a warp.
QUARTET_DEVICE Candidate BlockBest(Candidate c, Candidate* scratch) {
  c = WarpBest(c);
  __syncthreads();
  if ((threadIdx.x & 31) == 0) scratch[threadIdx.x / 32] = c;
  __syncthreads();
  Candidate best = scratch[0];
  for (unsigned i = 1; i < blockDim.x / 32; ++i) best = Better(best, scratch[i]);
  return best;
}

}  // namespace quartet::cuda

#endif  // QUARTET_KERNELS_CUDA_SAMPLER_NOISE_CUH_
