// oneOf: taken where its alternatives exclude each other, refused where they may not.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/unit/grammar/support.h"

namespace quartet::grammar {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

void ExpectApart(const std::string& alternatives, const std::string& beside = "") {
  EXPECT_EQ(SchemaError("{" + beside + R"("oneOf":[)" + alternatives + "]}"), "") << alternatives;
}

void ExpectMixed(const std::string& alternatives, const std::string& beside = "") {
  EXPECT_THAT(SchemaError("{" + beside + R"("oneOf":[)" + alternatives + "]}"),
              AllOf(HasSubstr("\"oneOf\" at #"), HasSubstr("may satisfy both")))
      << alternatives;
}

TEST(OneOf, ByType) {
  ExpectApart(R"({"type":"null"},{"type":"integer"},{"type":["string","boolean"]})");
  ExpectMixed(R"({"type":"integer"},{"type":"number"})");
  ExpectMixed(R"({"type":["null","string"]},{"type":["string","boolean"]})");
  // What names no type allows all, though an answer would be of the type that it speaks of.
  ExpectMixed(R"({"type":"null"},{"minimum":3})");
  ExpectMixed(R"({},{"type":"null"})");
  ExpectApart(R"(false,{"type":"null"})");
}

TEST(OneOf, ByValues) {
  ExpectApart(R"({"const":1},{"enum":["a",2]},{"type":"boolean"})");
  ExpectMixed(R"({"enum":[1,2]},{"enum":[2,3]})");
  ExpectMixed(R"({"const":1},{"const":1.0})");
  ExpectApart(R"({"const":5},{"type":"integer","maximum":4})");
  ExpectMixed(R"({"const":5},{"type":"integer","maximum":5})");
  ExpectMixed(R"({"const":[1]},{"type":"array","items":{"type":"integer"}})");
}

TEST(OneOf, ByBounds) {
  ExpectApart(R"({"type":"number","maximum":3},{"type":"number","exclusiveMinimum":3})");
  ExpectMixed(R"({"type":"number","maximum":3},{"type":"number","minimum":3})");
  ExpectApart(R"({"type":"string","maxLength":3},{"type":"string","minLength":4})");
  ExpectMixed(R"({"type":"string","pattern":"^a$"},{"type":"string","pattern":"^b$"})");
  ExpectApart(R"({"type":"array","maxItems":1},{"type":"array","minItems":2})");
}

TEST(OneOf, ByAPartThatIsAlwaysThere) {
  const std::string tagged =
      R"({"type":"object","properties":{"kind":{"const":"a"},"x":{}},"required":["kind"]},)"
      R"({"type":"object","properties":{"kind":{"const":"b"}},"required":["kind"]})";
  ExpectApart(tagged);
  // A tag that may be missing tells nothing.
  ExpectMixed(R"({"type":"object","properties":{"kind":{"const":"a"}}},)"
              R"({"type":"object","properties":{"kind":{"const":"b"}}})");
  // What one needs the other cannot have.
  ExpectApart(R"({"type":"object","properties":{"a":{}},"required":["a"]},)"
              R"({"type":"object","properties":{"b":{}},"required":["b"]})");
  ExpectMixed(R"({"required":["a"]},{"required":["b"]})",
              R"("type":"object","properties":{"a":{},"b":{}},)");
  ExpectApart(R"({"type":"array","prefixItems":[{"const":1}],"minItems":1},)"
              R"({"type":"array","prefixItems":[{"const":2}],"minItems":1})");
}

TEST(OneOf, ThroughReferencesAndOtherAlternatives) {
  ExpectApart(R"({"$ref":"#/$defs/a"},{"anyOf":[{"type":"null"},{"$ref":"#/$defs/b"}]})",
              R"("$defs":{"a":{"properties":{"k":{"const":1}},"required":["k"],"type":"object"},)"
              R"("b":{"properties":{"k":{"const":2}},"required":["k"],"type":"object"}},)");
  ExpectMixed(R"({"type":"string"},{"anyOf":[{"type":"null"},{"type":"string"}]})");
  ExpectApart(
      R"({"type":"null"},{"type":"object","properties":{"next":{"$ref":"#"}},"required":["next"]})");
}

TEST(OneOf, OfManyAlternativesIsStillLookedThrough) {
  std::string alternatives;
  for (int i = 0; i < 60; ++i) {
    alternatives += (i > 0 ? "," : "") +
                    std::string(R"({"type":"object","properties":{"k":{"const":)") +
                    std::to_string(i) + R"(}},"required":["k"]})";
  }
  ExpectApart(alternatives);
}

TEST(OneOf, AnswersAreOfOneAlternative) {
  const Grammar grammar = SchemaGrammar(
      R"({"oneOf":[{"type":"integer","maximum":3},{"type":"integer","minimum":5},{"type":"null"}]})");
  for (const char* text : {"3", "5", "null", "-7"}) EXPECT_TRUE(Accepts(grammar, text)) << text;
  EXPECT_FALSE(Accepts(grammar, "4"));
}

}  // namespace
}  // namespace quartet::grammar
