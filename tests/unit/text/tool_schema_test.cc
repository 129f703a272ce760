#include "services/gateway/text/tool_schema.h"

#include <gtest/gtest.h>

#include <string>

#include "tests/unit/text/message.h"
#include "tests/unit/text/test_data.h"

namespace quartet::text {
namespace {

constexpr JsonTypes kString{JsonTypes::kString};
constexpr JsonTypes kInteger{JsonTypes::kInteger};
constexpr JsonTypes kNumber{JsonTypes::kInteger | JsonTypes::kFraction};
constexpr JsonTypes kBoolean{JsonTypes::kBoolean};
constexpr JsonTypes kNull{JsonTypes::kNull};
constexpr JsonTypes kArray{JsonTypes::kArray};
constexpr JsonTypes kObject{JsonTypes::kObject};
constexpr JsonTypes kUnknown = JsonTypes::Unknown();

// The types of a property with this schema; `defs` are the tool's $defs.
JsonTypes TypesOf(const std::string& schema, const std::string& defs = "{}") {
  return MakeTools(R"({"type":"object","properties":{"k":)" + schema + R"(},"$defs":)" + defs + "}")
      ->ArgumentTypes("f", "k");
}

TEST(ArgumentTypes, AreThoseOfType) {
  EXPECT_EQ(TypesOf(R"({"type":"string"})"), kString);
  EXPECT_EQ(TypesOf(R"({"type":"integer"})"), kInteger);
  EXPECT_EQ(TypesOf(R"({"type":"number"})"), kNumber);
  EXPECT_EQ(TypesOf(R"({"type":["string","null"]})"), kString | kNull);
  EXPECT_EQ(TypesOf(R"({"type":["boolean","array","object"]})"), kBoolean | kArray | kObject);
}

TEST(ArgumentTypes, AreThoseOfTheListedValues) {
  EXPECT_EQ(TypesOf(R"({"enum":["a","b"]})"), kString);
  EXPECT_EQ(TypesOf(R"({"enum":["a",null,1]})"), kString | kNull | kInteger);
  EXPECT_EQ(TypesOf(R"({"const":false})"), kBoolean);
  EXPECT_EQ(TypesOf(R"({"type":["string","null"],"enum":["a"]})"), kString);
}

TEST(ArgumentTypes, AreUnitedOverBranchesAndCutWithAllOf) {
  EXPECT_EQ(TypesOf(R"({"anyOf":[{"type":"string"},{"type":"integer"}]})"), kString | kInteger);
  EXPECT_EQ(TypesOf(R"({"oneOf":[{"type":"null"},{"const":1.5}]})"),
            kNull | JsonTypes(JsonTypes::kFraction));
  EXPECT_EQ(TypesOf(R"({"anyOf":[{"type":"string"},{"minimum":1}]})"), kUnknown);
  EXPECT_EQ(TypesOf(R"({"allOf":[{"type":["string","number"]},{"type":"integer"},{}]})"), kInteger);
  EXPECT_EQ(TypesOf(R"({"type":["array","null"],"anyOf":[{"type":"array"},{"type":"string"}]})"),
            kArray);
}

TEST(ArgumentTypes, FollowLocalReferences) {
  EXPECT_EQ(TypesOf(R"({"$ref":"#/$defs/A"})", R"({"A":{"type":"string"}})"), kString);
  EXPECT_EQ(TypesOf(R"({"$ref":"#/$defs/a~1b%20~0c"})", R"({"a/b ~c":{"type":"null"}})"), kNull);
  EXPECT_EQ(TypesOf(R"({"$ref":"#/$defs/A/anyOf/1"})",
                    R"({"A":{"anyOf":[{"type":"string"},{"type":"null"}]}})"),
            kNull);
  EXPECT_EQ(TypesOf(R"({"$ref":"#"})"), kObject) << "the tool's own parameters";
  for (const char* other : {R"("#/$defs/B")", R"("https://example.com/a")", R"("#x")", "3"}) {
    EXPECT_EQ(TypesOf(std::string(R"({"$ref":)") + other + "}"), kUnknown) << other;
  }
}

TEST(ArgumentTypes, AreUnknownWhereTheSchemaDoesNotSay) {
  for (const char* schema : {"{}", "true", "3", R"({"type":"date"})", R"({"type":7})",
                             R"({"description":"a string"})"}) {
    EXPECT_EQ(TypesOf(schema), kUnknown) << schema;
  }
  const auto tools = MakeTools(R"({"properties":{"k":{"type":"string"}}})", "null");
  EXPECT_EQ(tools->ArgumentTypes("f", "other"), kUnknown);
  EXPECT_EQ(tools->ArgumentTypes("g", "k"), kUnknown);
  EXPECT_EQ(tools->ArgumentTypes("h", "k"), kUnknown);
}

TEST(ArgumentTypes, AreUnknownInCyclesAndFarDown) {
  EXPECT_EQ(TypesOf(R"({"$ref":"#/$defs/A"})", R"({"A":{"$ref":"#/$defs/A"}})"), kUnknown);
  EXPECT_EQ(TypesOf(R"({"$ref":"#/$defs/A"})",
                    R"({"A":{"anyOf":[{"type":"string"},{"$ref":"#/$defs/A"}]}})"),
            kUnknown);
  std::string deep = R"({"type":"string"})";
  for (int level = 0; level < 20; ++level) deep = R"({"anyOf":[)" + deep + "]}";
  EXPECT_EQ(TypesOf(deep), kString);
  EXPECT_EQ(TypesOf(R"({"anyOf":[)" + deep + "]}"), kUnknown);
}

TEST(ArgumentTypes, OfASchemaThatBranchesWithoutEndAreGivenUp) {
  // Twenty levels of two branches each: a million ways.
  std::string defs;
  for (int level = 0; level < 20; ++level) {
    const std::string next = R"({"$ref":"#/$defs/A)" + std::to_string(level + 1) + "\"}";
    defs += (level ? ",\"A" : "{\"A") + std::to_string(level) + R"(":{"anyOf":[)" + next + "," +
            next + "]}";
  }
  EXPECT_EQ(TypesOf(R"({"$ref":"#/$defs/A0"})", defs + R"(,"A20":{"type":"string"}})"), kUnknown);
}

TEST(Tools, AreFoundByNameInBothForms) {
  const Tools tools(Json(R"([{"type":"function","name":"flat","parameters":
      {"properties":{"k":{"type":"null"}}}},{"type":"function","function":{"name":"f"}},7])"));
  EXPECT_TRUE(tools.Has("flat"));
  EXPECT_TRUE(tools.Has("f"));
  EXPECT_FALSE(tools.Has("fl"));
  EXPECT_EQ(tools.ArgumentTypes("flat", "k"), kNull);
  EXPECT_TRUE(tools.MayBecomeName(""));
  EXPECT_TRUE(tools.MayBecomeName("\n fla"));
  EXPECT_TRUE(tools.MayBecomeName("flat \n"));
  EXPECT_FALSE(tools.MayBecomeName("fla "));
  EXPECT_FALSE(tools.MayBecomeName("flats"));
}

TEST(Tools, AreActiveUnlessTheRequestForbidsThem) {
  const std::string tools = R"({"tools":[{"name":"f"}])";
  EXPECT_TRUE(ActiveTools(Json(tools + "}"))->Has("f"));
  EXPECT_TRUE(ActiveTools(Json(tools + R"(,"tool_choice":"auto"})"))->Has("f"));
  EXPECT_EQ(ActiveTools(Json(tools + R"(,"tool_choice":"none"})")), nullptr);
  EXPECT_EQ(ActiveTools(Json(R"({"tools":[]})")), nullptr);
  EXPECT_EQ(ActiveTools(Json("{}")), nullptr);
}

TEST(ArgumentJson, OfAStringIsTheTextUntouched) {
  EXPECT_EQ(ArgumentJson(kString, " 0042\n"), R"(" 0042\n")");
  EXPECT_EQ(ArgumentJson(kString, R"({"a": 1})"), R"("{\"a\": 1}")");
  EXPECT_EQ(ArgumentJson(kString, R"("q")"), R"("\"q\"")");
  EXPECT_EQ(ArgumentJson(kString, "true"), R"("true")");
  EXPECT_EQ(ArgumentJson(kString, ""), R"("")");
}

TEST(ArgumentJson, OfAnotherTypeIsTheValueThatTheTextSpells) {
  EXPECT_EQ(ArgumentJson(kInteger, " 12 "), "12");
  EXPECT_EQ(ArgumentJson(kBoolean, "True"), "true");
  EXPECT_EQ(ArgumentJson(kBoolean, "False"), "false");
  EXPECT_EQ(ArgumentJson(kNull, "None"), "null");
  EXPECT_EQ(ArgumentJson(kArray, "[1,\n \"a\"]"), R"([1, "a"])");
  EXPECT_EQ(ArgumentJson(kObject, R"({"b":1,"a":{}})"), R"({"b": 1, "a": {}})");
  EXPECT_EQ(ArgumentJson(kString | kNull, "null"), "null");
  EXPECT_EQ(ArgumentJson(kString | kInteger, "7"), "7");
  EXPECT_EQ(ArgumentJson(kString | kInteger, "7a"), R"("7a")");
}

TEST(ArgumentJson, KeepsTheSpellingOfNumbers) {
  for (const char* number : {"12.50", "1e5", "-0", "12345678901234567890", "0.1000", "1E+400"}) {
    EXPECT_EQ(ArgumentJson(kNumber, number), number);
  }
  EXPECT_EQ(ArgumentJson(kInteger, "3.0"), "3.0") << "an integer";
  EXPECT_EQ(ArgumentJson(kArray, "[1.10, 12345678901234567890]"), "[1.10, 12345678901234567890]");
}

TEST(ArgumentJson, TakesAValueInQuotesWhereNoStringIsAllowed) {
  EXPECT_EQ(ArgumentJson(kInteger, R"("5")"), "5");
  EXPECT_EQ(ArgumentJson(kObject, R"("{\"a\": 1}")"), R"({"a": 1})");
  EXPECT_EQ(ArgumentJson(kString | kInteger, R"("5")"), R"("\"5\"")");
  EXPECT_EQ(ArgumentJson(kInteger, R"("\"5\"")"), R"("\"\\\"5\\\"\"")") << "but not twice";
}

TEST(ArgumentJson, OfTextThatDoesNotFitIsAString) {
  EXPECT_EQ(ArgumentJson(kInteger, " 3.5"), R"(" 3.5")");
  EXPECT_EQ(ArgumentJson(kInteger, "three"), R"("three")");
  EXPECT_EQ(ArgumentJson(kNumber, "NaN"), R"("NaN")");
  EXPECT_EQ(ArgumentJson(kNumber, "Infinity"), R"("Infinity")");
  EXPECT_EQ(ArgumentJson(kNumber, "true"), R"("true")");
  EXPECT_EQ(ArgumentJson(kObject, "[]"), R"("[]")");
  EXPECT_EQ(ArgumentJson(kObject, "{'a': 1}"), R"("{'a': 1}")");
}

TEST(ArgumentJson, OfAnUnknownTypeIsAValueUnlessThatIsAString) {
  EXPECT_EQ(ArgumentJson(kUnknown, "[1]"), "[1]");
  EXPECT_EQ(ArgumentJson(kUnknown, "1.50"), "1.50");
  EXPECT_EQ(ArgumentJson(kUnknown, R"("q")"), R"("\"q\"")");
  EXPECT_EQ(ArgumentJson(kUnknown, "True"), R"("True")");
  EXPECT_EQ(ArgumentJson(kUnknown, "Lima"), R"("Lima")");
}

}  // namespace
}  // namespace quartet::text
