#ifndef QUARTET_SHARD_WORKER_EXECUTOR_AGREEMENT_HASH_H_
#define QUARTET_SHARD_WORKER_EXECUTOR_AGREEMENT_HASH_H_

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace quartet {

// A 64-bit hash of a sequence of values, the same on every rank and in every build. Not for
// adversaries: it finds ranks that computed different things.
class AgreementHash {
 public:
  void Add(uint64_t value) {
    // One round of the splitmix64 finaliser over state and value.
    uint64_t z = state_ ^ (value + 0x9E3779B97F4A7C15ull);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    state_ = (z ^ (z >> 31)) + 0x9E3779B97F4A7C15ull;
  }
  void AddBytes(const void* data, size_t bytes) {
    const auto* p = static_cast<const unsigned char*>(data);
    for (; bytes >= 8; p += 8, bytes -= 8) {
      uint64_t word;
      std::memcpy(&word, p, 8);
      Add(word);
    }
    uint64_t last = 0;
    std::memcpy(&last, p, bytes);
    if (bytes > 0) Add(last);
  }
  uint64_t value() const { return state_; }

 private:
  uint64_t state_ = 0x5157415254455431ull;
};

}  // namespace quartet

#endif  // QUARTET_SHARD_WORKER_EXECUTOR_AGREEMENT_HASH_H_
