// A fuzz target is a libFuzzer entry point, or, in the unit test that runs all targets over a small
// corpus, a function.
#ifndef QUARTET_TESTS_FUZZ_TEXT_FUZZ_TARGET_H_
#define QUARTET_TESTS_FUZZ_TEXT_FUZZ_TARGET_H_

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#ifdef QUARTET_FUZZ_CORPUS_TEST
#define QUARTET_FUZZ_TARGET(name)    \
  namespace quartet::fuzz {          \
  void name(std::string_view input); \
  }                                  \
  void quartet::fuzz::name(std::string_view input)
#else
#define QUARTET_FUZZ_TARGET(name)                                           \
  static void name(std::string_view input);                                 \
  extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) { \
    name(std::string_view(reinterpret_cast<const char*>(data), size));      \
    return 0;                                                               \
  }                                                                         \
  static void name(std::string_view input)
#endif

namespace quartet::fuzz {

// A property that must hold for every input.
inline void Require(bool holds) {
  if (!holds) std::abort();
}

}  // namespace quartet::fuzz

#endif  // QUARTET_TESTS_FUZZ_TEXT_FUZZ_TARGET_H_
