// Every keyword of JSON Schema 2020-12 is kept exactly, only describes, or is refused by its name.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/unit/grammar/support.h"

namespace quartet::grammar {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

struct Kept {
  const char* keyword;
  const char* schema;
  std::vector<std::string> valid;    // can be said
  std::vector<std::string> invalid;  // cannot
};

const std::vector<Kept>& KeptKeywords() {
  static const std::vector<Kept> kept = {
      // Core
      {"$ref", R"({"$ref":"#/$defs/a","$defs":{"a":{"const":1}}})", {"1"}, {"2"}},
      {"$defs", R"({"$defs":{"a":false},"type":"null"})", {"null"}, {"1"}},
      // Applicators
      {"allOf", R"({"allOf":[{"minimum":2},{"maximum":3}],"type":"integer"})", {"2"}, {"1", "4"}},
      {"anyOf", R"({"anyOf":[{"const":1},{"const":"a"}]})", {"1", R"("a")"}, {"2"}},
      {"oneOf", R"({"oneOf":[{"type":"null"},{"const":"a"}]})", {"null", R"("a")"}, {"2"}},
      {"items", R"({"items":{"const":1}})", {"[]", "[1,1]"}, {"[2]", "[1,2]"}},
      {"prefixItems",
       R"({"prefixItems":[{"const":1},{"const":2}]})",
       {"[]", "[1]", "[1,2]"},
       {"[2]", "[1,1]"}},
      {"properties", R"({"properties":{"a":{"const":1}}})", {"{}", R"({"a":1})"}, {R"({"a":2})"}},
      {"additionalProperties",
       R"({"additionalProperties":{"const":1}})",
       {"{}", R"({"a":1})"},
       {R"({"a":2})"}},
      // Validation
      {"type", R"({"type":["integer","null"]})", {"1", "null"}, {R"("a")", "1.5"}},
      {"const", R"({"const":[1]})", {"[1]"}, {"[]", "1"}},
      {"enum", R"({"enum":[1,"a"]})", {"1", R"("a")"}, {"2"}},
      {"minimum", R"({"minimum":-2,"type":"integer"})", {"-2", "5"}, {"-3"}},
      {"maximum", R"({"maximum":5,"type":"integer"})", {"5", "-7"}, {"6"}},
      {"exclusiveMinimum", R"({"exclusiveMinimum":0})", {"0.5", "1"}, {"0", "-1"}},
      {"exclusiveMaximum", R"({"exclusiveMaximum":1})", {"0.5", "-3"}, {"1", "1.5"}},
      {"minLength", R"({"minLength":2})", {R"("ab")"}, {R"("a")", R"("")"}},
      {"maxLength", R"({"maxLength":2})", {R"("ab")", R"("")"}, {R"("abc")"}},
      {"pattern", R"({"pattern":"^a+$"})", {R"("aa")"}, {R"("ab")", R"("")"}},
      {"minItems", R"({"minItems":1,"items":{"const":1}})", {"[1]"}, {"[]"}},
      {"maxItems", R"({"maxItems":1,"items":{"const":1}})", {"[1]"}, {"[1,1]"}},
      {"required", R"({"required":["a"],"properties":{"a":{}}})", {R"({"a":1})"}, {"{}"}},
      {"minProperties",
       R"({"minProperties":1,"properties":{"a":{"const":1}},"required":["a"]})",
       {R"({"a":1})"},
       {"{}"}},
      {"maxProperties", R"({"maxProperties":1})", {"{}", R"({"a":1})"}, {R"({"a":1,"b":1})"}},
  };
  return kept;
}

TEST(SchemaKeywords, ThatAreKeptAreKeptExactly) {
  for (const Kept& kept : KeptKeywords()) {
    ASSERT_THAT(kept.schema, HasSubstr(std::string("\"") + kept.keyword + "\""));
    const Grammar grammar = SchemaGrammar(kept.schema);
    for (const std::string& text : kept.valid) {
      EXPECT_TRUE(Accepts(grammar, text)) << kept.schema << " should accept " << text;
    }
    for (const std::string& text : kept.invalid) {
      EXPECT_FALSE(Accepts(grammar, text)) << kept.schema << " should refuse " << text;
    }
  }
}

// By the specification they say nothing about what is valid, unless a $ref or a vocabulary makes
// use of them: see below. format is an annotation there; discriminator and example are OpenAPI's.
TEST(SchemaKeywords, ThatOnlyDescribeChangeNothing) {
  for (const char* member :
       {R"("$schema":"https://json-schema.org/draft/2020-12/schema")",
        R"("$id":"https://a.example")", R"("$comment":"c")", R"("title":"t")",
        R"("description":"d")", R"("default":5)", R"("examples":[1])", R"("deprecated":true)",
        R"("readOnly":true)", R"("writeOnly":true)", R"("format":"date")",
        R"("contentEncoding":"base64")", R"("contentMediaType":"text/html")",
        R"("contentSchema":{"type":"null"})", R"("definitions":{"a":false})",
        R"("discriminator":{"propertyName":"kind"})", R"("example":1)", R"("x-anything":1)"}) {
    const std::string schema = std::string(R"({"type":"boolean",)") + member + "}";
    const Grammar grammar = SchemaGrammar(schema);
    EXPECT_TRUE(Accepts(grammar, "true")) << schema;
    EXPECT_FALSE(Accepts(grammar, "1")) << schema;
  }
}

struct Refused {
  const char* keyword;
  const char* value;
};

TEST(SchemaKeywords, ThatAreNotKeptAreRefusedByNameAndPlace) {
  for (const Refused& refused : std::vector<Refused>{
           {"$anchor", R"("a")"},
           {"$dynamicRef", R"("#a")"},
           {"$dynamicAnchor", R"("a")"},
           {"$recursiveRef", R"("#")"},
           {"$vocabulary", "{}"},
           {"not", "{}"},
           {"if", "true"},
           {"then", "true"},
           {"else", "true"},
           {"dependentSchemas", "{}"},
           {"dependentRequired", "{}"},
           {"dependencies", "{}"},
           {"patternProperties", "{}"},
           {"propertyNames", "{}"},
           {"unevaluatedItems", "false"},
           {"unevaluatedProperties", "false"},
           {"contains", "{}"},
           {"minContains", "1"},
           {"maxContains", "1"},
           {"additionalItems", "false"},
           {"multipleOf", "2"},
           {"uniqueItems", "true"},
           {"nullable", "true"},
           {"minProperties", "1"},
       }) {
    const std::string schema =
        std::string(R"({"properties":{"p":{")") + refused.keyword + "\":" + refused.value + "}}}";
    EXPECT_THAT(SchemaError(schema),
                AllOf(HasSubstr(std::string("\"") + refused.keyword + "\""),
                      HasSubstr("#/properties/p"), HasSubstr("is not supported")))
        << schema;
  }
}

// What is kept, in a way or a company in which it is not.
TEST(SchemaKeywords, AreRefusedWhereTheyCannotBeKept) {
  const auto expect = [](const char* schema, const char* keyword) {
    EXPECT_THAT(SchemaError(schema), HasSubstr(keyword)) << schema;
  };
  expect(R"({"$ref":"https://a.example/schema"})", "$ref");
  expect(R"({"$ref":"#anchor"})", "$ref");
  expect(R"({"properties":{"p":{"$id":"sub","$ref":"#/$defs/a"}},"$defs":{"a":{}}})", "\"$id\"");
  expect(R"({"oneOf":[{"type":"integer"},{"minimum":3}]})", "\"oneOf\"");
  expect(R"({"pattern":"^(ab)+$","maxLength":5})", "maxLength");
  expect(R"({"allOf":[{"pattern":"a"},{"pattern":"b"}]})", "\"pattern\"");
  expect(R"({"enum":["a"],"pattern":"a"})", "pattern");
  expect(R"({"const":[1],"items":{"type":"null"}})", "items");
  expect(R"({"const":{"a":1},"properties":{"a":{"type":"null"}}})", "properties");
  expect(R"({"properties":{"a":{},"b":{}},"maxProperties":1})", "\"maxProperties\"");
  expect(R"({"items":[{}]})", "prefixItems");
}

// An $id changes what a $ref below it is relative to, and nothing else.
TEST(SchemaKeywords, AnIdWithoutAReferenceBelowItSaysNothing) {
  const Grammar grammar =
      SchemaGrammar(R"({"$id":"https://a.example","properties":{"p":{"$id":"sub","type":"null"},)"
                    R"("q":{"$ref":"#/$defs/a"}},"$defs":{"a":{"type":"null"}}})");
  EXPECT_TRUE(Accepts(grammar, R"({"p":null,"q":null})"));
  EXPECT_FALSE(Accepts(grammar, R"({"p":1})"));
  // A property of this name is no keyword.
  EXPECT_EQ(SchemaError(R"({"properties":{"$id":{"$ref":"#/$defs/a"}},"$defs":{"a":{}}})"), "");
}

}  // namespace
}  // namespace quartet::grammar
