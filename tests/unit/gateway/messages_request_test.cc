// Requests of POST /v1/messages, told as chat requests.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "services/gateway/anthropic/request.h"
#include "services/gateway/text/json.h"

namespace quartet::gateway {
namespace {

using ::testing::HasSubstr;

text::Value Parsed(const std::string& json) {
  auto value = text::ParseJson(json);
  EXPECT_TRUE(value.ok()) << value.status() << json;
  return *value;
}

std::string Json(const text::Value& value) {
  std::string out;
  EXPECT_TRUE(text::AppendJson(value, {.spaces = false}, &out).ok());
  return out;
}

// A body with `fields` beside the limit.
std::variant<MessagesRequest, ApiError> Translate(const std::string& fields,
                                                  MessagesUse use = MessagesUse::kAnswer) {
  return TranslateMessages(Parsed(absl::StrCat("{\"max_tokens\":9,", fields, "}")), use);
}

// The chat request, without the limit; or the error.
std::string Chat(const std::string& fields) {
  auto result = Translate(fields);
  if (const auto* error = std::get_if<ApiError>(&result)) return "error: " + error->message;
  std::string body = Json(std::get<MessagesRequest>(result).chat.Body());
  const std::string limit = "\"max_tokens\":9,";
  const size_t at = body.find(limit);
  EXPECT_NE(at, std::string::npos) << body;
  return body.erase(at, limit.size());
}

std::string Messages(const std::string& list) {
  std::string chat = Chat("\"messages\":" + list);
  const std::string open = "{\"messages\":";
  return chat.starts_with(open) ? chat.substr(open.size(), chat.size() - open.size() - 1) : chat;
}

// With one user message.
std::string ErrorOf(const std::string& fields) {
  auto result = Translate(absl::StrCat(R"("messages":[{"role":"user","content":"Hi"}])",
                                       fields.empty() ? "" : ",", fields));
  const auto* error = std::get_if<ApiError>(&result);
  return error ? absl::StrCat(error->param, " | ", error->message) : "no error";
}

const std::string kUser = R"({"role":"user","content":"Hi"})";

TEST(MessagesRequest, SystemComesFirstAsAStringOrAsBlocks) {
  EXPECT_EQ(Chat(R"("system":"Be brief.","messages":[)" + kUser + "]"),
            R"({"messages":[{"role":"system","content":"Be brief."},)" + kUser + "]}");
  EXPECT_EQ(Chat(R"("system":[{"type":"text","text":"a","cache_control":{"type":"ephemeral"}},)"
                 R"({"type":"text","text":"b"}],"messages":[)" +
                 kUser + "]"),
            R"({"messages":[{"role":"system","content":[{"type":"text","text":"a"},)"
            R"({"type":"text","text":"b"}]},)" +
                kUser + "]}");
  EXPECT_EQ(Chat(R"("system":"","messages":[)" + kUser + "]"), "{\"messages\":[" + kUser + "]}");
}

TEST(MessagesRequest, ResultsComeBeforeTheRestOfAUsersMessage) {
  EXPECT_EQ(Messages(R"([{"role":"user","content":[{"type":"text","text":"And now?"},)"
                     R"({"type":"tool_result","tool_use_id":"t1","content":"4"},)"
                     R"({"type":"tool_result","tool_use_id":"t2","is_error":true,)"
                     R"("content":[{"type":"text","text":"no such file"}]},)"
                     R"({"type":"tool_result","tool_use_id":"t3"}]}])"),
            R"([{"role":"tool","tool_call_id":"t1","content":[{"type":"text","text":"4"}]},)"
            R"({"role":"tool","tool_call_id":"t2","content":[{"type":"text","text":"Error: "},)"
            R"({"type":"text","text":"no such file"}]},)"
            R"({"role":"tool","tool_call_id":"t3","content":[]},)"
            R"({"role":"user","content":[{"type":"text","text":"And now?"}]}])");
  EXPECT_EQ(Messages(R"([{"role":"user","content":[)"
                     R"({"type":"tool_result","tool_use_id":"t1","content":"4"}]}])"),
            R"([{"role":"tool","tool_call_id":"t1","content":[{"type":"text","text":"4"}]}])")
      << "no message without content";
}

TEST(MessagesRequest, AReferenceToAToolHasItsName) {
  EXPECT_EQ(Messages(R"([{"role":"user","content":[{"type":"tool_result","tool_use_id":"t1",)"
                     R"("content":[{"type":"tool_reference","tool_name":"add"}]}]}])"),
            R"([{"role":"tool","tool_call_id":"t1",)"
            R"("content":[{"type":"tool_reference","name":"add"}]}])");
}

TEST(MessagesRequest, AnAssistantsBlocksBecomeReasoningContentAndCalls) {
  EXPECT_EQ(
      Messages(
          R"([{"role":"assistant","content":[{"type":"thinking","thinking":"hm ","signature":"s"},)"
          R"({"type":"redacted_thinking","data":"xyz"},{"type":"thinking","thinking":"so"},)"
          R"({"type":"text","text":"I add."},)"
          R"({"type":"tool_use","id":"t1","name":"add","input":{"b":1.0,"a":2}}]},)" +
          kUser + "]"),
      R"([{"role":"assistant","content":[{"type":"text","text":"I add."}],)"
      R"("reasoning_content":"hm so","tool_calls":[{"id":"t1","type":"function",)"
      R"("function":{"name":"add","arguments":{"b":1.0,"a":2}}}]},)" +
          kUser + "]");
}

TEST(MessagesRequest, AMessageOfTheAssistantAtTheEndIsContinued) {
  EXPECT_EQ(Chat("\"messages\":[" + kUser + R"(,{"role":"assistant","content":"The best is ("}])"),
            R"({"continue_final_message":true,"messages":[)" + kUser +
                R"(,{"role":"assistant","content":"The best is ("}]})");
}

TEST(MessagesRequest, ToolsBecomeFunctions) {
  EXPECT_EQ(Chat(R"("tools":[{"name":"add","description":"adds","input_schema":{"type":"object"},)"
                 R"("cache_control":{"type":"ephemeral"}},)"
                 R"({"type":"custom","name":"late","input_schema":{},"defer_loading":true}],)"
                 R"("messages":[)" +
                 kUser + "]"),
            R"({"tools":[{"type":"function","function":{"name":"add","description":"adds",)"
            R"("parameters":{"type":"object"}}},{"type":"function","function":{"name":"late",)"
            R"("parameters":{},"defer_loading":true}}],"messages":[)" +
                kUser + "]}");
}

TEST(MessagesRequest, ToolChoicesHaveTheirCounterparts) {
  const auto choice = [](const std::string& fields) {
    return Chat("\"tool_choice\":{" + fields + "},\"messages\":[" + kUser + "]");
  };
  const std::string end = ",\"messages\":[" + kUser + "]}";
  EXPECT_EQ(choice(R"("type":"auto")"), R"({"tool_choice":"auto")" + end);
  EXPECT_EQ(choice(R"("type":"none")"), R"({"tool_choice":"none")" + end);
  EXPECT_EQ(choice(R"("type":"any")"), R"({"tool_choice":"required")" + end);
  EXPECT_EQ(choice(R"("type":"tool","name":"add")"),
            R"({"tool_choice":{"type":"function","function":{"name":"add"}})" + end);
  EXPECT_EQ(choice(R"("type":"auto","disable_parallel_tool_use":true)"),
            R"({"tool_choice":"auto","parallel_tool_calls":false)" + end);
}

TEST(MessagesRequest, OtherFieldsGoByTheirNamesInChatRequests) {
  EXPECT_EQ(
      Chat(R"("model":"m","top_p":0.5,"top_k":7,"temperature":0.25,"stop_sequences":["x"],)"
           R"("metadata":{"user_id":"ann"},"thinking":{"type":"enabled","budget_tokens":2048},)"
           R"("output_config":{"effort":"high","format":{"type":"json_schema","schema":{}}},)"
           R"("service_tier":"auto","context_management":{},"messages":[)" +
           kUser + "]"),
      R"({"model":"m","top_p":0.5,"top_k":7,"temperature":0.25,"stop":["x"],"user":"ann",)"
      R"("thinking":{"type":"enabled","budget_tokens":2048},"reasoning_effort":"high",)"
      R"("response_format":{"type":"json_schema","json_schema":{"name":"output","schema":{}}},)"
      R"("messages":[)" +
          kUser + "]}");
}

TEST(MessagesRequest, ThinkingIsShownUnlessTheClientWantsOtherwise) {
  const auto shown = [](const std::string& fields) {
    auto result = Translate(fields + "\"messages\":[" + kUser + "]");
    return std::get<MessagesRequest>(result).thinking;
  };
  EXPECT_EQ(shown(""), ThinkingDisplay::kShown);
  EXPECT_EQ(shown(R"("thinking":{"type":"adaptive"},)"), ThinkingDisplay::kShown);
  EXPECT_EQ(shown(R"("thinking":{"type":"disabled"},)"), ThinkingDisplay::kHidden);
  EXPECT_EQ(shown(R"("thinking":{"type":"adaptive","display":"omitted"},)"),
            ThinkingDisplay::kOmitted);
}

TEST(MessagesRequest, TheLimitIsNeededForAnAnswerOnly) {
  const text::Value body = Parsed("{\"messages\":[" + kUser + "]}");
  const auto answer = TranslateMessages(body, MessagesUse::kAnswer);
  EXPECT_EQ(std::get<ApiError>(answer).message, "max_tokens: is missing");
  EXPECT_TRUE(
      std::holds_alternative<MessagesRequest>(TranslateMessages(body, MessagesUse::kCount)));
}

TEST(MessagesRequest, ErrorsNameTheField) {
  EXPECT_THAT(ErrorOf(R"("temperature":1.5)"), HasSubstr("temperature | temperature: must be"));
  EXPECT_THAT(ErrorOf(R"("stop_sequences":"x")"), HasSubstr("stop_sequences: must be a list"));
  EXPECT_THAT(ErrorOf(R"("system":5)"), HasSubstr("system: must be a string or a list"));
  EXPECT_THAT(ErrorOf(R"("tools":[{"name":"x"}])"), HasSubstr("tools[0].input_schema: must be"));
  EXPECT_THAT(ErrorOf(R"("tools":[{"type":"bash_20250124","name":"bash"}])"),
              HasSubstr("tools[0].type: only tools of the client's own"));
  EXPECT_THAT(ErrorOf(R"("tool_choice":{"type":"tool"})"), HasSubstr("tool_choice.name: must be"));
  EXPECT_THAT(ErrorOf(R"("tool_choice":"auto")"), HasSubstr("tool_choice: must be an object"));
  EXPECT_THAT(ErrorOf(R"("thinking":{"type":"enabled"})"),
              HasSubstr("thinking.budget_tokens: is missing"));
  EXPECT_THAT(ErrorOf(R"("thinking":{"type":"deep"})"), HasSubstr("thinking.type: must be"));
  EXPECT_THAT(ErrorOf(R"("mcp_servers":[{"url":"x"}])"),
              HasSubstr("mcp_servers: is not supported"));
  EXPECT_EQ(ErrorOf(R"("mcp_servers":[])"), "no error");
  EXPECT_THAT(Messages("[]"), HasSubstr("messages: must be a list with at least one"));
  EXPECT_THAT(Messages(R"([{"role":"tool","content":"x"}])"), HasSubstr("messages[0].role: must"));
  EXPECT_THAT(Messages(R"([{"role":"user"}])"), HasSubstr("messages[0].content: must be"));
  EXPECT_THAT(Messages(R"([{"role":"user","content":[5]}])"), HasSubstr("messages[0].content[0]"));
  EXPECT_THAT(Messages(R"([{"role":"user","content":[{"type":"text"}]}])"),
              HasSubstr("messages[0].content[0].text: must be a string"));
  EXPECT_THAT(Messages(R"([{"role":"user","content":[{"type":"tool_use"}]}])"),
              HasSubstr("messages[0].content[0]: a block of type \"tool_use\" cannot stand here"));
  EXPECT_THAT(Messages(R"([{"role":"assistant","content":[{"type":"tool_use","id":"t","name":"n",)"
                       R"("input":"{}"}]}])"),
              HasSubstr("messages[0].content[0].input: must be an object"));
}

TEST(MessagesRequest, WhatIsNotTextIsRefusedByName) {
  const std::string image =
      R"({"type":"image","source":{"type":"base64","media_type":"image/png","data":"AAAA"}})";
  EXPECT_THAT(Messages(R"([{"role":"user","content":[{"type":"text","text":"?"},)" + image + "]}]"),
              HasSubstr("messages[0].content[1]: images are not supported"));
  EXPECT_THAT(Messages(R"([{"role":"user","content":[{"type":"tool_result","tool_use_id":"t",)"
                       R"("content":[)" +
                       image + "]}]}]"),
              HasSubstr("messages[0].content[0].content[0]: images are not supported"));
  EXPECT_THAT(Messages(R"([{"role":"user","content":[{"type":"document","source":{}}]}])"),
              HasSubstr("messages[0].content[0]: documents are not supported"));
}

// What the chat request's checks find is said about the request that came.
TEST(TranslatedChat, ErrorsAreToldInTheWordsOfTheRequest) {
  auto result = Translate(R"("system":"s","messages":[)" + kUser +
                          R"(,{"role":"user","content":[{"type":"tool_result","tool_use_id":"t",)"
                          R"("content":"x"},{"type":"text","text":"y"}]}])");
  const TranslatedChat& chat = std::get<MessagesRequest>(result).chat;
  const auto told = [&](const std::string& param, const std::string& message) {
    const ApiError error = chat.InItsWords({.message = message, .param = param});
    return error.param + " | " + error.message;
  };
  EXPECT_EQ(told("messages[0].content", "bad"), "system.content | bad");
  EXPECT_EQ(told("messages[2].content", "messages[2].content: bad"),
            "messages[1].content[0].content | messages[1].content[0].content: bad");
  EXPECT_EQ(told("messages[3]", "bad"), "messages[1] | bad");
  EXPECT_EQ(told("stop[2]", "stop[2]: is empty"),
            "stop_sequences[2] | stop_sequences[2]: is empty");
  EXPECT_EQ(told("stop_token_ids", "x"), "stop_token_ids | x");
  EXPECT_EQ(told("messages", "too long"), "messages | too long");
}

}  // namespace
}  // namespace quartet::gateway
