#include "kernels/cpu/convert.h"

#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/cpu/context.h"
#include "kernels/cpu/kv.h"
#include "tests/unit/kernels/support.h"

namespace quartet::cpu {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

// A binary float with `mantissa` bits and bias `bias`, by the definition.
double ByDefinition(uint32_t bits, int exponent_bits, int mantissa_bits, int bias) {
  const int sign = (bits >> (exponent_bits + mantissa_bits)) & 1;
  const int exponent = (bits >> mantissa_bits) & ((1 << exponent_bits) - 1);
  const int mantissa = bits & ((1 << mantissa_bits) - 1);
  const double value =
      exponent == 0 ? std::ldexp(mantissa, 1 - bias - mantissa_bits)
                    : std::ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
  return sign != 0 ? -value : value;
}

TEST(F16, EveryValueWidensByTheDefinitionAndComesBack) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const float value = F16ToF32(static_cast<uint16_t>(bits));
    const uint32_t magnitude = bits & 0x7FFF;
    if (magnitude > 0x7C00) {
      ASSERT_TRUE(std::isnan(value)) << bits;
      continue;
    }
    if (magnitude == 0x7C00) {
      ASSERT_TRUE(std::isinf(value)) << bits;
      continue;
    }
    ASSERT_EQ(value, ByDefinition(bits, 5, 10, 15)) << bits;
    bool saturated = false;
    ASSERT_EQ(F32ToF16(value, &saturated), bits);
    ASSERT_FALSE(saturated) << bits;
  }
}

TEST(F16, MidpointsGoToEvenAndTheirNeighboursToTheNearer) {
  for (uint32_t bits = 0; bits < 0x7BFF; ++bits) {
    const float low = F16ToF32(static_cast<uint16_t>(bits));
    const float high = F16ToF32(static_cast<uint16_t>(bits + 1));
    const float middle = (low + high) / 2;  // exact in FP32
    bool saturated = false;
    ASSERT_EQ(F32ToF16(middle, &saturated), bits + (bits & 1)) << bits;
    ASSERT_EQ(F32ToF16(std::nextafter(middle, 0.0f), &saturated), bits) << bits;
    ASSERT_EQ(F32ToF16(std::nextafter(middle, kInf), &saturated), bits + 1) << bits;
    ASSERT_EQ(F32ToF16(-middle, &saturated), 0x8000 | (bits + (bits & 1))) << bits;
    ASSERT_FALSE(saturated) << bits;
  }
}

TEST(F16, TooLargeSaturatesAndSaysSo) {
  bool saturated = false;
  EXPECT_EQ(F32ToF16(std::nextafter(65520.0f, 0.0f), &saturated), 0x7BFF);
  EXPECT_FALSE(saturated) << "rounds to 65504 by itself";
  EXPECT_EQ(F32ToF16(65520.0f, &saturated), 0x7BFF);
  EXPECT_TRUE(saturated);
  saturated = false;
  EXPECT_EQ(F32ToF16(-kInf, &saturated), 0xFBFF);
  EXPECT_TRUE(saturated);
  saturated = false;
  EXPECT_TRUE(std::isnan(F16ToF32(F32ToF16(std::nanf(""), &saturated))));
  EXPECT_FALSE(saturated);
}

TEST(E4m3, EveryValueWidensByTheDefinitionAndComesBack) {
  const std::array<float, 256> table = E4m3Table();
  for (uint32_t bits = 0; bits < 256; ++bits) {
    if ((bits & 0x7F) == 0x7F) {
      ASSERT_TRUE(std::isnan(table[bits])) << bits;
      continue;
    }
    ASSERT_EQ(table[bits], ByDefinition(bits, 4, 3, 7)) << bits;
    bool saturated = false;
    ASSERT_EQ(F32ToE4m3(table[bits], &saturated), bits);
    ASSERT_FALSE(saturated) << bits;
  }
  EXPECT_EQ(table[0x7E], 448.0f);
}

TEST(E4m3, MidpointsGoToEvenAndTheirNeighboursToTheNearer) {
  for (uint32_t bits = 0; bits < 0x7E; ++bits) {
    const float middle =
        (E4m3ToF32(static_cast<uint8_t>(bits)) + E4m3ToF32(static_cast<uint8_t>(bits + 1))) / 2;
    bool saturated = false;
    ASSERT_EQ(F32ToE4m3(middle, &saturated), bits + (bits & 1)) << bits;
    ASSERT_EQ(F32ToE4m3(std::nextafter(middle, 0.0f), &saturated), bits) << bits;
    ASSERT_EQ(F32ToE4m3(std::nextafter(middle, kInf), &saturated), bits + 1) << bits;
    ASSERT_EQ(F32ToE4m3(-middle, &saturated), 0x80 | (bits + (bits & 1))) << bits;
    ASSERT_FALSE(saturated) << bits;
  }
}

TEST(E4m3, TooLargeSaturatesAt448AndSaysSo) {
  bool saturated = false;
  EXPECT_EQ(F32ToE4m3(464.0f, &saturated), 0x7E) << "a tie goes to the even 448";
  EXPECT_FALSE(saturated);
  EXPECT_EQ(F32ToE4m3(std::nextafter(464.0f, kInf), &saturated), 0x7E);
  EXPECT_TRUE(saturated);
  saturated = false;
  EXPECT_EQ(F32ToE4m3(-kInf, &saturated), 0xFE);
  EXPECT_TRUE(saturated);
  saturated = false;
  EXPECT_EQ(F32ToE4m3(std::numeric_limits<float>::denorm_min(), &saturated), 0);
  EXPECT_EQ(F32ToE4m3(std::nanf(""), &saturated) & 0x7F, 0x7F);
  EXPECT_FALSE(saturated);
}

TEST(StoredRows, VectorWideningOfHalvesEqualsTheBitwiseOne) {
  std::vector<uint16_t> halves;
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    if ((bits & 0x7FFF) <= 0x7C00) halves.push_back(static_cast<uint16_t>(bits));
  }
  std::vector<float> wide(halves.size());
  LoadRow(Stored::kF16, reinterpret_cast<const std::byte*>(halves.data()), halves.size(),
          E4m3Table(), wide.data());
  for (size_t i = 0; i < halves.size(); ++i) {
    const float expected = F16ToF32(halves[i]);
    ASSERT_EQ(std::memcmp(&wide[i], &expected, 4), 0) << halves[i];
  }
}

TEST(StoredRows, SaturationIsCountedPerFormat) {
  SaturationCounters counters;
  const std::vector<float> row = {1.0f, 1e6f, -500.0f, 3.0f, kInf};
  std::vector<std::byte> stored(row.size() * 4);
  StoreRow(Stored::kF32, row.data(), row.size(), stored.data(), &counters);
  EXPECT_EQ(counters.f16 + counters.e4m3, 0u);
  StoreRow(Stored::kF16, row.data(), row.size(), stored.data(), &counters);
  EXPECT_EQ(counters.f16, 2u);
  StoreRow(Stored::kE4m3, row.data(), row.size(), stored.data(), &counters);
  EXPECT_EQ(counters.e4m3, 3u);
  std::vector<float> back(row.size());
  LoadRow(Stored::kE4m3, stored.data(), row.size(), E4m3Table(), back.data());
  EXPECT_EQ(back, (std::vector<float>{1.0f, 448.0f, -448.0f, 3.0f, 448.0f}));
}

TEST(Widen, AppliesBlockScalesOnTheWholeMatrixGrid) {
  // A slice of rows 3..4 and columns 2..5 of a matrix with scale blocks of 2 x 4.
  const std::vector<uint8_t> data = {0x38, 0x38, 0x38, 0x38, 0x38, 0x38, 0x38, 0x38};  // ones
  const std::vector<float> scales = {1, 2, 3, 4, 5, 6};                                // [3, 2]
  ops::DenseMatrix m;
  m.dtype = ops::DType::kF8E4M3;
  m.data = reinterpret_cast<const std::byte*>(data.data());
  m.rows = 2;
  m.cols = 4;
  m.row_stride = 4;
  m.scales = reinterpret_cast<const std::byte*>(scales.data());
  m.scale_stride = 2;
  m.block_rows = 2;
  m.block_cols = 4;
  m.row_offset = 3;
  m.col_offset = 2;
  const auto wide = Widen(m, "w");
  ASSERT_TRUE(wide.ok());
  EXPECT_EQ(*wide, (std::vector<float>{3, 3, 4, 4, 5, 5, 6, 6}));
}

TEST(Widen, NamesWhatIsWrong) {
  const std::vector<float> data(4);
  const auto vector = Widen(testing::VectorF32(data), 5, "KDA dt_bias");
  ASSERT_FALSE(vector.ok());
  EXPECT_NE(vector.status().message().find("KDA dt_bias: 4 elements where 5 are needed"),
            std::string::npos);
  EXPECT_FALSE(Widen(ops::DenseMatrix{}, "w").ok());
}

}  // namespace
}  // namespace quartet::cpu
