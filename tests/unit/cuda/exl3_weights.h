#ifndef QUARTET_TESTS_UNIT_CUDA_EXL3_WEIGHTS_H_
#define QUARTET_TESTS_UNIT_CUDA_EXL3_WEIGHTS_H_

#include <cmath>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kernels/cpu/convert.h"
#include "kernels/ops/weights.h"
#include "tests/unit/kernels/support.h"

namespace quartet::testing {

inline constexpr ops::TileOrder kTileOrders[] = {ops::TileOrder::kSm80,
                                                 ops::TileOrder::kColumnMajor};

// An EXL3 matrix of random bits, which are a valid stream at every width, with random scales such
// that y = x W keeps about the size of x. Owns its data.
class RandomExl3 {
 public:
  struct Kind {
    int bits = 2;
    ops::Codebook codebook = ops::Codebook::kMcg;
    ops::TileOrder order = ops::TileOrder::kSm80;
  };

  RandomExl3(int64_t in, int64_t out, Kind kind, uint32_t seed)
      : trellis_(in * out / 16 * kind.bits), suh_(in), svh_(out) {
    std::mt19937 bits = Random(seed);
    for (uint16_t& word : trellis_) word = static_cast<uint16_t>(bits());
    std::normal_distribution<float> normal;
    const auto scale = [&](float size) {
      bool saturated = false;
      const float sign = (bits() & 1) != 0 ? -1.0f : 1.0f;
      return cpu::F32ToF16(sign * size * (1.0f + 0.2f * normal(bits)), &saturated);
    };
    for (uint16_t& s : suh_) s = scale(1.0f / std::sqrt(static_cast<float>(in)));
    for (uint16_t& s : svh_) s = scale(1.0f);
    view_.bits = kind.bits;
    view_.codebook = kind.codebook;
    view_.tile_order = kind.order;
    view_.in = in;
    view_.out = out;
    view_.trellis = reinterpret_cast<const std::byte*>(trellis_.data());
    view_.tile_row_stride = out / 16;
    view_.suh = reinterpret_cast<const std::byte*>(suh_.data());
    view_.svh = reinterpret_cast<const std::byte*>(svh_.data());
  }
  RandomExl3(RandomExl3&&) = default;

  static std::string Name(const Kind& kind) {
    const char* codebooks[] = {"mcg", "mul1", "3inst"};
    return "K" + std::to_string(kind.bits) + " " + codebooks[static_cast<int>(kind.codebook)] +
           (kind.order == ops::TileOrder::kSm80 ? " sm80" : " colmajor");
  }

  const ops::Exl3Matrix& view() const { return view_; }

 private:
  std::vector<uint16_t> trellis_, suh_, svh_;
  ops::Exl3Matrix view_;
};

}  // namespace quartet::testing

#endif  // QUARTET_TESTS_UNIT_CUDA_EXL3_WEIGHTS_H_
