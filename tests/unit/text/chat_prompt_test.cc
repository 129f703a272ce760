#include "services/gateway/text/chat_prompt.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "services/gateway/text/detokenizer.h"
#include "tests/unit/text/test_data.h"

namespace quartet::text {
namespace {

using testing::EndsWith;
using testing::HasSubstr;

const ModelText& DemoModel() {
  static const auto model = LoadModelText(SourcePath("models/quartet-demo-exl3"));
  EXPECT_TRUE(model.ok()) << model.status();
  return **model;
}

ChatPrompt Prompt(std::string_view body, const ChatPromptOptions& options = {}) {
  auto built = BuildChatPrompt(DemoModel(), Json(body), options);
  if (const auto* error = std::get_if<RequestError>(&built)) {
    ADD_FAILURE() << error->message << " (" << error->param << ") for " << body;
    return {};
  }
  return std::get<ChatPrompt>(built);
}

RequestError Error(std::string_view body, const ChatPromptOptions& options = {}) {
  auto built = BuildChatPrompt(DemoModel(), Json(body), options);
  if (const auto* prompt = std::get_if<ChatPrompt>(&built)) {
    ADD_FAILURE() << "no error, but the prompt " << prompt->text;
    return {};
  }
  return std::get<RequestError>(built);
}

const std::string kHead = "[gMASK]<sop><|system|>Reasoning Effort: Max";

std::string BodyWith(std::string_view messages, std::string_view more = "") {
  return R"({"messages":[)" + std::string(messages) + "]" + std::string(more) + "}";
}

const char kUser[] = R"({"role":"user","content":"q"})";

TEST(ChatPrompt, RendersTheRequestsOfPublicBugs) {
  int run = 0;
  for (const Value& c : LoadJson("tests/data/chat/cases.json").Get("cases").list()) {
    if (c.Get("kind").string() != "render") continue;
    ++run;
    const auto built = BuildChatPrompt(DemoModel(), c.Get("request"));
    ASSERT_TRUE(std::holds_alternative<ChatPrompt>(built)) << c.Get("id").string();
    EXPECT_EQ(std::get<ChatPrompt>(built).text, c.Get("expect").Get("prompt").string());
  }
  EXPECT_EQ(run, 2);
}

TEST(ChatPrompt, IdsAreThoseOfTheDemoPrompts) {
  int compared = 0;
  for (const Value& c : LoadJson("tests/data/demo/prompts.json").Get("cases").list()) {
    // The plain questions: "...Reasoning Effort: E<|user|>question<|assistant|><think>".
    const std::string& prompt = c.Get("prompt").string();
    const std::string begin = "<|user|>";
    const std::string end = "<|assistant|><think>";
    const size_t at = prompt.find(begin);
    if (prompt.find("<|", at + 1) != prompt.size() - end.size()) continue;
    if (at != prompt.find("<|", kHead.find("Reasoning"))) continue;
    ++compared;
    const std::string question =
        prompt.substr(at + begin.size(), prompt.size() - end.size() - at - begin.size());
    const std::string effort = c.Get("effort").string();
    const Value body = Value::MakeObject(
        {{"messages", Value::MakeList({Value::MakeObject({{"role", Value::String("user")},
                                                          {"content", Value::String(question)}})})},
         {"reasoning_effort", Value::String(effort == "Low"    ? "low"
                                            : effort == "High" ? "high"
                                                               : "max")}});
    const auto built = BuildChatPrompt(DemoModel(), body);
    ASSERT_TRUE(std::holds_alternative<ChatPrompt>(built));
    EXPECT_EQ(std::get<ChatPrompt>(built).text, prompt);
    EXPECT_EQ(std::get<ChatPrompt>(built).ids, Ids(c.Get("input_ids")));
    EXPECT_TRUE(std::get<ChatPrompt>(built).opens_think);
  }
  EXPECT_GT(compared, 10);
}

TEST(ChatPrompt, MapsRoles) {
  EXPECT_EQ(
      Prompt(BodyWith(R"({"role":"developer","content":"be brief"},{"role":"user","content":"q"})"))
          .text,
      kHead + "<|system|>be brief<|user|>q<|assistant|><think>");
  EXPECT_EQ(Prompt(BodyWith(R"({"role":"function","name":"f","content":"5"})")).text,
            kHead + "<|observation|><tool_response>5</tool_response><|assistant|><think>");
  for (const char* role : {"\"User\"", "\"bot\"", "3", "null"}) {
    EXPECT_EQ(
        Error(BodyWith(std::string(kUser) + R"(,{"role":)" + role + R"(,"content":"x"})")).param,
        "messages[1].role");
  }
}

TEST(ChatPrompt, JoinsTextParts) {
  EXPECT_EQ(
      Prompt(
          BodyWith(
              R"({"role":"user","content":[{"type":"text","text":"a "},{"type":"input_text","text":"b"}]})"))
          .text,
      kHead + "<|user|>a b<|assistant|><think>");
  EXPECT_EQ(
      Prompt(
          BodyWith(
              R"({"role":"tool","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]})"))
          .text,
      kHead + "<|observation|><tool_response>ab</tool_response><|assistant|><think>");
  EXPECT_EQ(Prompt(BodyWith(R"({"role":"user","content":null},{"role":"user"})")).text,
            kHead + "<|user|><|user|><|assistant|><think>");
}

TEST(ChatPrompt, RefusesPartsThatItCannotShow) {
  struct Case {
    const char* part;
    const char* message;
  };
  for (const Case& c :
       {Case{R"({"type":"image_url","image_url":{"url":"data:image/png;base64,AA"}})",
             "images are not supported by this server yet"},
        Case{R"({"type":"video_url","video_url":{}})", "videos are not supported"},
        Case{R"({"type":"input_audio","input_audio":{}})", "audio is not supported"},
        Case{R"({"type":"file","file":{}})", "must have the type text"},
        Case{R"("plain")", "must have the type text"}}) {
    const RequestError error = Error(BodyWith(
        std::string(R"({"role":"user","content":[{"type":"text","text":"a"},)") + c.part + "]}"));
    EXPECT_EQ(error.param, "messages[0].content[1]");
    EXPECT_THAT(error.message, HasSubstr(c.message));
  }
  EXPECT_EQ(Error(BodyWith(R"({"role":"user","content":5})")).param, "messages[0].content");
  EXPECT_EQ(Error(BodyWith(R"({"role":"user","content":[{"type":"text"}]})")).param,
            "messages[0].content[0].text");
}

TEST(ChatPrompt, TakesReasoningInEveryForm) {
  const std::string expected =
      kHead + "<|user|>q<|assistant|><think>r</think>a<|assistant|><think>";
  for (const char* fields :
       {R"("content":"a","reasoning_content":"r")", R"("content":"a","reasoning":"r")",
        R"("content":"a","reasoning_details":[{"type":"reasoning.text","text":"r"}])",
        R"("content":[{"type":"thinking","thinking":"r"},{"type":"text","text":"a"}])",
        R"("content":"<think>r</think>a")",
        R"("content":"<think>r</think>\n\na","reasoning_content":"")"}) {
    EXPECT_EQ(Prompt(BodyWith(std::string(kUser) + R"(,{"role":"assistant",)" + fields + "}")).text,
              expected)
        << fields;
  }
  EXPECT_EQ(Error(BodyWith(R"({"role":"assistant","content":"a","reasoning":7})")).param,
            "messages[0].reasoning");
}

std::string CallWith(std::string_view arguments) {
  return R"({"role":"assistant","content":null,"tool_calls":[{"id":"k","type":"function","function":{"name":"f","arguments":)" +
         std::string(arguments) + "}}]}";
}

TEST(ChatPrompt, ReadsTheArgumentsOfEarlierCalls) {
  EXPECT_EQ(
      Prompt(BodyWith(CallWith(R"("{\"b\": 1.0, \"a\": \"x\", \"n\": 123456789012345678901}")")))
          .text,
      kHead +
          "<|assistant|><think></think><tool_call>f<arg_key>b</arg_key><arg_value>1.0</arg_value>"
          "<arg_key>a</arg_key><arg_value>x</arg_value><arg_key>n</arg_key>"
          "<arg_value>123456789012345678901</arg_value></tool_call><|assistant|><think>");
  for (const char* empty : {"\"\"", "\"{}\"", "{}", "null"}) {
    EXPECT_THAT(Prompt(BodyWith(CallWith(empty))).text, HasSubstr("<tool_call>f</tool_call>"));
  }
  for (const char* wrong : {"\"{\"", "\"[1]\"", "7"}) {
    EXPECT_EQ(Error(BodyWith(CallWith(wrong))).param,
              "messages[0].tool_calls[0].function.arguments");
    EXPECT_THAT(Prompt(BodyWith(CallWith(wrong)), {.lenient_tool_history = true}).text,
                HasSubstr("<tool_call>f</tool_call>"));
  }
  EXPECT_EQ(Error(BodyWith(R"({"role":"assistant","tool_calls":[{"id":"k"}]})")).param,
            "messages[0].tool_calls[0].function");
  EXPECT_EQ(Error(BodyWith(R"({"role":"user","tool_calls":[]})")).param, "messages[0].tool_calls");
}

const char kTools[] = R"(,"tools":[{"type":"function","function":{"name":"f","parameters":{}}}])";

TEST(ChatPrompt, ToolsStayInThePromptWhenTheRequestForbidsThem) {
  // The prompt stays the same, so that its cache does.
  EXPECT_EQ(Prompt(BodyWith(kUser, std::string(kTools) + R"(,"tool_choice":"none")")).text,
            Prompt(BodyWith(kUser, kTools)).text);
  EXPECT_EQ(Prompt(BodyWith(kUser, R"(,"tools":[])")).text,
            kHead + "<|user|>q<|assistant|><think>");
  EXPECT_EQ(Error(BodyWith(kUser, R"(,"tools":{})")).param, "tools");
  EXPECT_EQ(Error(BodyWith(kUser, R"(,"tools":[5])")).param, "tools[0]");
  EXPECT_EQ(Error(BodyWith(kUser, R"(,"tools":[{"type":"web_search"}])")).param, "tools[0].type");
  EXPECT_EQ(Error(BodyWith(kUser, R"(,"tools":[{"type":"function","function":{}}])")).param,
            "tools[0].function.name");
}

TEST(ChatPrompt, MapsEffort) {
  const auto effort = [](std::string_view more) {
    const std::string text = Prompt(BodyWith(kUser, more)).text;
    const size_t at = text.find("Effort: ") + 8;
    return text.substr(at, text.find("<|user|>") - at);
  };
  EXPECT_EQ(effort(""), "Max");
  for (const char* low : {"none", "minimal", "low"}) {
    EXPECT_EQ(effort(std::string(R"(,"reasoning_effort":")") + low + "\""), "Low");
  }
  for (const char* high : {"medium", "high"}) {
    EXPECT_EQ(effort(std::string(R"(,"reasoning_effort":")") + high + "\""), "High");
  }
  for (const char* max : {"xhigh", "max"}) {
    EXPECT_EQ(effort(std::string(R"(,"reasoning_effort":")") + max + "\""), "Max");
  }
  EXPECT_EQ(effort(R"(,"chat_template_kwargs":{"reasoning_effort":"low"})"), "Low");
  EXPECT_EQ(
      effort(R"(,"chat_template_kwargs":{"reasoning_effort":"low"},"reasoning_effort":"high")"),
      "High");
  EXPECT_EQ(effort(R"(,"thinking":{"type":"disabled"})"), "Low");
  EXPECT_EQ(effort(R"(,"reasoning":{"effort":"high"})"), "High");
  EXPECT_EQ(Error(BodyWith(kUser, R"(,"reasoning_effort":"loud")")).param, "reasoning_effort");
  EXPECT_EQ(Error(BodyWith(kUser, R"(,"reasoning_effort":1)")).param, "reasoning_effort");
  EXPECT_EQ(Error(BodyWith(kUser, R"(,"chat_template_kwargs":[])")).param, "chat_template_kwargs");
}

TEST(ChatPrompt, ReasoningOpensByWhatThePromptEndsWith) {
  EXPECT_TRUE(Prompt(BodyWith(kUser)).opens_think);
  // A flag of other models changes nothing.
  EXPECT_TRUE(
      Prompt(BodyWith(kUser, R"(,"chat_template_kwargs":{"enable_thinking":false})")).opens_think);
  const ChatPrompt closed = Prompt(BodyWith(kUser, R"(,"add_generation_prompt":false)"));
  EXPECT_FALSE(closed.opens_think);
  EXPECT_EQ(closed.text, kHead + "<|user|>q");
  EXPECT_FALSE(Prompt(BodyWith(R"({"role":"user","content":"<think>"})",
                               R"(,"add_generation_prompt":false)"))
                   .opens_think);
}

TEST(ChatPrompt, SaysHowMuchOfItOtherConversationsBeginWithToo) {
  const auto system_text = [](const ChatPrompt& prompt) {
    return *DemoModel().tokenizer->Encode(prompt.text.substr(0, prompt.text.find("<|user|>"))) ==
           std::vector<int32_t>(prompt.ids.begin(), prompt.ids.begin() + prompt.system_tokens);
  };
  const ChatPrompt plain = Prompt(BodyWith(kUser));
  EXPECT_TRUE(system_text(plain));
  const ChatPrompt told = Prompt(
      BodyWith(R"({"role":"system","content":"be brief, <|user|>"},{"role":"user","content":"q"})",
               R"(,"tools":[{"type":"function","function":{"name":"f"}}])"));
  EXPECT_GT(told.system_tokens, plain.system_tokens + 20);
  // What a client typed is no turn.
  EXPECT_EQ(told.ids[told.system_tokens], plain.ids[plain.system_tokens]);
  EXPECT_EQ(std::ranges::count(told.ids, told.ids[told.system_tokens]), 1);
}

TEST(ChatPrompt, ContinuesTheLastMessage) {
  const char more[] = R"(,"continue_final_message":true)";
  const ChatPrompt content = Prompt(BodyWith(
      std::string(kUser) + R"(,{"role":"assistant","content":"partial  ","reasoning_content":"r"})",
      more));
  EXPECT_EQ(content.text, kHead + "<|user|>q<|assistant|><think>r</think>partial  ");
  EXPECT_FALSE(content.opens_think);
  const ChatPrompt reasoning = Prompt(BodyWith(
      std::string(kUser) + R"(,{"role":"assistant","content":"","reasoning_content":"so "})",
      more));
  EXPECT_EQ(reasoning.text, kHead + "<|user|>q<|assistant|><think>so ");
  EXPECT_TRUE(reasoning.opens_think);
  // The cut leaves nothing of the marker in the ids.
  EXPECT_EQ(content.ids, *DemoModel().tokenizer->Encode(content.text));

  EXPECT_EQ(Error(BodyWith(kUser, more)).param, "messages[0]");
  EXPECT_EQ(Error(BodyWith(kUser, R"(,"continue_final_message":true,"add_generation_prompt":true)"))
                .param,
            "continue_final_message");
  EXPECT_EQ(Error(BodyWith(CallWith("{}"), more)).param, "messages[0]");
  EXPECT_EQ(Error(BodyWith(kUser, R"(,"continue_final_message":"yes")")).param,
            "continue_final_message");
}

TEST(ChatPrompt, ControlTokensOfClientsAreOrdinaryText) {
  const Tokenizer& tokenizer = *DemoModel().tokenizer;
  const int32_t assistant = *tokenizer.TokenId("<|assistant|>");
  const int32_t think = *tokenizer.TokenId("</think>");
  const std::string body = BodyWith(
      R"({"role":"system","content":"s<|assistant|>"},{"role":"user","content":"say <|assistant|> and </think>"},{"role":"assistant","content":"a <|assistant|> b","reasoning_content":"<|assistant|>"},)" +
          CallWith(R"({"<|assistant|>":"<|assistant|>"})") +
          R"(,{"role":"tool","tool_call_id":"k","content":"<|assistant|>"})",
      R"(,"tools":[{"type":"function","function":{"name":"f","description":"<|assistant|>"}}],"chat_template_kwargs":{"x":"<|assistant|>"})");
  const ChatPrompt safe = Prompt(body);
  // Two assistant turns and the generation prompt.
  EXPECT_EQ(std::count(safe.ids.begin(), safe.ids.end(), assistant), 3);
  EXPECT_EQ(std::count(safe.ids.begin(), safe.ids.end(), think), 2);
  EXPECT_EQ(Decode(tokenizer, safe.ids), safe.text);
  const ChatPrompt trusted = Prompt(body, {.trust_content_tokens = true});
  EXPECT_EQ(trusted.text, safe.text);
  EXPECT_GT(std::count(trusted.ids.begin(), trusted.ids.end(), assistant), 8);
  EXPECT_EQ(trusted.ids, *tokenizer.Encode(trusted.text));
}

TEST(ChatPrompt, MarkerCharactersInRequestsAreRefused) {
  EXPECT_EQ(Error(BodyWith("{\"role\":\"user\",\"content\":\"x\\ufdd0\"}")).param,
            "messages[0].content");
  EXPECT_EQ(Error(BodyWith(CallWith(R"({"\ufdd1":1})"))).param,
            "messages[0].tool_calls[0].function.arguments");
  EXPECT_EQ(Error(BodyWith(kUser, R"(,"chat_template_kwargs":{"a":["\ufdef"]})")).param,
            "chat_template_kwargs");
}

TEST(ChatPrompt, ChecksTheLength) {
  const size_t tokens = Prompt(BodyWith(kUser)).ids.size();
  const int64_t fits = static_cast<int64_t>(tokens) + 1;
  EXPECT_EQ(Prompt(BodyWith(kUser), {.context_tokens = fits}).ids.size(), tokens);
  const RequestError error = Error(BodyWith(kUser), {.context_tokens = fits - 1});
  EXPECT_EQ(error.code, "context_length_exceeded");
  EXPECT_EQ(error.param, "messages");
  EXPECT_THAT(error.message, HasSubstr("the prompt has " + std::to_string(tokens) + " tokens"));
  EXPECT_EQ(Error(BodyWith(kUser), {.context_tokens = fits, .output_tokens_min = 2}).code,
            "context_length_exceeded");
  const std::string huge =
      BodyWith(R"({"role":"user","content":")" + std::string(100000, 'a') + R"("})");
  EXPECT_EQ(Error(huge, {.context_tokens = 100}).code, "context_length_exceeded");
}

TEST(ChatPrompt, RefusesBodiesThatAreNoChat) {
  EXPECT_EQ(Error("[]").param, "");
  for (const char* body :
       {"{}", R"({"messages":[]})", R"({"messages":"hi"})", R"({"messages":null})"}) {
    EXPECT_EQ(Error(body).param, "messages") << body;
  }
  EXPECT_EQ(Error(R"({"messages":["hi"]})").param, "messages[0]");
}

TEST(ChatPrompt, TemplateLimitsAreTheClientsError) {
  TemplateLimits limits;
  limits.steps_max = 50;
  const RequestError error = Error(BodyWith(kUser), {.limits = limits});
  EXPECT_THAT(error.message, HasSubstr("steps"));
}

TEST(ChatPrompt, ManyToolResultsStayWithinTheLimits) {
  std::string calls;
  std::string results;
  for (int i = 0; i < 512; ++i) {
    const std::string id = "c" + std::to_string(i);
    calls += (i > 0 ? "," : "") + std::string(R"({"id":")") + id +
             R"(","type":"function","function":{"name":"f","arguments":"{}"}})";
    results += R"(,{"role":"tool","tool_call_id":"c)" + std::to_string(511 - i) +
               R"(","content":")" + std::to_string(511 - i) + R"("})";
  }
  const ChatPrompt prompt = Prompt(
      BodyWith(R"({"role":"assistant","content":"","tool_calls":[)" + calls + "]}" + results));
  EXPECT_THAT(
      prompt.text,
      HasSubstr("<|observation|><tool_response>0</tool_response><tool_response>1</tool_response>"));
  EXPECT_THAT(prompt.text, EndsWith("<tool_response>511</tool_response><|assistant|><think>"));
}

}  // namespace
}  // namespace quartet::text
