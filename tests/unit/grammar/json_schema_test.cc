#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/unit/grammar/support.h"

namespace quartet::grammar {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

void Expect(const std::string& schema, const std::vector<std::string>& accepted,
            const std::vector<std::string>& refused) {
  const Grammar grammar = SchemaGrammar(schema);
  for (const std::string& text : accepted) {
    EXPECT_TRUE(Accepts(grammar, text)) << schema << "\nshould accept " << text;
  }
  for (const std::string& text : refused) {
    EXPECT_FALSE(Accepts(grammar, text)) << schema << "\nshould refuse " << text;
  }
}

TEST(JsonSchema, TypesOfOneWord) {
  Expect(R"({"type":"null"})", {"null"}, {"nul", "nulll", "\"null\"", " null"});
  Expect(R"({"type":"boolean"})", {"true", "false"}, {"True", "1"});
  Expect(R"({"type":["null","boolean"]})", {"null", "true"}, {"0"});
}

TEST(JsonSchema, Integers) {
  Expect(R"({"type":"integer"})", {"0", "7", "-7", "123456789012345678"},
         {"", "-", "-0", "01", "1.0", "1e3", "1234567890123456789"});
}

TEST(JsonSchema, Numbers) {
  Expect(R"({"type":"number"})", {"0", "-0.5", "12.25", "1e9", "1E-12", "3.0e+5"},
         {".5", "1.", "01", "1e", "+1", "NaN", "1e999"});
}

TEST(JsonSchema, StringsAreJsonStrings) {
  Expect(R"({"type":"string"})",
         {R"("")", R"("a b")", R"("\"\\\/\b\f\n\r\t")", R"("\u00e9\uD83D\uDE00\u0000")",
          "\"\xE2\x82\xAC\xF0\x9F\x98\x80\x7F\""},
         {R"(")", "a", "\"\n\"", R"("\x")", R"("\u12")", R"("\uD83D")", R"("\uDE00")",
          R"("\uD83D\u0041")", "\"\xE2\x82\"", "\"\xED\xA0\x80\"", R"("a"b)"});
}

TEST(JsonSchema, LengthsCountCharacters) {
  Expect(R"({"type":"string","minLength":2,"maxLength":3})",
         {R"("ab")", R"("abc")", "\"\xE2\x82\xAC\xF0\x9F\x98\x80\"", R"("\n\u00e9\uD83D\uDE00")"},
         {R"("a")", R"("abcd")", R"("\n")", "\"\xE2\x82\xAC\""});
  Expect(R"({"type":"string","maxLength":0})", {R"("")"}, {R"("a")"});
  const std::string long_string(1000, 'x');
  Expect(R"({"minLength":1000,"maxLength":1000})", {"\"" + long_string + "\""},
         {"\"" + long_string + "x\"", "\"" + long_string.substr(1) + "\""});
}

TEST(JsonSchema, Patterns) {
  Expect(R"({"type":"string","pattern":"^[a-z]{2,3}-\\d+$"})", {R"("ab-1")", R"("abc-123")"},
         {R"("a-1")", R"("ab-")", R"("ab-1x")"});
  Expect(R"({"pattern":"b"})", {R"("b")", R"("abc")", R"("\nb\"")"}, {R"("a")", R"("")"});
  Expect(R"({"pattern":"^a|b$"})", {R"("ax")", R"("xb")"}, {R"("xax")"});
  // A quote and a backslash in the text are escaped in JSON.
  Expect(R"({"pattern":"^\"\\\\[^a]$"})", {R"("\"\\b")", R"("\"\\\"")", R"("\"\\\n")"},
         {R"("\"\\a")", R"("\"b")"});
  Expect(R"({"pattern":"^[a-z]+$","maxLength":3})", {R"("abc")"}, {R"("")", R"("abcd")"});
}

TEST(JsonSchema, EnumAndConst) {
  Expect(R"({"enum":["a","ab",1,null,{"k":[1,"x"]}]})",
         {R"("a")", R"("ab")", "1", "null", R"({"k":[1,"x"]})", R"({"k": [1, "x"]})"},
         {R"("b")", "2", R"({"k":[1]})", "{}"});
  Expect(R"({"const":"\u00fc\"\n"})", {"\"\xC3\xBC\\\"\\n\""}, {R"("u")"});
  Expect(R"({"type":"string","enum":["a",1]})", {R"("a")"}, {"1"});
  Expect(R"({"type":"integer","enum":[1,5,10,2.5],"minimum":2,"maximum":8})", {"5"},
         {"1", "10", "2.5"});
  Expect(R"({"allOf":[{"enum":[1,2,3]},{"enum":[3,2,4]},{"type":"integer"}]})", {"2", "3"},
         {"1", "4"});
}

TEST(JsonSchema, PropertiesComeInOrder) {
  const std::string schema =
      R"({"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"boolean"},)"
      R"("c":{"type":"null"}},"required":["b"]})";
  Expect(schema,
         {R"({"b":true})", R"({"a":1,"b":true})", R"({"a": 1, "b": true, "c": null})",
          R"({"b":true,"c":null})"},
         {"{}", R"({"a":1})", R"({"b":true,"a":1})", R"({"a":1,"b":true,})", R"({,"b":true})",
          R"({"b":true,"d":1})", R"({ "b":true})", R"({"b":  true})", R"({"b":true} )",
          R"({"b":true,"b":true})", R"({"b" :true})", "{\"b\":\ntrue}"});
  Expect(R"({"properties":{"a":{"type":"integer"},"b":{"type":"integer"}}})",
         {"{}", R"({"a":1})", R"({"b":1})", R"({"a":1,"b":2})"}, {R"({"a":1"b":2})", R"({,})"});
}

TEST(JsonSchema, AdditionalProperties) {
  Expect(R"({"type":"object"})", {"{}", R"({"a":[1,{"b":null}],"c":"d"})"}, {"[]", R"({"":1})"});
  Expect(R"({"type":"object","additionalProperties":false})", {"{}"}, {R"({"a":1})"});
  Expect(R"({"type":"object","additionalProperties":{"type":"integer"},"maxProperties":2})",
         {"{}", R"({"a":1})", R"({"a":1,"b":2})"}, {R"({"a":"x"})", R"({"a":1,"b":2,"c":3})"});
  const std::string both = R"({"properties":{"ab":{"type":"null"},"\u00e9":{}},"required":["ab"],)"
                           R"("additionalProperties":{"type":"integer"}})";
  Expect(both,
         {R"({"ab":null})", R"({"ab":null,"x":1})", R"({"ab":null,"a":1,"abc":2})",
          "{\"ab\":null,\"\xC3\xA9\":\"free\",\"\xC3\xA9\xC3\xA9\":3}"},
         {R"({"ab":null,"ab":1})", "{\"ab\":null,\"x\":1,\"\xC3\xA9\":1}", R"({"x":1})",
          R"({"ab":null,"\u0061b":1})"});
}

TEST(JsonSchema, NamesMayBeLong) {
  const std::string name(60000, 'x');
  Expect(R"({"properties":{")" + name + R"(":{"type":"null"}},"additionalProperties":true})",
         {"{\"" + name + "\":null}", R"({"xxy":1})"}, {"{\"" + name + "\":1}"});
}

TEST(JsonSchema, RequiredWithoutDeclaration) {
  Expect(R"({"type":"object","required":["a"]})", {R"({"a":1})", R"({"a":[],"b":2})"}, {"{}"});
  Expect(R"({"required":["a"],"additionalProperties":{"type":"null"}})", {R"({"a":null})"},
         {R"({"a":1})"});
}

TEST(JsonSchema, Items) {
  Expect(R"({"type":"array","items":{"type":"integer"}})", {"[]", "[1]", "[1,2, 3]"},
         {"[1,]", "[,1]", "[\"a\"]", "[1 ,2]", "[ 1]"});
  Expect(R"({"items":{"type":"null"},"minItems":2,"maxItems":3})",
         {"[null,null]", "[null,null,null]"}, {"[]", "[null]", "[null,null,null,null]"});
  Expect(R"({"type":"array","maxItems":0})", {"[]"}, {"[1]"});
  Expect(R"({"type":"array","items":false})", {"[]"}, {"[1]"});
  Expect(R"({"prefixItems":[{"type":"integer"},{"type":"string"}],"items":{"type":"null"},)"
         R"("minItems":1,"maxItems":3})",
         {"[1]", R"([1,"a"])", R"([1,"a",null])"},
         {"[]", R"(["a"])", R"([1,null])", R"([1,"a",null,null])"});
  Expect(R"({"prefixItems":[{"type":"integer"},{"type":"string"}],"items":false,"minItems":2})",
         {R"([1,"a"])"}, {"[1]", R"([1,"a",1])"});
}

TEST(JsonSchema, ManyItemsAreCounted) {
  const Grammar grammar =
      SchemaGrammar(R"({"items":{"type":"integer"},"minItems":500,"maxItems":100000})");
  std::string list = "[1";
  for (int i = 1; i < 499; ++i) list += ",1";
  EXPECT_FALSE(Accepts(grammar, list + "]"));
  EXPECT_TRUE(Accepts(grammar, list + ",1]"));
  EXPECT_LT(grammar.Serialize().size(), 4000U);
}

TEST(JsonSchema, Alternatives) {
  for (const char* keyword : {"anyOf", "oneOf"}) {
    Expect(std::string(R"({")") + keyword +
               R"(":[{"type":"integer"},{"type":"object","properties":{"k":{"const":1}},)"
               R"("required":["k"]}]})",
           {"5", R"({"k":1})"}, {R"("5")", R"({"k":2})", "{}"});
  }
  // What stands beside the alternatives holds for each.
  Expect(R"({"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"integer"}},)"
         R"("anyOf":[{"required":["a"]},{"required":["b"]}]})",
         {R"({"a":1})", R"({"b":1})", R"({"a":1,"b":1})"}, {"{}"});
  Expect(
      R"({"anyOf":[{"type":"integer"},{"type":"string"}],"oneOf":[{"type":"integer","minimum":3},{"type":)"
      R"("string","maxLength":1}]})",
      {"3", R"("a")"}, {"2", R"("ab")"});
  // Alternatives in what is referred to, several times.
  Expect(R"({"allOf":[{"$ref":"#/$defs/a"},{"anyOf":[{"maxLength":3},{"$ref":"#/$defs/a"}]}],)"
         R"("$defs":{"a":{"anyOf":[{"type":"string","minLength":2},{"type":"null"}]}}})",
         {R"("ab")", R"("abcd")", "null"}, {R"("a")", "1"});
}

TEST(JsonSchema, AllOfJoinsObjects) {
  Expect(R"({"allOf":[{"properties":{"a":{"type":"integer","minimum":1}},"required":["a"]},)"
         R"({"properties":{"a":{"maximum":3},"b":{"type":"null"}},"required":["b"]}]})",
         {R"({"a":2,"b":null})"}, {R"({"a":4,"b":null})", R"({"a":0,"b":null})", R"({"a":2})"});
  Expect(R"({"allOf":[{"properties":{"a":{"type":"integer"}}},)"
         R"({"additionalProperties":{"minimum":5},"properties":{"b":{"type":"null"}}}]})",
         {R"({"a":5})"}, {R"({"a":4})"});
  Expect(R"({"type":"number","allOf":[{"type":"integer"}]})", {"1"}, {"1.5"});
}

TEST(JsonSchema, References) {
  Expect(R"({"$ref":"#/$defs/a~1b%20c","$defs":{"a/b c":{"type":"null"}}})", {"null"}, {"1"});
  Expect(R"({"properties":{"a":{"type":"integer"},"b":{"$ref":"#/properties/a","maximum":3}},)"
         R"("required":["a","b"]})",
         {R"({"a":9,"b":3})"}, {R"({"a":9,"b":4})"});
  Expect(R"({"$ref":"#/definitions/0/1","definitions":[[true,{"type":"null"}]]})", {"null"}, {});
}

TEST(JsonSchema, Recursion) {
  const std::string tree =
      R"({"$ref":"#/$defs/node","$defs":{"node":{"type":"object","properties":{)"
      R"("v":{"type":"integer"},"kids":{"type":"array","items":{"$ref":"#/$defs/node"}}},)"
      R"("required":["v","kids"]}}})";
  Expect(tree, {R"({"v":1,"kids":[]})", R"({"v":1,"kids":[{"v":2,"kids":[{"v":3,"kids":[]}]}]})"},
         {R"({"v":1})", R"({"v":1,"kids":[{"v":2}]})", R"({"v":1,"kids":[1]})"});
  Expect(R"({"type":"object","properties":{"next":{"anyOf":[{"$ref":"#"},{"type":"null"}]}},)"
         R"("required":["next"]})",
         {R"({"next":{"next":null}})"}, {R"({"next":{}})"});
  // The reference to itself adds nothing.
  EXPECT_THAT(SchemaError(R"({"anyOf":[{"$ref":"#"},{"type":"string"}]})"),
              HasSubstr("comes back to itself"));
  // No finite value could satisfy it.
  EXPECT_THAT(SchemaError(R"({"properties":{"a":{"$ref":"#"}},"required":["a"]})"),
              HasSubstr("no answer"));
}

TEST(JsonSchema, BooleansAndTheEmptySchema) {
  for (const char* schema : {"true", "{}"}) {
    Expect(schema, {"1", "[]", R"({"a":{"b":[null,true,"x",-1.5e3]}})"}, {"", "[1", "tru"});
  }
  EXPECT_THAT(SchemaError("false"), HasSubstr("no answer"));
  Expect(R"({"anyOf":[false,{"type":"null"}]})", {"null"}, {"1"});
  Expect(R"({"properties":{"a":false,"b":{"type":"null"}}})", {R"({"b":null})"}, {R"({"a":1})"});
}

TEST(JsonSchema, WhatOnlyDescribesIsPassedOver) {
  Expect(R"({"type":"string","format":"date-time","title":"t","description":"d","default":1,)"
         R"("examples":[1],"$schema":"x","$id":"y","$comment":"z","deprecated":true,"x-own":1})",
         {R"("any")"}, {"1"});
}

TEST(JsonSchema, UnsupportedKeywordsAreNamedWithTheirPlace) {
  EXPECT_THAT(SchemaError(R"({"properties":{"a/b":{"items":{"not":{"type":"null"}}}}})"),
              AllOf(HasSubstr("\"not\""), HasSubstr("#/properties/a~1b/items")));
  for (const char* keyword : {"patternProperties", "if", "multipleOf", "contains", "propertyNames",
                              "dependentRequired", "unevaluatedProperties", "nonsense"}) {
    EXPECT_THAT(SchemaError(std::string(R"({"type":"object",")") + keyword + R"(":{}})"),
                HasSubstr(keyword));
  }
  EXPECT_THAT(SchemaError(R"({"uniqueItems":true})"), HasSubstr("uniqueItems"));
  EXPECT_THAT(SchemaError(R"-({"pattern":"a(?=b)"})-"), HasSubstr("looking ahead"));
  EXPECT_THAT(SchemaError(R"({"$ref":"other.json"})"), HasSubstr("other.json"));
  EXPECT_THAT(SchemaError(R"({"$ref":"#/$defs/none"})"), HasSubstr("names nothing"));
  EXPECT_THAT(SchemaError(R"({"pattern":"^a*b$","minLength":2})"), HasSubstr("minLength"));
}

TEST(JsonSchema, WrongKeywordsAreErrors) {
  EXPECT_THAT(SchemaError(R"({"type":"text"})"), HasSubstr("type"));
  EXPECT_THAT(SchemaError(R"({"minLength":-1})"), HasSubstr("minLength"));
  EXPECT_THAT(SchemaError(R"({"minItems":1.5})"), HasSubstr("minItems"));
  EXPECT_THAT(SchemaError(R"({"minimum":"1"})"), HasSubstr("minimum"));
  EXPECT_THAT(SchemaError(R"({"enum":1})"), HasSubstr("enum"));
  EXPECT_THAT(SchemaError(R"({"anyOf":[]})"), HasSubstr("anyOf"));
  EXPECT_THAT(SchemaError(R"({"required":[1]})"), HasSubstr("required"));
  EXPECT_THAT(SchemaError(R"({"properties":{"a":3}})"), HasSubstr("#/properties/a"));
  EXPECT_THAT(SchemaError(R"({"items":[{}]})"), HasSubstr("prefixItems"));
  EXPECT_THAT(SchemaError("3"), HasSubstr("object or a boolean"));
}

TEST(JsonSchema, LimitsOfSize) {
  std::string deep = "true";
  for (int i = 0; i < 70; ++i) deep = R"({"items":)" + deep + "}";
  EXPECT_THAT(SchemaError(deep), HasSubstr("levels"));
  EXPECT_THAT(SchemaError(R"({"const":")" + std::string(70000, 'x') + R"("})"), HasSubstr("bytes"));
  // Each of the conjuncts doubles the number of combinations.
  std::string wide = R"({"allOf":[)";
  for (int i = 0; i < 24; ++i) {
    const std::string n = std::to_string(i);
    wide += (i > 0 ? "," : "") + std::string(R"({"anyOf":[{"minLength":)") + n +
            R"(},{"maxLength":)" + std::to_string(i + 50) + "}]}";
  }
  EXPECT_THAT(SchemaError(wide + "]}"), HasSubstr("schema: "));
}

}  // namespace
}  // namespace quartet::grammar
