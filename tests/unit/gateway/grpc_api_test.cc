// quartet.v1.Inference over a real channel.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include "proto/quartet/v1/inference.grpc.pb.h"
#include "tests/unit/gateway/gateway_fixture.h"

namespace quartet::gateway {
namespace {

using ::testing::HasSubstr;

class GrpcApiTest : public GatewayTest {
 protected:
  void SetUp() override {
    config_.listen_grpc = "127.0.0.1:0";
    Start();
    channel_ = grpc::CreateChannel(gateway_->grpc_address(), grpc::InsecureChannelCredentials());
    stub_ = v1::Inference::NewStub(channel_);
  }

  struct Result {
    grpc::Status status;
    std::string text;
    std::string reasoning;
    std::vector<int32_t> ids;
    std::vector<int32_t> prompt_ids;
    std::vector<v1::TokenLogprob> logprobs;
    std::vector<v1::TokenLogprob> prompt_logprobs;
    std::string calls;  // "id name(arguments)" of each, ids without their random part
    v1::GenerateResponse::Finish finish;
    std::string error_code;
  };
  Result Generate(const v1::GenerateRequest& request) {
    Result result;
    grpc::ClientContext context;
    auto reader = stub_->Generate(&context, request);
    v1::GenerateResponse response;
    while (reader->Read(&response)) {
      result.text += response.text();
      result.reasoning += response.reasoning();
      const auto append = [](const auto& from, auto* to) {
        to->insert(to->end(), from.begin(), from.end());
      };
      append(response.token_ids(), &result.ids);
      append(response.prompt_token_ids(), &result.prompt_ids);
      append(response.logprobs(), &result.logprobs);
      append(response.prompt_logprobs(), &result.prompt_logprobs);
      if (response.has_tool_call()) {
        const v1::ToolCallDelta& call = response.tool_call();
        if (!call.id().empty()) result.calls += call.id().substr(0, 5) + " " + call.name() + " ";
        result.calls += call.arguments();
      }
      if (response.has_finish()) result.finish = response.finish();
    }
    result.status = reader->Finish();
    const auto& trailing = context.GetServerTrailingMetadata();
    if (const auto code = trailing.find("error-code"); code != trailing.end()) {
      result.error_code = {code->second.data(), code->second.size()};
    }
    return result;
  }

  // A conversation of one message, with a tool.
  static v1::GenerateRequest TypedChat() {
    v1::GenerateRequest request;
    v1::ChatMessage* message = request.mutable_chat()->add_messages();
    message->set_role("user");
    message->set_content("Hi");
    v1::ChatTool* tool = request.mutable_chat()->add_tools();
    tool->set_name("add");
    tool->set_parameters_json(R"({"type":"object","properties":{"a":{"type":"integer"}}})");
    return request;
  }

  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::Inference::Stub> stub_;
};

TEST_F(GrpcApiTest, TextIsCompleted) {
  v1::GenerateRequest request;
  request.set_text("hi<|user|>");
  request.set_return_token_ids(true);
  const Result result = Generate(request);
  ASSERT_TRUE(result.status.ok()) << result.status.error_message();
  EXPECT_EQ(result.text, "I think.</think>Hello there.");
  EXPECT_EQ(result.ids, script()->ids);
  EXPECT_EQ(result.finish.reason(), v1::FINISH_REASON_STOP);
  EXPECT_EQ(result.finish.completion_tokens(), script()->ids.size());
  EXPECT_EQ(LastSeen().prompt_ids, Ids("hi<|user|>"));
  EXPECT_EQ(LastSeen().max_tokens, 4096 - LastSeen().prompt_ids.size())
      << "what is left of the context";
}

TEST_F(GrpcApiTest, IdsAreTakenAsTheyAreAndChecked) {
  v1::GenerateRequest request;
  for (int32_t id : {5, 6, 7}) request.mutable_token_ids()->add_ids(id);
  request.set_max_tokens(3);
  const Result result = Generate(request);
  EXPECT_EQ(result.finish.reason(), v1::FINISH_REASON_LENGTH);
  EXPECT_EQ(LastSeen().prompt_ids, (std::vector<int32_t>{5, 6, 7}));
  request.mutable_token_ids()->add_ids(2048);
  EXPECT_EQ(Generate(request).status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(GrpcApiTest, ChatRequestsAreRenderedAndSplit) {
  v1::GenerateRequest request;
  request.set_chat_request_json(
      R"({"messages":[{"role":"user","content":"Hi"}],"stream":true,"max_tokens":1})");
  request.set_max_tokens(500);
  request.add_stop("there");
  request.mutable_sampling()->set_temperature(0.5);
  request.mutable_sampling()->set_seed(7);
  const Result result = Generate(request);
  ASSERT_TRUE(result.status.ok()) << result.status.error_message();
  EXPECT_EQ(result.reasoning, "I think.");
  EXPECT_EQ(result.text, "Hello ");
  EXPECT_EQ(result.finish.stop_string(), "there");
  EXPECT_EQ(LastSeen().max_tokens, 500u) << "the message's own field wins over that of the JSON";
  EXPECT_EQ(LastSeen().temperature, 0.5f);
  EXPECT_EQ(LastSeen().top_p, 1.0f);
  EXPECT_EQ(LastSeen().seed, 7u);
}

TEST_F(GrpcApiTest, ATypedConversationIsTheSamePromptAsItsJson) {
  v1::GenerateRequest typed = TypedChat();
  v1::Chat* chat = typed.mutable_chat();
  chat->set_reasoning_effort("low");
  chat->mutable_tool_choice()->set_mode(v1::ToolChoice::MODE_AUTO);
  v1::ChatMessage* answer = chat->add_messages();
  answer->set_role("assistant");
  answer->set_content("I add.");
  answer->set_reasoning("hm");
  v1::ToolCall* call = answer->add_tool_calls();
  call->set_id("c1");
  call->set_name("add");
  call->set_arguments_json(R"({"a": 1})");
  v1::ChatMessage* result = chat->add_messages();
  result->set_role("tool");
  result->set_tool_call_id("c1");
  result->set_content("2");
  EXPECT_TRUE(Generate(typed).status.ok());
  const std::vector<int32_t> prompt = LastSeen().prompt_ids;

  v1::GenerateRequest json;
  json.set_chat_request_json(
      R"({"reasoning_effort":"low","tool_choice":"auto","tools":[{"type":"function","function":)"
      R"({"name":"add","parameters":{"type":"object","properties":{"a":{"type":"integer"}}}}}],)"
      R"("messages":[{"role":"user","content":"Hi"},{"role":"assistant","content":"I add.",)"
      R"("reasoning_content":"hm","tool_calls":[{"id":"c1","type":"function","function":)"
      R"({"name":"add","arguments":"{\"a\": 1}"}}]},{"role":"tool","tool_call_id":"c1","content":"2"}]})");
  EXPECT_TRUE(Generate(json).status.ok());
  EXPECT_EQ(LastSeen().prompt_ids, prompt);
}

TEST_F(GrpcApiTest, ToolCallsComeAsDeltasAndMayBeKeptToOne) {
  const std::string call = "<tool_call>add<arg_key>a</arg_key><arg_value>2</arg_value></tool_call>";
  Answer("I add.</think>" + call + call);
  v1::GenerateRequest request = TypedChat();
  const Result both = Generate(request);
  EXPECT_EQ(both.reasoning, "I add.");
  EXPECT_EQ(both.text, "");
  EXPECT_EQ(both.calls, "call_ add {\"a\": 2}call_ add {\"a\": 2}");
  EXPECT_EQ(both.finish.reason(), v1::FINISH_REASON_TOOL_CALLS);
  EXPECT_EQ(both.finish.reasoning_tokens(), Ids("I add.</think>").size());
  request.mutable_chat()->set_single_tool_call(true);
  request.mutable_chat()->set_hide_reasoning(true);
  const Result one = Generate(request);
  EXPECT_EQ(one.reasoning, "");
  EXPECT_EQ(one.calls, "call_ add {\"a\": 2}");
  request.mutable_chat()->mutable_tool_choice()->set_mode(v1::ToolChoice::MODE_REQUIRED);
  request.mutable_chat()->mutable_tool_choice()->add_names("add");
  EXPECT_TRUE(Generate(request).status.ok());
  EXPECT_NE(LastSeen().grammar, "") << "which calls may come is the engine's to keep to";
}

TEST_F(GrpcApiTest, FormsAreCompiledForEveryKindOfPrompt) {
  std::string grammar;
  for (v1::GenerateRequest request : {v1::GenerateRequest(), TypedChat(), v1::GenerateRequest()}) {
    if (!request.has_chat()) {
      if (grammar.empty()) {
        request.set_text("hi");
      } else {
        request.set_chat_request_json(R"({"messages":[{"role":"user","content":"Hi"}]})");
      }
    }
    request.mutable_form()->set_json_schema(R"({"type":"object"})");
    const Result result = Generate(request);
    EXPECT_TRUE(result.status.ok()) << result.status.error_message();
    grammar = LastSeen().grammar;
    EXPECT_NE(grammar, "");
    request.mutable_form()->set_json_schema("{");
    EXPECT_THAT(Generate(request).status.error_message(), HasSubstr("form.json_schema"));
    request.mutable_form()->mutable_choices();
    EXPECT_THAT(Generate(request).status.error_message(), HasSubstr("form.choices"));
  }
}

TEST_F(GrpcApiTest, LogprobsOfPromptAndOutput) {
  v1::GenerateRequest request;
  request.set_text("some text");
  request.set_logprobs(true);
  request.set_top_logprobs(2);
  request.set_prompt_logprobs(1);
  request.set_return_token_ids(true);
  const Result result = Generate(request);
  const std::vector<int32_t> prompt = LastSeen().prompt_ids;
  EXPECT_EQ(result.prompt_ids, prompt);
  EXPECT_EQ(result.ids, script()->ids);
  ASSERT_EQ(result.logprobs.size(), script()->ids.size());
  EXPECT_EQ(result.logprobs[3].id(), script()->ids[3]);
  EXPECT_EQ(result.logprobs[3].logprob(), testing::ScriptedLogprob(3));
  EXPECT_EQ(result.logprobs[3].top_size(), 2);
  ASSERT_EQ(result.prompt_logprobs.size(), prompt.size());
  EXPECT_FALSE(result.prompt_logprobs[0].has_logprob());
  EXPECT_TRUE(result.prompt_logprobs[1].has_logprob());
  EXPECT_EQ(result.prompt_logprobs[1].top_size(), 1);

  v1::GenerateRequest json;
  json.set_chat_request_json(R"({"messages":[{"role":"user","content":"Hi"}],"prompt_logprobs":0,)"
                             R"("return_token_ids":true,"logprobs":true})");
  const Result asked = Generate(json);
  EXPECT_EQ(asked.prompt_ids, LastSeen().prompt_ids) << "what the JSON asks for is answered too";
  EXPECT_EQ(asked.ids, script()->ids);
  EXPECT_EQ(asked.logprobs.size(), script()->ids.size());
  EXPECT_EQ(asked.prompt_logprobs.size(), LastSeen().prompt_ids.size());
}

TEST_F(GrpcApiTest, TheOtherFieldsMeanWhatTheyMeanOverHttp) {
  v1::GenerateRequest request;
  request.set_text("hi");
  request.add_stop_token_ids(script()->ids[4]);
  request.set_request_id("mine");
  request.set_cache_salt("salt");
  request.set_cache_read_only(true);
  request.set_batch(true);
  request.set_ttft_deadline_ms(60000);
  request.set_n(2);
  request.mutable_sampling()->set_min_tokens(2);
  const Result result = Generate(request);
  EXPECT_TRUE(result.status.ok()) << result.status.error_message();
  EXPECT_EQ(result.finish.stop_token_id(), script()->ids[4]);
  EXPECT_EQ(LastSeen().request_id, "mine");
  EXPECT_EQ(LastSeen().cache_salt, "salt");
  EXPECT_TRUE(LastSeen().cache_read_only);
  EXPECT_TRUE(LastSeen().batch);
  EXPECT_EQ(LastSeen().first_token_deadline_ms, 60000u);
  EXPECT_EQ(LastSeen().min_tokens, 2u);
  EXPECT_EQ(engine_->seen().size(), 2u);
  request.set_max_tokens(1);
  EXPECT_THAT(Generate(request).status.error_message(), HasSubstr("min_tokens"));
}

TEST_F(GrpcApiTest, ErrorsNameTheFieldOfTheMessage) {
  const auto message = [this](const v1::GenerateRequest& request) {
    const Result result = Generate(request);
    EXPECT_EQ(result.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    return result.status.error_message();
  };
  v1::GenerateRequest request = TypedChat();
  request.mutable_chat()->mutable_messages(0)->set_role("nobody");
  EXPECT_THAT(message(request), HasSubstr("chat.messages[0]"));
  request = TypedChat();
  request.mutable_chat()->mutable_tools(0)->set_parameters_json("[]");
  EXPECT_THAT(message(request), HasSubstr("chat.tools[0].parameters_json: must be a JSON object"));
  request = TypedChat();
  request.mutable_chat()->mutable_tool_choice()->add_names("sub");
  EXPECT_THAT(message(request), HasSubstr("chat.tool_choice"));
  request = TypedChat();
  request.mutable_chat()->set_reasoning_effort("huge");
  EXPECT_THAT(message(request), HasSubstr("chat.reasoning_effort"));
  request = TypedChat();
  request.add_stop("");
  EXPECT_THAT(message(request), HasSubstr("stop[0]"));
  request = TypedChat();
  request.set_max_tokens(5000);
  EXPECT_EQ(Generate(request).error_code, "context_length_exceeded");
}

TEST_F(GrpcApiTest, ErrorsKeepTheirMeaning) {
  v1::GenerateRequest request;
  EXPECT_EQ(Generate(request).status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  request.set_text("hi");
  request.set_model("other");
  EXPECT_EQ(Generate(request).status.error_code(), grpc::StatusCode::NOT_FOUND);
  request.clear_model();
  request.mutable_sampling()->set_presence_penalty(3);
  const Result outside = Generate(request);
  EXPECT_EQ(outside.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(outside.status.error_message(), HasSubstr("sampling.presence_penalty"));
  request.clear_sampling();
  request.set_max_tokens(5000);
  EXPECT_THAT(Generate(request).status.error_message(), HasSubstr("context length"));
  request.clear_max_tokens();
  script()->refusal = absl::ResourceExhaustedError("full");
  EXPECT_EQ(Generate(request).status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  request.set_chat_request_json("{");
  EXPECT_EQ(Generate(request).status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(GrpcApiTest, ARefusalCarriesWhenToTryAgainAndADeadlineReachesTheEngine) {
  script()->refusal = absl::ResourceExhaustedError("full");
  script()->retry_after_ms = 7000;
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(50));
  context.AddMetadata("authorization", "Bearer secret");
  v1::GenerateRequest request;
  request.set_text("hi");
  auto reader = stub_->Generate(&context, request);
  v1::GenerateResponse response;
  EXPECT_FALSE(reader->Read(&response));
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  const auto& trailing = context.GetServerTrailingMetadata();
  const auto retry_after = trailing.find("retry-after");
  ASSERT_NE(retry_after, trailing.end());
  EXPECT_EQ(std::string(retry_after->second.data(), retry_after->second.size()), "7");
  EXPECT_GT(LastSeen().total_deadline_ms, 20000u);
  // On the wire a deadline is rounded up to two or three digits.
  EXPECT_LE(LastSeen().total_deadline_ms, 51000u);
  EXPECT_NE(LastSeen().fair_key, 0u);
  script()->refusal = absl::OkStatus();
  script()->retry_after_ms = 0;
  Generate(request);
  EXPECT_EQ(LastSeen().total_deadline_ms, 0u) << "without one";
}

TEST_F(GrpcApiTest, CancellingTheCallCancelsTheSequence) {
  script()->hold_at = 2;
  grpc::ClientContext context;
  v1::GenerateRequest request;
  request.set_text("hi");
  auto reader = stub_->Generate(&context, request);
  v1::GenerateResponse response;
  ASSERT_TRUE(reader->Read(&response));
  context.TryCancel();
  EXPECT_TRUE(engine_->WaitFor([](const auto& seen) { return seen.at(0).cancelled; }));
}

TEST_F(GrpcApiTest, ADeadlineThatPassesCancelsTheSequence) {
  script()->hold_at = 2;
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(300));
  v1::GenerateRequest request;
  request.set_text("hi");
  auto reader = stub_->Generate(&context, request);
  v1::GenerateResponse response;
  while (reader->Read(&response)) {
  }
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_TRUE(engine_->WaitFor([](const auto& seen) { return seen.at(0).cancelled; }));
}

TEST_F(GrpcApiTest, TheModelIsDescribed) {
  grpc::ClientContext context;
  v1::GetModelResponse response;
  ASSERT_TRUE(stub_->GetModel(&context, {}, &response).ok());
  EXPECT_EQ(response.id(), "m");
  EXPECT_EQ(response.max_model_len(), 4096u);
  EXPECT_EQ(response.vocab_size(), 2048u);
}

}  // namespace
}  // namespace quartet::gateway
