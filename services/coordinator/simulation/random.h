#ifndef QUARTET_SERVICES_COORDINATOR_SIMULATION_RANDOM_H_
#define QUARTET_SERVICES_COORDINATOR_SIMULATION_RANDOM_H_

#include <bit>
#include <cstdint>
#include <initializer_list>

namespace quartet::simulation {

// The splitmix64 finaliser: every bit of input reaches every bit of output.
constexpr uint64_t Mix(uint64_t value) {
  value += 0x9e3779b97f4a7c15u;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
  return value ^ (value >> 31);
}

// Random numbers that are the same everywhere: integers only, and no distribution of the standard
// library, whose results are its makers' choice.
class Random {
 public:
  // Streams of one seed are independent of each other, so that a change in what one part draws does
  // not shift what the others draw.
  Random(uint64_t seed, uint64_t stream) : state_(Mix(seed) ^ Mix(~stream)) {}

  uint64_t Next() { return Mix(state_ += 0x9e3779b97f4a7c15u); }
  // 0 to n - 1.
  uint32_t Below(uint32_t n) { return static_cast<uint32_t>(((Next() >> 32) * n) >> 32); }
  // Both ends included.
  uint32_t Between(uint32_t low, uint32_t high) { return low + Below(high - low + 1); }
  bool Permille(uint32_t n) { return Below(1000) < n; }
  uint32_t OneOf(std::initializer_list<uint32_t> values) {
    return values.begin()[Below(static_cast<uint32_t>(values.size()))];
  }
  // The time to the next of independent events that come once in `mean` on average: exponential,
  // made of straight pieces, one for each halving of the probability.
  uint64_t Gap(uint64_t mean) {
    const auto halvings = static_cast<uint64_t>(std::countl_zero(Next() | 1));
    const uint64_t part = Next() >> 54;  // 1024ths
    // The mean of halvings + part is 1.5.
    return mean * (halvings * 1024 + part) / 1536;
  }

 private:
  uint64_t state_;
};

}  // namespace quartet::simulation

#endif  // QUARTET_SERVICES_COORDINATOR_SIMULATION_RANDOM_H_
