// Runs a fuzz target over a small seeded corpus, without libFuzzer.
#ifndef QUARTET_TESTS_FUZZ_FUZZ_CORPUS_H_
#define QUARTET_TESTS_FUZZ_FUZZ_CORPUS_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <string_view>
#include <vector>

namespace quartet::fuzz {

// `seed` with a few random changes: bytes replaced, pieces removed, doubled or moved.
inline std::string Damaged(std::string text, std::mt19937& random) {
  const size_t changes = 1 + random() % 4;
  for (size_t i = 0; i < changes && !text.empty(); ++i) {
    const size_t at = random() % text.size();
    const size_t bytes = 1 + random() % std::min<size_t>(16, text.size() - at);
    const std::string piece = text.substr(at, bytes);
    switch (random() % 4) {
      case 0:
        text[at] = static_cast<char>(random());
        break;
      case 1:
        text.erase(at, bytes);
        break;
      case 2:
        text.insert(random() % text.size(), piece);
        break;
      default:
        text.insert(at, piece + piece);
    }
  }
  return text;
}

// A target fails by ending the process, so that surviving is what is tested.
inline void RunTarget(void (*target)(std::string_view), const std::vector<std::string>& seeds,
                      int rounds) {
  std::mt19937 random(5);
  int runs = 0;
  for (const std::string& seed : seeds) {
    target(seed);
    for (int i = 0; i < rounds; ++i, ++runs) target(Damaged(seed, random));
  }
  EXPECT_EQ(runs, static_cast<int>(seeds.size()) * rounds);
}

}  // namespace quartet::fuzz

#endif  // QUARTET_TESTS_FUZZ_FUZZ_CORPUS_H_
