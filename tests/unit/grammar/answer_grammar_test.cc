#include "services/gateway/text/grammar/answer_grammar.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "services/gateway/text/json.h"
#include "tests/unit/grammar/support.h"

namespace quartet::grammar {
namespace {

using ::testing::HasSubstr;

text::Value Json(std::string_view json) {
  const auto value = text::ParseJson(json);
  EXPECT_TRUE(value.ok()) << value.status();
  return value.value_or(text::Value());
}

constexpr std::string_view kTools = R"([
  {"type":"function","function":{"name":"get","parameters":{"type":"object","properties":{
     "city":{"type":"string"},"days":{"type":"integer","minimum":1,"maximum":14},
     "unit":{"enum":["C","F"]},"tags":{"type":"array","items":{"type":"string"}},
     "note":{"type":["string","null"]}},"required":["city"]}}},
  {"name":"get_all","parameters":{"type":"object","properties":{}}},
  {"name":"code","parameters":{"type":"object","properties":{
     "id":{"type":"string","pattern":"^[a-z<]{2}$"},"text":{"type":"string","maxLength":4}}}},
  {"name":"any","parameters":{"type":"object"}},
  {"name":"free"}
])";

Grammar Compiled(const text::AnswerForm& form) {
  absl::StatusOr<Grammar> grammar = text::AnswerGrammar(form, DemoTokenizer());
  EXPECT_TRUE(grammar.ok()) << grammar.status();
  return *std::move(grammar);
}

text::AnswerForm ToolAnswer(std::vector<std::string> names = {}, bool required = true,
                            bool parallel = true) {
  text::AnswerForm form;
  form.tools = text::ToolForm{Json(kTools), std::move(names), required, parallel};
  return form;
}

// Encodes `text` (tags become their tokens) and follows it.
class Answer {
 public:
  explicit Answer(const text::AnswerForm& form)
      : maker_(DemoVocabulary()), start_(MatcherFor(Compiled(form), &maker_)) {}

  // The matcher after the text, or nothing if it is not allowed.
  std::optional<Matcher> After(std::string_view text) {
    Matcher matcher = start_;
    const auto ids = DemoTokenizer().Encode(text);
    EXPECT_TRUE(ids.ok()) << ids.status();
    for (const int32_t id : *ids) {
      const std::shared_ptr<const Mask> mask = matcher.MaskOf(matcher.state(), &maker_);
      const bool advanced = matcher.Advance(id);
      EXPECT_EQ(Allowed(*mask, id), advanced);
      if (!advanced) return std::nullopt;
    }
    return matcher;
  }
  bool Takes(std::string_view text) {
    const std::optional<Matcher> matcher = After(text);
    return matcher && matcher->MayEnd();
  }
  bool Goes(std::string_view text) { return After(text).has_value(); }

 private:
  MaskMaker maker_;
  Matcher start_;
};

std::string Call(std::string_view name,
                 const std::vector<std::pair<std::string, std::string>>& args) {
  std::string call = "<tool_call>" + std::string(name);
  for (const auto& [key, value] : args) {
    call += "<arg_key>" + key + "</arg_key><arg_value>" + value + "</arg_value>";
  }
  return call + "</tool_call>";
}

TEST(ToolForm, ArgumentsFollowTheSchema) {
  Answer answer(ToolAnswer());
  EXPECT_TRUE(answer.Takes(Call("get", {{"city", "Bonn \"am\" <Rhein>\n\xE2\x82\xAC"}})));
  EXPECT_TRUE(answer.Takes(Call("get", {{"city", ""}, {"days", "14"}, {"unit", "C"}})));
  EXPECT_TRUE(answer.Takes(Call("get", {{"city", "a"}, {"tags", R"(["x", "y"])"}})));
  EXPECT_TRUE(answer.Takes(Call("get", {{"city", "a"}, {"note", "null"}})));
  EXPECT_TRUE(answer.Takes(Call("get", {{"city", "a"}, {"note", "any text"}})));
  EXPECT_TRUE(answer.Takes(Call("get_all", {})));
  EXPECT_TRUE(answer.Takes(Call("any", {{"x", "1"}, {"y", "z"}})));
  EXPECT_TRUE(answer.Takes(Call("free", {})));
  EXPECT_TRUE(
      answer.Takes("<tool_call>get\n<arg_key>city</arg_key>\n<arg_value>x</arg_value>\n"
                   "</tool_call>"));
  EXPECT_FALSE(answer.Goes(Call("get", {})));
  EXPECT_FALSE(answer.Goes(Call("get", {{"days", "1"}})));
  EXPECT_FALSE(answer.Goes(Call("get", {{"city", "a"}, {"days", "15"}})));
  EXPECT_FALSE(answer.Goes(Call("get", {{"city", "a"}, {"days", "\"3\""}})));
  EXPECT_FALSE(answer.Goes(Call("get", {{"city", "a"}, {"unit", "\"C\""}})));
  EXPECT_FALSE(answer.Goes(Call("get", {{"city", "a"}, {"other", "1"}})));
  EXPECT_FALSE(answer.Goes(Call("getter", {{"city", "a"}})));
  EXPECT_FALSE(answer.Goes(Call("free", {{"x", "1"}})));
  EXPECT_FALSE(answer.Goes(Call("get_all", {{"x", "1"}})));
  EXPECT_FALSE(answer.Goes("Hello"));
  EXPECT_FALSE(answer.Takes(""));
}

TEST(ToolForm, StringsKeepToPatternsAndLengths) {
  Answer answer(ToolAnswer({"code"}));
  EXPECT_TRUE(answer.Takes(Call("code", {{"id", "ab"}, {"text", "x<y"}})));
  EXPECT_FALSE(answer.Goes(Call("code", {{"id", "a"}})));
  EXPECT_FALSE(answer.Goes(Call("code", {{"id", "a<"}})));
  EXPECT_FALSE(answer.Goes(Call("code", {{"text", "12345"}})));
}

TEST(ToolForm, TagsInsideOfValuesAreText) {
  Answer answer(ToolAnswer({"get"}));
  EXPECT_TRUE(answer.Takes(Call("get", {{"city", "<tool_call>a<arg_key></tool_call><think>"}})));
  EXPECT_FALSE(answer.Goes("<tool_call>get<arg_key>city</arg_key><arg_value><|user|>"));
}

TEST(ToolForm, NamesAreRestricted) {
  Answer answer(ToolAnswer({"get_all"}));
  EXPECT_TRUE(answer.Takes(Call("get_all", {})));
  EXPECT_FALSE(answer.Goes("<tool_call>get<arg_key>"));
  EXPECT_FALSE(answer.Goes("<tool_call>free"));
  const auto unknown = text::AnswerGrammar(ToolAnswer({"nobody"}), DemoTokenizer());
  EXPECT_THAT(std::string(unknown.status().message()), HasSubstr("nobody"));
}

TEST(ToolForm, OneCallOrSeveral) {
  const std::string call = Call("free", {});
  Answer several(ToolAnswer());
  EXPECT_TRUE(several.Takes(call + call));
  EXPECT_TRUE(several.Takes(call + "\n" + call));
  EXPECT_FALSE(several.Goes(call + "and"));
  Answer one(ToolAnswer({}, true, false));
  EXPECT_FALSE(one.Goes(call + call));
  const std::optional<Matcher> after = one.After(call);
  ASSERT_TRUE(after.has_value());
  EXPECT_TRUE(after->MustEnd());
}

TEST(ToolForm, CallsThatAreNotRequiredStandAmongText) {
  Answer answer(ToolAnswer({"free"}, /*required=*/false));
  EXPECT_TRUE(answer.Takes(""));
  EXPECT_TRUE(answer.Takes("Just text <b>"));
  EXPECT_TRUE(answer.Takes("Let me see. " + Call("free", {}) + " and " + Call("free", {}) + "."));
  EXPECT_FALSE(answer.Goes("x" + Call("get", {{"city", "a"}})));
  EXPECT_FALSE(answer.Takes("x<tool_call>fre"));
}

TEST(ToolForm, StrictToolsRefuseWhatOthersPassOver) {
  const std::string parameters =
      R"("parameters":{"properties":{"n":{"type":"integer","multipleOf":5}}}}])";
  text::AnswerForm form;
  form.tools = text::ToolForm{Json(R"([{"name":"f",)" + parameters), {}, true, true};
  EXPECT_TRUE(Answer(form).Takes(Call("f", {{"n", "7"}})));
  form.tools->tools = Json(R"([{"name":"f","strict":true,)" + parameters);
  EXPECT_THAT(std::string(text::AnswerGrammar(form, DemoTokenizer()).status().message()),
              testing::AllOf(HasSubstr("\"f\""), HasSubstr("multipleOf")));
}

text::AnswerForm SchemaAnswer(std::string_view schema, bool opens_think) {
  text::AnswerForm form;
  form.content = text::ContentForm{.json_schema = Json(schema)};
  form.opens_think = opens_think;
  return form;
}

TEST(Reasoning, AnythingGoesUntilItEndsButTheEnd) {
  Answer answer(SchemaAnswer(R"({"type":"boolean"})", true));
  EXPECT_TRUE(answer.Takes("Let me think {\"a\": \xE2\x82\xAC </thin </think>true"));
  EXPECT_TRUE(answer.Takes("</think>\n\ntrue"));
  EXPECT_TRUE(
      answer.Takes("a <tool_call> <|user|"
                   "x</think>false"));
  EXPECT_FALSE(answer.Takes("true"));
  EXPECT_FALSE(answer.Goes("hm</think>hm"));
  EXPECT_FALSE(answer.Goes("hm</think>\n\n\ntrue"));
  std::optional<Matcher> reasoning = answer.After("hm");
  ASSERT_TRUE(reasoning.has_value());
  EXPECT_FALSE(reasoning->Advance(kDemoEnd));
  EXPECT_FALSE(reasoning->MayEnd());
  EXPECT_TRUE(reasoning->Advance(DemoToken("<tool_call>")));
  EXPECT_TRUE(reasoning->Advance(DemoToken("[gMASK]")));
}

TEST(Reasoning, EndsWhereOrdinaryTokensSpellItsTag) {
  Answer answer(SchemaAnswer(R"({"const":12})", true));
  std::optional<Matcher> matcher = answer.After("hm");
  ASSERT_TRUE(matcher.has_value());
  EXPECT_TRUE(matcher->AdvanceBytes("</think>"));
  EXPECT_TRUE(matcher->AdvanceBytes("12"));
  EXPECT_TRUE(matcher->MustEnd());
  // Also inside of a token that goes on behind it.
  std::optional<Matcher> again = answer.After("hm");
  EXPECT_TRUE(again->AdvanceBytes("x</think>1"));
  EXPECT_FALSE(again->AdvanceBytes("x"));
}

TEST(Reasoning, ACallEndsItToo) {
  text::AnswerForm form = ToolAnswer({"free"});
  form.opens_think = true;
  Answer answer(form);
  EXPECT_TRUE(answer.Takes("hm</think>" + Call("free", {})));
  EXPECT_TRUE(answer.Takes("hm" + Call("free", {}) + Call("free", {})));
  EXPECT_FALSE(answer.Goes("hm</think>text"));
  EXPECT_FALSE(answer.Takes("hm"));
}

TEST(AnswerForm, ASchemaAndToolsAllowEither) {
  text::AnswerForm form = ToolAnswer({"free"}, /*required=*/false);
  form.content = text::ContentForm{.json_schema = Json(R"({"type":"null"})")};
  Answer answer(form);
  EXPECT_TRUE(answer.Takes("null"));
  EXPECT_TRUE(answer.Takes(Call("free", {})));
  EXPECT_FALSE(answer.Goes("null" + Call("free", {})));
  EXPECT_FALSE(answer.Goes("text"));
}

TEST(AnswerForm, AnyJsonObject) {
  text::AnswerForm form;
  form.content = text::ContentForm{.json_object = true};
  const Grammar grammar = Compiled(form);
  EXPECT_TRUE(Accepts(grammar, R"({"a": [1, {"b": "c"}], "d": null})"));
  EXPECT_FALSE(Accepts(grammar, "[1]"));
  EXPECT_FALSE(Accepts(grammar, R"({"a":1} )"));
  Answer answer(form);
  const std::optional<Matcher> closed = answer.After(R"({"a": 1})");
  ASSERT_TRUE(closed.has_value());
  EXPECT_TRUE(closed->MustEnd());
}

TEST(AnswerForm, Choices) {
  text::AnswerForm form;
  form.content = text::ContentForm{.choices = {"yes", "no", "not sure"}};
  Answer answer(form);
  EXPECT_TRUE(answer.Takes("yes"));
  EXPECT_TRUE(answer.Takes("not sure"));
  EXPECT_FALSE(answer.Takes("not"));
  EXPECT_FALSE(answer.Goes("maybe"));
  form.content->choices.clear();
  EXPECT_FALSE(text::AnswerGrammar(form, DemoTokenizer()).ok());
}

}  // namespace
}  // namespace quartet::grammar
