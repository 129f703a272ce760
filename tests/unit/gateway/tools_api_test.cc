// Tool calls in the answers of POST /v1/chat/completions and of the gRPC service.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "proto/quartet/v1/inference.grpc.pb.h"
#include "tests/unit/gateway/gateway_fixture.h"

namespace quartet::gateway {
namespace {

using testing::At;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using testing::RawReply;

const std::string kTools =
    R"("tools":[{"type":"function","function":{"name":"add","parameters":{"type":"object",)"
    R"("properties":{"a":{"type":"integer"},"note":{"type":"string"}}}}}])";
const std::string kFirst =
    "<tool_call>add<arg_key>a</arg_key><arg_value>2</arg_value>"
    "<arg_key>note</arg_key><arg_value>say \"hi\"\n</arg_value></tool_call>";
const std::string kFirstArguments = "{\"a\": 2, \"note\": \"say \\\"hi\\\"\\n\"}";
const std::string kSecond = "<tool_call>add</tool_call>";

class ToolsApiTest : public GatewayTest {
 protected:
  void SetUp() override {
    config_.listen_grpc = "127.0.0.1:0";
    Start();
  }
  RawReply ChatWithTools(const std::string& fields = "") {
    return Chat(absl::StrCat(kTools, fields.empty() ? "" : ",", fields));
  }
};

TEST_F(ToolsApiTest, CallsComeAsCalls) {
  Answer("I add.</think>" + kFirst + kSecond);
  const RawReply reply = ChatWithTools();
  const std::string message = "choices.0.message.";
  EXPECT_EQ(At(reply.body, message + "content"), "null");
  EXPECT_EQ(At(reply.body, message + "reasoning_content"), "I add.");
  EXPECT_THAT(At(reply.body, message + "tool_calls.0.id"), ContainsRegex("^call_[A-Za-z0-9]{24}$"));
  EXPECT_NE(At(reply.body, message + "tool_calls.0.id"),
            At(reply.body, message + "tool_calls.1.id"));
  EXPECT_EQ(At(reply.body, message + "tool_calls.0.type"), "function");
  EXPECT_EQ(At(reply.body, message + "tool_calls.0.function.name"), "add");
  EXPECT_EQ(At(reply.body, message + "tool_calls.0.function.arguments"), kFirstArguments);
  EXPECT_EQ(At(reply.body, message + "tool_calls.1.function.arguments"), "{}");
  EXPECT_EQ(At(reply.body, message + "tool_calls.2"), "<none>");
  EXPECT_EQ(At(reply.body, "choices.0.finish_reason"), "tool_calls");
  EXPECT_EQ(At(reply.body, "usage.completion_tokens"), absl::StrCat(script()->ids.size()));
  EXPECT_EQ(At(reply.body, "usage.completion_tokens_details.reasoning_tokens"),
            absl::StrCat(Ids("I add.</think>").size()));
}

TEST_F(ToolsApiTest, TheDeltasOfAStreamAddUpToTheWholeAnswer) {
  Answer("I add.</think>So: " + kFirst + "\n" + kSecond);
  for (size_t burst : {1, 3, 100}) {
    script()->ids_per_event = burst;
    const auto events = Events(ChatWithTools(R"("stream":true)"));
    std::string arguments[2];
    std::string content;
    std::vector<std::string> finishes;
    int names = 0;
    for (const std::string& event : events) {
      if (event == "[DONE]") continue;
      if (const std::string reason = At(event, "choices.0.finish_reason"); reason != "null") {
        finishes.push_back(reason);
      }
      if (const std::string text = At(event, "choices.0.delta.content"); text != "<none>") {
        content += text;
      }
      const std::string call = "choices.0.delta.tool_calls.0.";
      if (At(event, call + "index") == "<none>") {
        EXPECT_EQ(At(event, "choices.0.delta.tool_calls"), "<none>") << "not even an empty list";
        continue;
      }
      const int index = std::stoi(At(event, call + "index"));
      ASSERT_LT(index, 2);
      const bool first = At(event, call + "function.name") != "<none>";
      names += first;
      EXPECT_EQ(At(event, call + "type"), first ? "function" : "<none>");
      EXPECT_EQ(At(event, call + "id") != "<none>", first);
      if (first) {
        EXPECT_EQ(At(event, call + "function.arguments"), "");
      }
      arguments[index] += At(event, call + "function.arguments");
    }
    EXPECT_EQ(names, 2);
    EXPECT_EQ(content, "So: ");
    EXPECT_EQ(arguments[0], kFirstArguments) << "however the engine cuts it";
    EXPECT_EQ(arguments[1], "{}");
    EXPECT_THAT(finishes, ::testing::ElementsAre("tool_calls"));
  }
}

TEST_F(ToolsApiTest, ACallThatTheTokenLimitCutsEndsWithLength) {
  const std::string begun = "</think><tool_call>add<arg_key>note</arg_key><arg_value>first";
  Answer(begun + " line</arg_value></tool_call>");
  const RawReply reply = ChatWithTools(absl::StrCat("\"max_tokens\":", Ids(begun).size()));
  EXPECT_EQ(At(reply.body, "choices.0.finish_reason"), "length");
  EXPECT_EQ(At(reply.body, "choices.0.message.tool_calls.0.function.arguments"),
            "{\"note\": \"first");
}

TEST_F(ToolsApiTest, WithoutParallelCallsTheSequenceEndsBehindTheFirst) {
  Answer("</think>" + kFirst + kSecond + "and more");
  const auto counted = static_cast<uint32_t>(Ids("</think>" + kFirst).size());
  script()->hold_at = counted + 1;
  const RawReply reply = ChatWithTools(R"("parallel_tool_calls":false)");
  EXPECT_EQ(At(reply.body, "choices.0.finish_reason"), "tool_calls");
  EXPECT_EQ(At(reply.body, "choices.0.message.tool_calls.0.function.arguments"), kFirstArguments);
  EXPECT_EQ(At(reply.body, "choices.0.message.tool_calls.1"), "<none>");
  EXPECT_EQ(At(reply.body, "choices.0.message.content"), "null");
  EXPECT_EQ(At(reply.body, "usage.completion_tokens"), absl::StrCat(counted));
  EXPECT_TRUE(engine_->WaitFor(
      [&](const auto& seen) { return seen.at(0).truncated == counted && seen.at(0).ended; }));
}

TEST_F(ToolsApiTest, WithoutActiveToolsACallIsText) {
  Answer("</think>" + kFirst);
  for (const std::string& fields :
       {kTools + R"(,"tool_choice":"none")", std::string(R"("tools":[])"), std::string()}) {
    const RawReply reply = Chat(fields);
    EXPECT_EQ(At(reply.body, "choices.0.message.content"), kFirst) << fields;
    EXPECT_EQ(At(reply.body, "choices.0.message.tool_calls"), "<none>") << fields;
    EXPECT_EQ(At(reply.body, "choices.0.finish_reason"), "stop") << fields;
  }
}

TEST_F(ToolsApiTest, ACallOfAnUnknownToolIsText) {
  Answer("</think><tool_call>sub</tool_call>");
  const RawReply reply = ChatWithTools();
  EXPECT_EQ(At(reply.body, "choices.0.message.content"), "<tool_call>sub</tool_call>");
  EXPECT_EQ(At(reply.body, "choices.0.finish_reason"), "stop");
}

TEST_F(ToolsApiTest, AStopStringBehindACallEndsWithToolCalls) {
  Answer("</think>" + kSecond + "now END of it");
  const RawReply reply = ChatWithTools(R"("stop":["END"])");
  EXPECT_EQ(At(reply.body, "choices.0.message.content"), "now ");
  EXPECT_EQ(At(reply.body, "choices.0.finish_reason"), "tool_calls");
  EXPECT_EQ(At(reply.body, "choices.0.stop_reason"), "END");
}

TEST_F(ToolsApiTest, GrpcAnswersCarryCalls) {
  Answer("I add.</think>" + kFirst + kSecond);
  const auto stub = v1::Inference::NewStub(
      grpc::CreateChannel(gateway_->grpc_address(), grpc::InsecureChannelCredentials()));
  v1::GenerateRequest request;
  request.set_chat_request_json(ChatBody(kTools));
  grpc::ClientContext context;
  const auto reader = stub->Generate(&context, request);
  std::string text;
  std::vector<v1::ToolCallDelta> calls;
  v1::GenerateResponse response;
  while (reader->Read(&response)) {
    text += response.text();
    if (!response.has_tool_call()) continue;
    const v1::ToolCallDelta& delta = response.tool_call();
    if (!delta.name().empty()) {
      EXPECT_EQ(delta.index(), calls.size());
      EXPECT_THAT(delta.id(), ContainsRegex("^call_[A-Za-z0-9]{24}$"));
      calls.push_back(delta);
    } else {
      ASSERT_EQ(delta.index() + 1, calls.size());
      calls.back().set_arguments(calls.back().arguments() + delta.arguments());
    }
  }
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_EQ(text, "");
  ASSERT_EQ(calls.size(), 2u);
  EXPECT_EQ(calls[0].name(), "add");
  EXPECT_EQ(calls[0].arguments(), kFirstArguments);
  EXPECT_EQ(calls[1].arguments(), "{}");
  EXPECT_EQ(response.finish().reason(), v1::FINISH_REASON_TOOL_CALLS);
}

}  // namespace
}  // namespace quartet::gateway
