#ifndef QUARTET_SHARD_WORKER_MEMORY_CHECKSUM_H_
#define QUARTET_SHARD_WORKER_MEMORY_CHECKSUM_H_

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace quartet {

// 64 bits over some bytes, to find damage: any change within one aligned word of eight is found for
// certain, any other with all but certainty. Not for adversaries. The same on every machine with
// little-endian words, and part of the format of files.
inline uint64_t Checksum64(std::span<const std::byte> bytes) {
  // Four lanes, since one would wait for its own multiplication. Each step is a bijection of its
  // lane for a given word, and of the words for a given lane.
  constexpr uint64_t kMultiplier = 0x9e3779b97f4a7c15ull;
  uint64_t lanes[4] = {0x243f6a8885a308d3ull, 0x13198a2e03707344ull, 0xa4093822299f31d0ull,
                       0x082efa98ec4e6c89ull};
  const auto mix = [](uint64_t lane, uint64_t word) {
    return std::rotl((lane ^ word) * kMultiplier, 29);
  };
  const std::byte* at = bytes.data();
  size_t left = bytes.size();
  for (; left >= sizeof(lanes); at += sizeof(lanes), left -= sizeof(lanes)) {
    uint64_t words[4];
    std::memcpy(words, at, sizeof(words));
    for (int i = 0; i < 4; ++i) lanes[i] = mix(lanes[i], words[i]);
  }
  for (int i = 0; left > 0; ++i) {
    uint64_t word = 0;
    const size_t count = left < sizeof(word) ? left : sizeof(word);
    std::memcpy(&word, at, count);
    lanes[i] = mix(lanes[i], word);
    at += count;
    left -= count;
  }
  uint64_t sum = bytes.size();
  for (const uint64_t lane : lanes) {
    sum = (sum ^ lane) * 0xbf58476d1ce4e5b9ull;
    sum ^= sum >> 31;
  }
  return sum;
}

}  // namespace quartet

#endif  // QUARTET_SHARD_WORKER_MEMORY_CHECKSUM_H_
