#include "services/gateway/text/grammar/number_range.h"

#include <gtest/gtest.h>

#include <random>
#include <string>

#include "tests/unit/grammar/support.h"

namespace quartet::grammar {
namespace {

using text::Decimal;

Decimal Number(const std::string& spelling) {
  const absl::StatusOr<Decimal> number = Decimal::Parse(spelling);
  EXPECT_TRUE(number.ok()) << number.status();
  return number.value_or(Decimal{});
}

TEST(Decimal, ComparesExactly) {
  EXPECT_EQ(Number("0"), Number("-0.00"));
  EXPECT_EQ(Number("1200"), Number("12e2"));
  EXPECT_EQ(Number("0.012"), Number("1.2E-2"));
  EXPECT_LT(Number("-2"), Number("-1.999"));
  EXPECT_LT(Number("9.99"), Number("10"));
  EXPECT_LT(Number("0.1"), Number("0.11"));
  EXPECT_GT(Number("123456789012345678901234567890"), Number("123456789012345678901234567889.9"));
  EXPECT_FALSE(Decimal::Parse("1e400").ok());
}

TEST(NumberRange, IntegersBetweenAllSmallBounds) {
  for (int low = -12; low <= 112; low += 7) {
    for (int high = low; high <= 130; high += 9) {
      const Grammar grammar =
          SchemaGrammar(R"({"type":"integer","minimum":)" + std::to_string(low) + R"(,"maximum":)" +
                        std::to_string(high) + "}");
      for (int number = -140; number <= 1100; ++number) {
        ASSERT_EQ(Accepts(grammar, std::to_string(number)), number >= low && number <= high)
            << low << " <= " << number << " <= " << high;
      }
    }
  }
}

TEST(NumberRange, IntegersWithOneBoundOrFractionsOrNoneIncluded) {
  const Grammar from = SchemaGrammar(R"({"type":"integer","exclusiveMinimum":99.5})");
  EXPECT_FALSE(Accepts(from, "99"));
  EXPECT_TRUE(Accepts(from, "100"));
  EXPECT_TRUE(Accepts(from, "999999999999999999"));
  EXPECT_FALSE(Accepts(from, "-100"));
  const Grammar to = SchemaGrammar(R"({"type":"integer","exclusiveMaximum":-1e1})");
  EXPECT_TRUE(Accepts(to, "-11"));
  EXPECT_FALSE(Accepts(to, "-10"));
  EXPECT_FALSE(Accepts(to, "0"));
  EXPECT_NE(SchemaError(R"({"type":"integer","minimum":0.2,"maximum":0.8})"), "");
  EXPECT_NE(SchemaError(R"({"type":"integer","minimum":3,"exclusiveMaximum":3})"), "");
}

// Bounds and numbers with up to two digits behind the point, compared as integers of hundredths.
TEST(NumberRange, NumbersBetweenRandomBounds) {
  std::mt19937 random(5);
  const auto hundredths = [](int number) {
    std::string digits = std::to_string(std::abs(number));
    while (digits.size() < 3) digits.insert(0, "0");
    return (number < 0 ? "-" : "") + digits.substr(0, digits.size() - 2) + "." +
           digits.substr(digits.size() - 2);
  };
  int accepted = 0;
  for (int round = 0; round < 150; ++round) {
    const int low = static_cast<int>(random() % 3000) - 1500;
    const int high = low + static_cast<int>(random() % (round % 2 == 0 ? 40 : 2500));
    const bool low_open = random() % 2 == 0;
    const bool high_open = low < high && random() % 2 == 0;
    if (low == high && low_open) continue;
    const std::string schema =
        R"({"type":"number",")" + std::string(low_open ? "exclusiveMinimum" : "minimum") +
        "\":" + hundredths(low) + ",\"" + (high_open ? "exclusiveMaximum" : "maximum") +
        "\":" + hundredths(high) + "}";
    const Grammar grammar = SchemaGrammar(schema);
    for (int n = 0; n < 200; ++n) {
      const int number = low - 60 + static_cast<int>(random() % (high - low + 120));
      const bool inside =
          (low_open ? number > low : number >= low) && (high_open ? number < high : number <= high);
      accepted += inside;
      ASSERT_EQ(Accepts(grammar, hundredths(number)), inside) << schema << hundredths(number);
    }
    // More digits: just inside and just outside.
    EXPECT_EQ(Accepts(grammar, hundredths(low) + "001"), low >= 0 && low < high) << schema;
  }
  EXPECT_GT(accepted, 1000);
}

TEST(NumberRange, NumbersMayHaveFewerDigitsThanTheirBounds) {
  const Grammar grammar = SchemaGrammar(R"({"type":"number","minimum":0.5,"maximum":2})");
  for (const char* text : {"0.5", "0.50", "0.6", "1", "1.999", "2", "2.0", "2.00"}) {
    EXPECT_TRUE(Accepts(grammar, text)) << text;
  }
  for (const char* text : {"0", "0.4", "0.49999", "2.01", "2.001", "3", "-1", "1e0", "1.", "01"}) {
    EXPECT_FALSE(Accepts(grammar, text)) << text;
  }
  const Grammar positive = SchemaGrammar(R"({"type":"number","exclusiveMinimum":0})");
  EXPECT_FALSE(Accepts(positive, "0"));
  EXPECT_FALSE(Accepts(positive, "0.0"));
  EXPECT_TRUE(Accepts(positive, "0.01"));
}

}  // namespace
}  // namespace quartet::grammar
