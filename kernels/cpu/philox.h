#ifndef QUARTET_KERNELS_CPU_PHILOX_H_
#define QUARTET_KERNELS_CPU_PHILOX_H_

#include <array>
#include <cstdint>

namespace quartet::cpu {

// Philox4x32-10, the counter-based generator of Salmon, Moraes, Dror and Shaw ("Parallel random
// numbers: as easy as 1, 2, 3", 2011): 128 random bits as a pure function of counter and key.
inline std::array<uint32_t, 4> Philox4x32(std::array<uint32_t, 4> counter,
                                          std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    if (round > 0) {
      key[0] += 0x9E3779B9u;
      key[1] += 0xBB67AE85u;
    }
    const uint64_t product0 = uint64_t{0xD2511F53u} * counter[0];
    const uint64_t product1 = uint64_t{0xCD9E8D57u} * counter[2];
    counter = {static_cast<uint32_t>(product1 >> 32) ^ counter[1] ^ key[0],
               static_cast<uint32_t>(product1),
               static_cast<uint32_t>(product0 >> 32) ^ counter[3] ^ key[1],
               static_cast<uint32_t>(product0)};
  }
  return counter;
}

// Uniform in (0, 1): the middles of 2^52 equal cells, so neither end occurs.
inline double UniformOpen(uint32_t high, uint32_t low) {
  const uint64_t cell = (uint64_t{high} << 32 | low) >> 12;
  return (static_cast<double>(cell) + 0.5) * 0x1p-52;
}

}  // namespace quartet::cpu

#endif  // QUARTET_KERNELS_CPU_PHILOX_H_
