#include "services/gateway/text/json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/unit/text/test_data.h"

namespace quartet::text {
namespace {

using testing::HasSubstr;

std::string Written(const Value& value, const JsonStyle& style = {}) {
  std::string out;
  EXPECT_TRUE(AppendJson(value, style, &out).ok());
  return out;
}

TEST(Json, KeepsKeyOrderAndTheSpellingOfNumbers) {
  for (const std::string text :
       {R"({"b": 1.0, "a": [12.50, -0, 1e2, 1E+2], "n": 123456789012345678901234567890})", "[]",
        "{}", R"([true, false, null, "x"])", R"(9223372036854775807)", R"(-9223372036854775808)"}) {
    EXPECT_EQ(Written(Json(text)), text);
  }
}

TEST(Json, OfRepeatedKeysTheLastWins) {
  EXPECT_EQ(Written(Json(R"({"a": 1, "b": 2, "a": 3})")), R"({"a": 3, "b": 2})");
}

TEST(Json, FindsKeysInLargeObjects) {
  std::string text = "{";
  for (int i = 0; i < 500; ++i)
    text += "\"k" + std::to_string(i * 7 % 500) + "\": " + std::to_string(i) + ",";
  text.back() = '}';
  const Value object = Json(text);
  for (int i = 0; i < 500; ++i) {
    EXPECT_EQ(object.Get("k" + std::to_string(i * 7 % 500)).integer(), i);
  }
  EXPECT_EQ(object.Find("k500"), nullptr);
}

TEST(Json, ReadsEscapes) {
  EXPECT_EQ(Json(R"("\"\\\/\b\f\n\r\t\u0041\u00e9\ud83d\ude00")").string(),
            "\"\\/\b\f\n\r\tA\xC3\xA9\xF0\x9F\x98\x80");
}

TEST(Json, LoneSurrogatesBecomeTheReplacementCharacter) {
  EXPECT_EQ(Json(R"("\ud800")").string(), "\xEF\xBF\xBD");
  EXPECT_EQ(Json(R"("\ud800x")").string(), "\xEF\xBF\xBDx");
  EXPECT_EQ(Json(R"("\udc00\ud800\u0041")").string(),
            "\xEF\xBF\xBD\xEF\xBF\xBD"
            "A");
}

TEST(Json, RefusesWhatIsNotJson) {
  for (const std::string text : {"",
                                 " ",
                                 "{",
                                 "[1,]",
                                 "{\"a\":1,}",
                                 "{a:1}",
                                 "{\"a\" 1}",
                                 "'x'",
                                 "\"x",
                                 "\"\\x\"",
                                 "\"\\u12\"",
                                 "\"a\nb\"",
                                 "01",
                                 "1.",
                                 ".5",
                                 "+1",
                                 "1e",
                                 "-",
                                 "NaN",
                                 "Infinity",
                                 "tru",
                                 "truex",
                                 "1 2",
                                 "// c\n1",
                                 "\"\xFF\"",
                                 "\"\xED\xA0\x80\"",
                                 "\xEF\xBB\xBF{}"}) {
    EXPECT_EQ(ParseJson(text).status().code(), absl::StatusCode::kInvalidArgument) << text;
  }
}

TEST(Json, SaysWhere) {
  EXPECT_THAT(std::string(ParseJson("{\"a\": 1,\n \"b\": ?}").status().message()),
              HasSubstr("line 2, column 7"));
  EXPECT_THAT(std::string(ParseJson("\xEF\xBB\xBF{}").status().message()),
              HasSubstr("byte order mark"));
}

TEST(Json, LimitsDepth) {
  const auto nested = [](int depth) { return std::string(depth, '[') + std::string(depth, ']'); };
  EXPECT_TRUE(ParseJson(nested(kJsonDepthMax)).ok());
  EXPECT_THAT(std::string(ParseJson(nested(kJsonDepthMax + 1)).status().message()),
              HasSubstr("deeper than 128"));
  EXPECT_FALSE(ParseJson(nested(1000000)).ok());
}

TEST(Json, LimitsTheNumberOfValues) {
  std::string text = "[";
  for (int64_t i = 0; i < kJsonValuesMax; ++i) text += "1,";
  text.back() = ']';
  EXPECT_THAT(std::string(ParseJson(text).status().message()),
              HasSubstr("more than 4000000 values"));
}

TEST(Json, WritesInManyStyles) {
  const Value value = Json(R"({"b":[1,{}],"a":"\u00e9\ud83d\ude00\u2028"})");
  EXPECT_EQ(Written(value), "{\"b\": [1, {}], \"a\": \"\xC3\xA9\xF0\x9F\x98\x80\xE2\x80\xA8\"}");
  EXPECT_EQ(Written(value, {.spaces = false}),
            "{\"b\":[1,{}],\"a\":\"\xC3\xA9\xF0\x9F\x98\x80\xE2\x80\xA8\"}");
  EXPECT_EQ(Written(value, {.ensure_ascii = true, .sort_keys = true}),
            R"({"a": "\u00e9\ud83d\ude00\u2028", "b": [1, {}]})");
  EXPECT_EQ(Written(Json("[1,[2,{}],[]]"), {.indent = 2}),
            "[\n  1,\n  [\n    2,\n    {}\n  ],\n  []\n]");
}

TEST(Json, EscapesOnlyWhatItMust) {
  std::string out;
  AppendJsonString(std::string("a\"\\/\x01\x1F\x7F\n\0", 9) + "\xC3\xA9", &out);
  EXPECT_EQ(out, "\"a\\\"\\\\/\\u0001\\u001f\x7F\\n\\u0000\xC3\xA9\"");
}

TEST(Json, UndefinedValuesCannotBeWritten) {
  std::string out;
  EXPECT_FALSE(AppendJson(Value::MakeList({Value()}), {}, &out).ok());
}

}  // namespace
}  // namespace quartet::text
