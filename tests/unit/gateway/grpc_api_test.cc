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
    v1::GenerateResponse::Finish finish;
  };
  Result Generate(const v1::GenerateRequest& request) {
    Result result;
    grpc::ClientContext context;
    auto reader = stub_->Generate(&context, request);
    v1::GenerateResponse response;
    while (reader->Read(&response)) {
      result.text += response.text();
      result.reasoning += response.reasoning();
      result.ids.insert(result.ids.end(), response.token_ids().begin(), response.token_ids().end());
      if (response.has_finish()) result.finish = response.finish();
    }
    result.status = reader->Finish();
    return result;
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
