#ifndef QUARTET_KERNELS_CUDA_PEER_STRESS_PARAMS_H_
#define QUARTET_KERNELS_CUDA_PEER_STRESS_PARAMS_H_

#include <cstdint>

#include "kernels/cuda/peer_params.h"

// Kernels that look for values that are wrong or of another call (kernels/cuda/peer_stress.cu).

namespace quartet::cuda {

// What the checks found, in device memory.
struct StressReport {
  unsigned long long checked;
  unsigned long long wrong;
  // Of the first wrong value that was noticed.
  uint32_t iteration;
  uint32_t rank;
  uint32_t index;
  float expected;
  float found;
};

constexpr uint32_t StressHash(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t h = a * 0x9E3779B1u ^ (b + 0x7F4A7C15u) * 0x85EBCA6Bu ^ (c + 0x165667B1u) * 0xC2B2AE35u;
  h = (h ^ h >> 15) * 0x2C1B3C6Du;
  h = (h ^ h >> 12) * 0x297A2D39u;
  return h ^ h >> 15;
}
// What a rank contributes in an iteration.
enum class StressValues : uint32_t {
  kAnyFloat,  // from 2^-8 to 2^8, either sign, 27 random bits: the sum tells in which order it was
              // made
  kInteger,   // below 2^20: the same sum in any order
};
// The value, which only this rank, iteration and index have (up to chance), as bits for kAnyFloat
// and as a number for kInteger.
constexpr uint32_t StressBits(StressValues values, uint32_t rank, uint32_t iteration,
                              uint32_t index) {
  const uint32_t h = StressHash(rank, iteration, index);
  if (values == StressValues::kInteger) return h & 0xFFFFFu;
  return (h & 0x807FFFFFu) | (119u + (h >> 23 & 15u)) << 23;
}

// All ranks of a group as blocks of one kernel, for as many iterations as one likes: the same code
// as between GPUs, without their links. Block b is block b % kPeerBlocks of rank b / kPeerBlocks.
struct PeerStressParams {
  const PeerGroup* groups;  // [size], in device memory
  float* data;              // [size][max_count], summed in place
  uint32_t* arrived;        // [size], zeros
  StressReport* report;
  int64_t max_count;
  uint32_t counts[8];  // iteration i sums counts[i % 8] values
  uint32_t first_iteration;
  uint32_t iterations;
};

// Fills data[0, count) with the values of this rank, after a delay of up to delay_ns that every
// rank and iteration has its own of.
struct StressFillParams {
  float* data;
  int64_t count;
  const uint32_t* iteration;  // in device memory
  uint32_t rank;
  uint32_t delay_ns;
  StressValues values;
};

// Compares with the sum over ranks (gathered: 0) or with what each rank has filled in (1).
struct StressCheckParams {
  const float* data;
  int64_t count;
  const uint32_t* iteration;
  StressReport* report;
  uint32_t size;
  uint32_t gathered;
  StressValues values;
};

}  // namespace quartet::cuda

#endif  // QUARTET_KERNELS_CUDA_PEER_STRESS_PARAMS_H_
