#include "services/gateway/text/value.h"

#include <gtest/gtest.h>

#include <cmath>

#include "services/gateway/text/unicode.h"
#include "tests/unit/text/test_data.h"

namespace quartet::text {
namespace {

TEST(Value, FloatsPrintTheShortestSpellingThatReadsBack) {
  EXPECT_EQ(Value::Float(1.0).NumberText(), "1.0");
  EXPECT_EQ(Value::Float(0.1).NumberText(), "0.1");
  EXPECT_EQ(Value::Float(-2.5e-7).NumberText(), "-2.5e-07");
  EXPECT_EQ(Value::Float(1e16).NumberText(), "1e+16");
  EXPECT_EQ(Value::Float(123456789012345.0).NumberText(), "123456789012345.0");
  EXPECT_EQ(Value::Float(1.0 / 3.0).NumberText(), "0.3333333333333333");
  EXPECT_EQ(Value::Float(0.0001).NumberText(), "0.0001");
}

TEST(Value, NumbersThatDoNotFitADoubleAreInfinite) {
  EXPECT_TRUE(std::isinf(Value::NumberToken("1e400").number()));
  EXPECT_TRUE(std::isinf(Value::NumberToken("-1e400").number()));
  EXPECT_EQ(Value::NumberToken("1e-400").number(), 0.0);
}

TEST(Value, ComparesNumbersByValue) {
  EXPECT_TRUE(Value::Integer(1).Equals(Value::Float(1.0)));
  EXPECT_TRUE(Value::Bool(true).Equals(Value::Integer(1)));
  EXPECT_FALSE(Value::String("1").Equals(Value::Integer(1)));
  EXPECT_FALSE(Value::Integer(9007199254740993).Equals(Value::Integer(9007199254740992)));
  EXPECT_TRUE(
      Json(R"({"a":[1,{"b":null}],"c":"x"})").Equals(Json(R"({"c":"x","a":[1.0,{"b":null}]})")));
  EXPECT_FALSE(Value().Equals(Value::None()));
}

TEST(Value, FindOnSomethingElseFindsNothing) {
  EXPECT_EQ(Value::Integer(3).Find("a"), nullptr);
  EXPECT_TRUE(Value().Get("a").is_undefined());
}

TEST(Unicode, ConvertsCaseBeyondAscii) {
  EXPECT_EQ(ToUpper("stra\xC3\x9F"
                    "e \xC3\xA9\xC3\xBF \xD1\x8F \xCE\xB1"),
            "STRA\xC3\x9F"
            "E \xC3\x89\xC5\xB8 \xD0\xAF \xCE\x91");
  EXPECT_EQ(ToLower("\xC3\x89 \xD0\x96 \xC4\x80 Az"), "\xC3\xA9 \xD0\xB6 \xC4\x81 az");
}

TEST(Unicode, StripsLikePython) {
  EXPECT_EQ(Strip(" \t\n\xC2\xA0\xE3\x80\x80 a b \xE2\x80\xA8\x1F"), "a b");
  EXPECT_EQ(Strip("\xE2\x80\x8B"
                  "a"),
            "\xE2\x80\x8B"
            "a");  // a zero width space is no white space
}

}  // namespace
}  // namespace quartet::text
