#include "kernels/cuda/device/peer.cuh"
#include "kernels/cuda/peer_stress_params.h"

namespace quartet::cuda {

QUARTET_DEVICE float StressValue(StressValues values, uint32_t rank, uint32_t iteration,
                                 uint32_t index) {
  const uint32_t bits = StressBits(values, rank, iteration, index);
  return values == StressValues::kInteger ? static_cast<float>(bits) : __uint_as_float(bits);
}
QUARTET_DEVICE float StressSum(StressValues values, uint32_t size, uint32_t iteration,
                               uint32_t index) {
  float sum = StressValue(values, 0, iteration, index);
  for (uint32_t r = 1; r < size; ++r) sum += StressValue(values, r, iteration, index);
  return sum;
}

QUARTET_DEVICE void CompareStress(StressReport* report, uint32_t iteration, uint32_t rank,
                                  uint32_t index, float expected, float found) {
  if (__float_as_uint(expected) == __float_as_uint(found)) return;
  if (atomicAdd(&report->wrong, 1ull) != 0) return;
  report->iteration = iteration;
  report->rank = rank;
  report->index = index;
  report->expected = expected;
  report->found = found;
}

// All blocks of one rank, as between two kernels.
QUARTET_DEVICE void RankBarrier(uint32_t* arrived, uint32_t target) {
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();
    atomicAdd(arrived, 1u);
    while (LoadSystem(arrived) < target) {
    }
    __threadfence();
  }
  __syncthreads();
}

QUARTET_KERNEL(peer_stress, kPeerThreads, 1, PeerStressParams) {
  const uint32_t rank = blockIdx.x / kPeerBlocks;
  const uint32_t block = blockIdx.x % kPeerBlocks;
  const PeerGroup group = p.groups[rank];
  float* data = p.data + rank * p.max_count;
  constexpr int64_t kStep = int64_t{kPeerBlocks} * kPeerThreads;
  const int64_t first = int64_t{block} * kPeerThreads + threadIdx.x;
  for (uint32_t n = 0; n < p.iterations; ++n) {
    const uint32_t i = p.first_iteration + n;
    const int64_t count = p.counts[i % 8];
    // The threads of the sum each fill and check the pair that they send.
    for (int64_t slot = first; 2 * slot < count; slot += kStep) {
      for (int64_t k = 2 * slot; k < 2 * slot + 2 && k < count; ++k) {
        data[k] = StressValue(StressValues::kAnyFloat, rank, i, static_cast<uint32_t>(k));
      }
    }
    const uint32_t dice =
        StressHash(rank, i, 0x10000u + blockIdx.x * kPeerThreads + threadIdx.x / 32);
    if (dice % 64 == 0) Nap(dice >> 20);
    PeerAllReduce(group, block, data, data, count);
    for (int64_t slot = first; 2 * slot < count; slot += kStep) {
      for (int64_t k = 2 * slot; k < 2 * slot + 2 && k < count; ++k) {
        const uint32_t index = static_cast<uint32_t>(k);
        CompareStress(p.report, i, rank, index,
                      StressSum(StressValues::kAnyFloat, group.size, i, index), data[k]);
      }
    }
    if (block == 0 && threadIdx.x == 0) {
      atomicAdd(&p.report->checked, static_cast<unsigned long long>(count));
    }
    RankBarrier(p.arrived + rank, (n + 1) * kPeerBlocks);
  }
}

QUARTET_KERNEL(stress_fill, 256, 1, StressFillParams) {
  const uint32_t iteration = *p.iteration;
  // Whole iterations are late, not single blocks: those wait for their like in other ranks.
  if (p.delay_ns > 0) {
    const uint64_t until = WallNanoseconds() + StressHash(p.rank, iteration, 0x20000u) % p.delay_ns;
    while (WallNanoseconds() < until) Nap(200);
  }
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < p.count; i += step) {
    p.data[i] = StressValue(p.values, p.rank, iteration, static_cast<uint32_t>(i));
  }
}

QUARTET_KERNEL(stress_check, 256, 1, StressCheckParams) {
  const uint32_t iteration = *p.iteration;
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  const int64_t values = p.gathered != 0 ? p.count * p.size : p.count;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < values; i += step) {
    const uint32_t index = static_cast<uint32_t>(i % p.count);
    const uint32_t rank = static_cast<uint32_t>(i / p.count);
    const float expected = p.gathered != 0 ? StressValue(p.values, rank, iteration, index)
                                           : StressSum(p.values, p.size, iteration, index);
    CompareStress(p.report, iteration, rank, index, expected, p.data[i]);
  }
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    atomicAdd(&p.report->checked, static_cast<unsigned long long>(values));
  }
}

}  // namespace quartet::cuda
