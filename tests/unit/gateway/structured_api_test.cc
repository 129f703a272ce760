// Answers that must have a form: what the engine is told, and what is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "services/grammar/constraint.h"
#include "tests/unit/gateway/gateway_fixture.h"

namespace quartet::gateway {
namespace {

using testing::At;
using ::testing::HasSubstr;
using testing::RawReply;

const std::string kTools =
    R"("tools":[{"type":"function","function":{"name":"add","parameters":{"type":"object",)"
    R"("properties":{"a":{"type":"integer"}},"required":["a"]}}},)"
    R"({"type":"function","function":{"name":"stop","parameters":{"type":"object",)"
    R"("properties":{},"additionalProperties":false}}}])";
const std::string kAdd = "<tool_call>add<arg_key>a</arg_key><arg_value>2</arg_value></tool_call>";
const std::string kStop = "<tool_call>stop</tool_call>";

std::string Format(const std::string& schema) {
  return absl::StrCat(R"("response_format":{"type":"json_schema","json_schema":{"name":"n",)",
                      R"("schema":)", schema, "}}");
}

class StructuredApiTest : public GatewayTest {
 protected:
  void SetUp() override {
    Start();
    Answer("I think.</think>{}");
    auto vocabulary = grammar::Vocabulary::Parse(engine_->vocabulary());
    ASSERT_TRUE(vocabulary.ok()) << vocabulary.status();
    maker_.emplace(std::make_shared<grammar::Vocabulary>(*std::move(vocabulary)));
  }

  // Whether the answer to the last request may be `text`, the end included.
  bool Allows(const std::string& text) {
    auto constraint = grammar::Constraint::Create(LastSeen().grammar, &*maker_);
    EXPECT_TRUE(constraint.ok()) << constraint.status();
    if (!constraint.ok()) return false;
    std::vector<int32_t> ids = Ids(text);
    ids.push_back(end_id());
    return constraint->Advance(ids).ok();
  }
  void ExpectRefused(const RawReply& reply, const std::string& param, const std::string& text) {
    EXPECT_EQ(reply.status, 400) << reply.body;
    EXPECT_EQ(At(reply.body, "error.param"), param);
    EXPECT_THAT(At(reply.body, "error.message"), HasSubstr(text));
  }

  std::optional<grammar::MaskMaker> maker_;
};

TEST_F(StructuredApiTest, TheEngineIsToldTheVocabularyBeforeAnythingElse) {
  EXPECT_THAT(engine_->vocabulary().size(), ::testing::Gt(2048u));
  Chat();
  EXPECT_EQ(LastSeen().grammar, "");
}

TEST_F(StructuredApiTest, AJsonObjectComesAfterTheReasoning) {
  EXPECT_EQ(Chat(R"("response_format":{"type":"json_object"})").status, 200);
  EXPECT_TRUE(Allows("I think {.</think>{\"a\": [1, null]}"));
  EXPECT_FALSE(Allows("I think.</think>[1]"));
  EXPECT_FALSE(Allows("I think.</think>")) << "no end while the object is missing";
  EXPECT_FALSE(Allows("I think.")) << "nor inside the reasoning";
}

TEST_F(StructuredApiTest, EachChoiceAndEachApiHasTheGrammar) {
  const std::string schema =
      R"({"type":"object","properties":{"a":{"enum":[1,2]}},"required":["a"],)"
      R"("additionalProperties":false})";
  const std::string good = ".</think>{\"a\": 2}";
  const std::string bad = ".</think>{\"a\": 3}";
  Chat(Format(schema) + R"(,"n":2)");
  EXPECT_TRUE(Allows(good));
  EXPECT_FALSE(Allows(bad));
  Post("/v1/responses",
       absl::StrCat(R"({"input":"hi","text":{"format":{"type":"json_schema","name":"n","schema":)",
                    schema, "}}}"));
  EXPECT_TRUE(Allows(good));
  EXPECT_FALSE(Allows(bad));
  Post("/v1/messages",
       absl::StrCat(R"({"max_tokens":50,"messages":[{"role":"user","content":"hi"}],)",
                    R"("output_config":{"format":{"type":"json_schema","schema":)", schema, "}}}"));
  EXPECT_TRUE(Allows(good));
  EXPECT_FALSE(Allows(bad));
  Completion(R"("guided_regex":"[ab]{2}")");
  EXPECT_TRUE(Allows("ab"));
  EXPECT_FALSE(Allows("abc"));
  Completion(R"("structured_outputs":{"choice":["yes","no"]})");
  EXPECT_TRUE(Allows("yes"));
  EXPECT_FALSE(Allows("maybe"));
}

TEST_F(StructuredApiTest, CallsThatMustComeCome) {
  Answer("I think.</think>" + kAdd);
  const RawReply reply = Chat(kTools + R"(,"tool_choice":"required")");
  EXPECT_EQ(At(reply.body, "choices.0.finish_reason"), "tool_calls");
  EXPECT_EQ(At(reply.body, "choices.0.message.tool_calls.0.function.name"), "add");
  EXPECT_TRUE(Allows(".</think>" + kAdd + kStop));
  EXPECT_FALSE(Allows(".</think>Hello"));
  EXPECT_FALSE(Allows(".</think><tool_call>other</tool_call>"));

  Chat(kTools + R"(,"tool_choice":{"type":"function","function":{"name":"stop"}})");
  EXPECT_TRUE(Allows(".</think>" + kStop));
  EXPECT_FALSE(Allows(".</think>" + kAdd));

  Chat(kTools + R"(,"tool_choice":"required","parallel_tool_calls":false)");
  EXPECT_TRUE(Allows(".</think>" + kAdd));
  EXPECT_FALSE(Allows(".</think>" + kAdd + kStop));

  Chat(kTools + R"(,"tool_choice":{"type":"allowed_tools","allowed_tools":{"mode":"auto",)" +
       R"("tools":[{"type":"function","function":{"name":"stop"}}]}})");
  EXPECT_TRUE(Allows(".</think>Hello" + kStop));
  EXPECT_FALSE(Allows(".</think>Hello" + kAdd));
}

TEST_F(StructuredApiTest, ToolsAndAFormAreACallOrTheForm) {
  Chat(kTools + "," + Format(R"({"type":"integer"})"));
  EXPECT_TRUE(Allows(".</think>12"));
  EXPECT_TRUE(Allows(".</think>" + kAdd));
  EXPECT_FALSE(Allows(".</think>Hello"));
}

TEST_F(StructuredApiTest, WhatCannotBeCompiledIsNamed) {
  const std::string path = "response_format.json_schema.schema";
  ExpectRefused(Chat(Format(R"({"type":"object","not":{}})")), path, "not");
  ExpectRefused(Chat(Format(R"({"properties":{"a":{"type":"strin"}}})")), path, "#/properties/a");
  ExpectRefused(Chat(R"x("guided_regex":"a(?=b)")x"), "guided_regex", "looking ahead");
  ExpectRefused(
      Post("/v1/responses", R"({"input":"hi","text":{"format":{"type":"json_schema","name":"n",)"
                            R"("schema":{"not":{}}}}})"),
      "text.format.json_schema.schema", "not");
  ExpectRefused(Chat(R"("tools":[{"type":"function","function":{"name":"f","strict":true,)"
                     R"("parameters":{"properties":{"a":{"not":{}}}}}}],)"
                     R"("tool_choice":"required")"),
                "tools", "not");
}

}  // namespace
}  // namespace quartet::gateway
