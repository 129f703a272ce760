#ifndef QUARTET_TESTS_UNIT_KERNELS_SUPPORT_H_
#define QUARTET_TESTS_UNIT_KERNELS_SUPPORT_H_

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/memory.h"
#include "kernels/ops/backend.h"
#include "tests/unit/kernels/tensor_file.h"

namespace quartet::testing {

// The value of a StatusOr that must hold one.
template <class T>
T Must(absl::StatusOr<T> value) {
  if (!value.ok()) throw std::runtime_error(std::string(value.status().message()));
  return *std::move(value);
}

// A workspace of its own, filled with NaN so that an op that reads before it writes is found out.
class Scratch {
 public:
  explicit Scratch(size_t bytes)
      : floats_(cpu::AllocateFloats(bytes / sizeof(float) + 1)), bytes_(bytes) {
    std::memset(floats_.get(), 0xFF, bytes);
  }
  operator ops::Workspace() const { return {reinterpret_cast<std::byte*>(floats_.get()), bytes_}; }

 private:
  cpu::AlignedFloats floats_;
  size_t bytes_;
};

// What draws a test's numbers: the same in every run, or others where QUARTET_TEST_SEED is set.
inline std::mt19937 Random(uint32_t seed) {
  const char* other = std::getenv("QUARTET_TEST_SEED");
  const uint32_t shift = other == nullptr ? 0 : static_cast<uint32_t>(std::atoi(other));
  return std::mt19937(seed + 2654435761u * shift);
}

inline std::vector<float> RandomFloats(size_t count, float deviation, uint32_t seed) {
  std::mt19937 bits = Random(seed);
  std::normal_distribution<float> normal(0.0f, deviation);
  std::vector<float> out(count);
  for (float& value : out) value = normal(bits);
  return out;
}

inline ops::DenseMatrix DenseF32(const std::vector<float>& data, int64_t rows, int64_t cols) {
  ops::DenseMatrix matrix;
  matrix.data = reinterpret_cast<const std::byte*>(data.data());
  matrix.rows = rows;
  matrix.cols = cols;
  matrix.row_stride = cols;
  return matrix;
}

inline ops::VectorView VectorF32(const std::vector<float>& data) {
  return {ops::DType::kF32, reinterpret_cast<const std::byte*>(data.data()),
          static_cast<int64_t>(data.size())};
}

template <class A, class B>
double MaxDifference(const A& a, const B& b) {
  EXPECT_EQ(std::size(a), std::size(b));
  double worst = 0.0;
  for (size_t i = 0; i < std::size(a); ++i) {
    const double difference = std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i]));
    if (!(difference <= worst)) worst = difference;  // NaN sticks
  }
  return worst;
}

template <class A>
double MaxMagnitude(const A& a) {
  double worst = 0.0;
  for (size_t i = 0; i < std::size(a); ++i) {
    worst = std::max(worst, std::abs(static_cast<double>(a[i])));
  }
  return worst;
}

// |a - b| / |b| over all elements.
template <class A, class B>
double RelativeL2(const A& a, const B& b) {
  EXPECT_EQ(std::size(a), std::size(b));
  double difference = 0.0;
  double norm = 0.0;
  for (size_t i = 0; i < std::size(a); ++i) {
    const double d = static_cast<double>(a[i]) - static_cast<double>(b[i]);
    difference += d * d;
    norm += static_cast<double>(b[i]) * static_cast<double>(b[i]);
  }
  return std::sqrt(difference / norm);
}

// Both hold the same bits.
inline ::testing::AssertionResult SameBits(std::span<const float> a, std::span<const float> b) {
  if (a.size() != b.size()) {
    return ::testing::AssertionFailure() << a.size() << " floats against " << b.size();
  }
  for (size_t i = 0; i < a.size(); ++i) {
    if (std::memcmp(&a[i], &b[i], sizeof(float)) != 0) {
      return ::testing::AssertionFailure()
             << "element " << i << ": " << a[i] << " against " << b[i];
    }
  }
  return ::testing::AssertionSuccess();
}

// Segments of one sequence in slot `slot`: rows cut into pieces of the given lengths, the first at
// `position`, laid out from row `row` on.
inline std::vector<ops::Segment> Pieces(const std::vector<int>& lengths, int row, int position,
                                        int slot, std::span<const int32_t> pages = {}) {
  std::vector<ops::Segment> segments;
  for (int length : lengths) {
    segments.push_back({row, length, slot, position, pages});
    row += length;
    position += length;
  }
  return segments;
}

}  // namespace quartet::testing

#endif  // QUARTET_TESTS_UNIT_KERNELS_SUPPORT_H_
