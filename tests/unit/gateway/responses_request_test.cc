// Requests of POST /v1/responses, told as chat requests.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "services/gateway/openai/responses_request.h"
#include "services/gateway/text/json.h"

namespace quartet::gateway {
namespace {

using ::testing::HasSubstr;

// The chat request that a body with these fields becomes, or the error.
std::string Chat(const std::string& fields) {
  auto body = text::ParseJson("{" + fields + "}");
  EXPECT_TRUE(body.ok()) << body.status() << fields;
  auto result = TranslateResponses(*body);
  if (const auto* error = std::get_if<ApiError>(&result)) return "error: " + error->message;
  std::string out;
  EXPECT_TRUE(
      text::AppendJson(std::get<ResponsesRequest>(result).chat.Body(), {.spaces = false}, &out)
          .ok());
  return out;
}

std::string Messages(const std::string& items) {
  std::string chat = Chat("\"input\":" + items);
  const std::string open = "{\"messages\":";
  return chat.starts_with(open) ? chat.substr(open.size(), chat.size() - open.size() - 1) : chat;
}

TEST(ResponsesRequest, TextIsAUsersMessageAndInstructionsComeFirst) {
  EXPECT_EQ(Chat(R"("input":"Hi","instructions":"Be brief.")"),
            R"({"messages":[{"role":"system","content":"Be brief."},)"
            R"({"role":"user","content":"Hi"}]})");
}

TEST(ResponsesRequest, MessagesMayLeaveOutTheirType) {
  EXPECT_EQ(
      Messages(R"([{"role":"developer","content":"d"},)"
               R"({"type":"message","role":"user","content":[{"type":"input_text","text":"u"}]}])"),
      R"([{"role":"developer","content":"d"},)"
      R"({"role":"user","content":[{"type":"input_text","text":"u"}]}])");
}

TEST(ResponsesRequest, ItemsOfTheAssistantInARowMakeOneMessage) {
  EXPECT_EQ(
      Messages(
          R"([{"role":"user","content":"u"},)"
          R"({"type":"reasoning","id":"rs_1","summary":[],"content":[{"type":"reasoning_text","text":"hm"}]},)"
          R"({"type":"message","id":"msg_1","role":"assistant","status":"completed",)"
          R"("content":[{"type":"output_text","text":"I add.","annotations":[]}]},)"
          R"({"type":"function_call","id":"fc_1","call_id":"c1","name":"add","arguments":"{\"a\": 1}"},)"
          R"({"type":"function_call","call_id":"c2","name":"add","arguments":"{}"},)"
          R"({"type":"function_call_output","call_id":"c1","output":"2"},)"
          R"({"type":"function_call_output","call_id":"c2","output":[{"type":"input_text","text":"3"}]},)"
          R"({"role":"assistant","content":"2 and 3"}])"),
      R"([{"role":"user","content":"u"},)"
      R"({"role":"assistant","content":[{"type":"output_text","text":"I add.","annotations":[]}],)"
      R"("reasoning_content":"hm","tool_calls":[)"
      R"({"id":"c1","type":"function","function":{"name":"add","arguments":"{\"a\": 1}"}},)"
      R"({"id":"c2","type":"function","function":{"name":"add","arguments":"{}"}}]},)"
      R"({"role":"tool","tool_call_id":"c1","content":"2"},)"
      R"({"role":"tool","tool_call_id":"c2","content":[{"type":"input_text","text":"3"}]},)"
      R"({"role":"assistant","content":[{"type":"output_text","text":"2 and 3"}]}])");
}

TEST(ResponsesRequest, ToolsAndChoicesTakeTheFormOfChats) {
  EXPECT_EQ(Chat(R"("input":"x","tools":[{"type":"function","name":"add","description":"adds",)"
                 R"("parameters":{"type":"object"},"strict":true},)"
                 R"({"type":"function","name":"noop","parameters":null}],)"
                 R"("tool_choice":{"type":"function","name":"add"},"parallel_tool_calls":false)"),
            R"({"parallel_tool_calls":false,"tools":[{"type":"function","function":{"name":"add",)"
            R"("description":"adds","parameters":{"type":"object"},"strict":true}},)"
            R"({"type":"function","function":{"name":"noop"}}],)"
            R"("tool_choice":{"type":"function","function":{"name":"add"}},)"
            R"("messages":[{"role":"user","content":"x"}]})");
  EXPECT_THAT(Chat(R"("input":"x","tool_choice":{"type":"allowed_tools","mode":"auto",)"
                   R"("tools":[{"type":"function","name":"add"}]})"),
              HasSubstr(R"("tool_choice":{"type":"allowed_tools","allowed_tools":{"mode":"auto",)"
                        R"("tools":[{"type":"function","function":{"name":"add"}}]}})"));
  EXPECT_THAT(Chat(R"("input":"x","tool_choice":"required")"),
              HasSubstr(R"("tool_choice":"required")"));
}

TEST(ResponsesRequest, OtherFieldsGoByTheirNamesInChatRequests) {
  EXPECT_EQ(
      Chat(R"("input":"x","model":"m","temperature":0.5,"top_p":0.25,"max_output_tokens":7,)"
           R"("reasoning":{"effort":"low","summary":"auto"},"store":true,"metadata":{"a":"b"},)"
           R"("truncation":"disabled","include":["reasoning.encrypted_content"],"user":"ann",)"
           R"("text":{"format":{"type":"json_schema","name":"n","strict":true,"schema":{}}})"),
      R"({"model":"m","temperature":0.5,"top_p":0.25,"user":"ann","max_tokens":7,)"
      R"("reasoning_effort":"low","response_format":{"type":"json_schema",)"
      R"("json_schema":{"name":"n","schema":{},"strict":true}},)"
      R"("messages":[{"role":"user","content":"x"}]})");
}

TEST(ResponsesRequest, WhatThisServerAddsToChatsItAddsHereToo) {
  const std::string added =
      R"("presence_penalty":1,"frequency_penalty":0.5,"repetition_penalty":1.5,"logit_bias":{"7":1},)"
      R"("stop":["a"],"stop_token_ids":[3],"min_tokens":2,"ignore_eos":true,)"
      R"("thinking_token_budget":9,"chat_template_kwargs":{"k":1},"request_id":"r","cache_salt":"s",)"
      R"("cache_read_only":true,"priority":1,"ttft_deadline_ms":60000)";
  EXPECT_EQ(Chat("\"input\":\"x\"," + added),
            "{" + added + R"(,"messages":[{"role":"user","content":"x"}]})");
}

TEST(ResponsesRequest, LogprobsAreIncludedOrAskedForByTheirNumber) {
  EXPECT_EQ(Chat(R"("input":"x","include":["message.output_text.logprobs"])"),
            R"({"logprobs":true,"top_logprobs":0,"messages":[{"role":"user","content":"x"}]})");
  EXPECT_EQ(Chat(R"("input":"x","top_logprobs":3)"),
            R"({"logprobs":true,"top_logprobs":3,"messages":[{"role":"user","content":"x"}]})");
  EXPECT_EQ(Chat(R"("input":"x","top_logprobs":0,"include":["reasoning.encrypted_content"])"),
            R"({"messages":[{"role":"user","content":"x"}]})");
}

TEST(ResponsesRequest, WhatWouldNeedAStoreIsRefusedByName) {
  EXPECT_THAT(Chat(R"("input":"x","previous_response_id":"resp_1")"),
              HasSubstr("previous_response_id: is not supported: responses are not stored"));
  EXPECT_THAT(Chat(R"("input":"x","conversation":"conv_1")"), HasSubstr("conversation: is not"));
  EXPECT_THAT(Chat(R"("input":"x","background":true)"), HasSubstr("background: only false"));
  EXPECT_THAT(Messages(R"([{"type":"item_reference","id":"x"}])"),
              HasSubstr("input[0]: items cannot be referred to"));
  EXPECT_THAT(Chat(R"("input":"x","background":false,"previous_response_id":null)"),
              HasSubstr("messages"));
}

TEST(ResponsesRequest, ErrorsNameTheField) {
  EXPECT_THAT(Chat(""), HasSubstr("input: is missing"));
  EXPECT_THAT(Messages("[]"), HasSubstr("input: must be a string or a list"));
  EXPECT_THAT(Messages("[5]"), HasSubstr("input[0]: must be an item"));
  EXPECT_THAT(Messages(R"([{"type":"web_search_call"}])"),
              HasSubstr("input[0].type: items of type \"web_search_call\" are not supported"));
  EXPECT_THAT(Messages(R"([{"role":"tool","content":"x"}])"), HasSubstr("input[0].role: must be"));
  EXPECT_THAT(Messages(R"([{"role":"user","content":7}])"), HasSubstr("input[0].content: must be"));
  EXPECT_THAT(Messages(R"([{"role":"user","content":[{"type":"input_file"}]}])"),
              HasSubstr("input[0].content[0]: files are not supported"));
  EXPECT_THAT(Messages(R"([{"type":"function_call","call_id":"c","name":"n","arguments":{}}])"),
              HasSubstr("input[0].arguments: must be a string"));
  EXPECT_THAT(Chat(R"("input":"x","tools":[{"type":"web_search"}])"),
              HasSubstr("tools[0].type: only tools of type \"function\""));
  EXPECT_THAT(Chat(R"("input":"x","tools":[{"type":"function"}])"), HasSubstr("tools[0].name"));
  EXPECT_THAT(Chat(R"("input":"x","tool_choice":{"type":"file_search"})"),
              HasSubstr("tool_choice: must be"));
  EXPECT_THAT(Chat(R"("input":"x","truncation":"auto")"), HasSubstr("truncation: only"));
  EXPECT_THAT(Chat(R"("input":"x","top_logprobs":21)"), HasSubstr("top_logprobs: must be"));
  EXPECT_THAT(Chat(R"("input":"x","include":"a")"), HasSubstr("include: must be a list"));
  EXPECT_THAT(Chat(R"("input":"x","include":["a",7])"), HasSubstr("include[1]: must be a string"));
  EXPECT_THAT(Chat(R"("input":"x","text":{"format":{}})"), HasSubstr("text.format.type: must be"));
}

}  // namespace
}  // namespace quartet::gateway
