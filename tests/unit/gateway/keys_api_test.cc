// API keys, ids and cross-origin headers as a client of the whole gateway sees them.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "proto/quartet/v1/inference.grpc.pb.h"
#include "services/gateway/access/api_keys.h"
#include "services/gateway/edge.h"
#include "tests/unit/gateway/gateway_fixture.h"

namespace quartet::gateway {
namespace {

using testing::At;
using testing::Fetch;
using testing::GetText;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::PostText;
using testing::RawClient;
using testing::RawReply;
using ::testing::StartsWith;

constexpr char kKey[] = "key-of-ann-0123456789";
constexpr char kBearer[] = "Authorization: Bearer key-of-ann-0123456789\r\n";
constexpr char kApiKey[] = "X-Api-Key: key-of-ann-0123456789\r\n";
constexpr char kWrong[] = "Authorization: Bearer key-of-eve-0123456789\r\n";

class KeysApiTest : public GatewayTest {
 protected:
  KeysApiTest() {
    file_ = absl::StrCat(::testing::TempDir(), "/keys-",
                         ::testing::UnitTest::GetInstance()->current_test_info()->name());
    std::ofstream(file_) << *MakeApiKeyLine("ann", kKey) << "\n";
    config_.api_key_file = file_;
    config_.listen_grpc = "127.0.0.1:0";
  }
  ~KeysApiTest() override { std::remove(file_.c_str()); }

  RawReply ChatWith(const std::string& headers, const std::string& fields = "") {
    return Fetch(address_, PostText("/v1/chat/completions", ChatBody(fields), headers));
  }

  std::string file_;
};

TEST_F(KeysApiTest, BothHeadersCarryAKey) {
  Start();
  EXPECT_EQ(ChatWith(kBearer).status, 200);
  const std::string salt = LastSeen().cache_salt;
  EXPECT_NE(salt, "");
  EXPECT_EQ(ChatWith(kApiKey).status, 200);
  EXPECT_EQ(LastSeen().cache_salt, salt) << "the same key, the same caller";
  EXPECT_EQ(Fetch(address_, GetText("/v1/models", kBearer)).status, 200);
}

TEST_F(KeysApiTest, WithoutAKeyTheAnswerIs401AndTheEngineHearsNothing) {
  Start();
  for (const char* headers : {"", kWrong, "Authorization: Basic YW5uOg==\r\n"}) {
    const RawReply reply = ChatWith(headers);
    EXPECT_EQ(reply.status, 401) << headers;
    EXPECT_EQ(At(reply.body, "error.type"), "invalid_request_error");
    EXPECT_EQ(At(reply.body, "error.code"), "invalid_api_key");
    EXPECT_EQ(reply.headers.at("www-authenticate"), "Bearer");
    EXPECT_THAT(reply.headers.at("x-request-id"), StartsWith("req_"));
    EXPECT_THAT(reply.body, Not(HasSubstr("eve")));
  }
  EXPECT_TRUE(engine_->seen().empty());
  EXPECT_EQ(Get("/v1/models").status, 401);
  EXPECT_EQ(Get("/v1/models/m").status, 401);
}

TEST_F(KeysApiTest, ARequestWithoutAKeyIsRefusedBeforeItsBody) {
  Start();
  RawClient client(address_);
  client.Send("POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n");
  EXPECT_EQ(client.ReadReply().status, 401);
}

TEST_F(KeysApiTest, ProbesAndMetricsAskForNoKey) {
  Start();
  for (const char* path : {"/livez", "/readyz", "/health", "/metrics"}) {
    EXPECT_EQ(Get(path).status, 200) << path;
  }
  for (const HttpRoute& route : GatewayRoutes(nullptr)) {
    EXPECT_FALSE(route.method == "POST" && IsOpenPath(route.path)) << route.path;
  }
}

TEST_F(KeysApiTest, RequestsAtATimeAreLimitedAndFreeWhenTheyEnd) {
  config_.key_limits = {.requests = 1};
  script()->hold_at = 1;
  Start();
  RawClient open(address_);
  open.Send(PostText("/v1/chat/completions", ChatBody(R"("stream":true)"), kBearer));
  EXPECT_EQ(open.ReadHead().status, 200);
  const RawReply refused = ChatWith(kBearer);
  EXPECT_EQ(refused.status, 429);
  EXPECT_EQ(At(refused.body, "error.type"), "rate_limit_error");
  EXPECT_THAT(At(refused.body, "error.message"), HasSubstr("1 requests at a time"));
  EXPECT_EQ(refused.headers.at("retry-after"), "1");
  EXPECT_EQ(Fetch(address_, GetText("/v1/models", kBearer)).status, 200)
      << "what is only looked up does not count";
  engine_->Release();
  while (!open.ReadEvent().empty()) {
  }
  EXPECT_EQ(ChatWith(kBearer).status, 200);
  EXPECT_EQ(ChatWith(kBearer).status, 200) << "a whole answer that has come is over";
}

TEST_F(KeysApiTest, ARequestOfAMinuteThatIsTooManyIsToldWhenToComeBack) {
  config_.key_limits = {.requests_per_minute = 2};
  Start();
  EXPECT_EQ(ChatWith(kBearer).status, 200);
  EXPECT_EQ(ChatWith(kBearer).status, 200);
  const RawReply reply = ChatWith(kBearer);
  EXPECT_EQ(reply.status, 429);
  EXPECT_EQ(At(reply.body, "error.code"), "rate_limit_exceeded");
  int seconds = 0;
  ASSERT_TRUE(absl::SimpleAtoi(reply.headers.at("retry-after"), &seconds));
  EXPECT_GE(seconds, 1);
  EXPECT_LE(seconds, 30);
}

TEST_F(KeysApiTest, TokensOfPromptsAndAnswersCount) {
  config_.key_limits = {.tokens_per_minute = 10};
  Start();
  EXPECT_EQ(ChatWith(kBearer).status, 200);
  const RawReply reply = ChatWith(kBearer);
  EXPECT_EQ(reply.status, 429);
  EXPECT_THAT(At(reply.body, "error.message"), HasSubstr("10 tokens in a minute"));
}

TEST_F(KeysApiTest, TokensAtATimeAreThoseThatRequestsMayNeed) {
  config_.key_limits = {.tokens = 200};
  script()->hold_at = 1;
  Start();
  RawClient open(address_);
  open.Send(
      PostText("/v1/chat/completions", ChatBody(R"("stream":true,"max_tokens":150)"), kBearer));
  EXPECT_EQ(open.ReadHead().status, 200);
  const RawReply refused = ChatWith(kBearer, R"("max_tokens":150)");
  EXPECT_EQ(refused.status, 429);
  EXPECT_EQ(At(refused.body, "error.type"), "rate_limit_error");
  EXPECT_EQ(At(refused.body, "error.code"), "rate_limit_exceeded");
  EXPECT_THAT(At(refused.body, "error.message"), HasSubstr("200 tokens of requests at a time"));
  EXPECT_EQ(refused.headers.at("retry-after"), "1");
  EXPECT_EQ(engine_->seen().size(), 1u) << "the engine hears nothing of it";
  const RawReply message =
      Fetch(address_,
            PostText("/v1/messages",
                     R"({"max_tokens":150,"messages":[{"role":"user","content":"Hi"}]})", kApiKey));
  EXPECT_EQ(message.status, 429);
  EXPECT_EQ(At(message.body, "error.type"), "rate_limit_error");
  engine_->Release();
  while (!open.ReadEvent().empty()) {
  }
  EXPECT_EQ(ChatWith(kBearer, R"("max_tokens":150)").status, 200);
  EXPECT_EQ(ChatWith(kBearer).status, 200) << "alone it may need the whole context";
}

TEST_F(KeysApiTest, WhoGoesAwayGivesBackWhatTheRequestHeld) {
  config_.key_limits = {.tokens = 200};
  script()->hold_at = 1;
  Start();
  {
    RawClient gone(address_);
    gone.Send(PostText("/v1/chat/completions", ChatBody(R"("stream":true)"), kBearer));
    EXPECT_EQ(gone.ReadHead().status, 200);
  }
  EXPECT_TRUE(engine_->WaitFor([](const auto& seen) { return seen.at(0).cancelled; }));
  engine_->Release();
  while (ChatWith(kBearer, R"("max_tokens":150)").status != 200) {
  }
}

TEST_F(KeysApiTest, TheFileIsReadAgainWhenItChanges) {
  config_.key_file_interval = absl::Milliseconds(5);
  Start();
  constexpr char kBob[] = "Authorization: Bearer key-of-bob-0123456789\r\n";
  EXPECT_EQ(ChatWith(kBob).status, 401);
  std::ofstream(file_) << "no key at all\n";
  const std::string next = file_ + ".next";
  std::ofstream(next) << *MakeApiKeyLine("bob", "key-of-bob-0123456789") << "\n";
  EXPECT_EQ(ChatWith(kBearer).status, 200) << "a file that is wrong changes nothing";
  ASSERT_EQ(std::rename(next.c_str(), file_.c_str()), 0);
  while (ChatWith(kBob).status != 200) {
  }
  EXPECT_EQ(ChatWith(kBearer).status, 401);
}

TEST_F(KeysApiTest, GrpcTakesTheSameKeys) {
  config_.key_limits = {.requests_per_minute = 1};
  Start();
  auto stub = v1::Inference::NewStub(
      grpc::CreateChannel(gateway_->grpc_address(), grpc::InsecureChannelCredentials()));
  const auto generate = [&](const std::string& authorization) {
    grpc::ClientContext context;
    if (!authorization.empty()) context.AddMetadata("authorization", authorization);
    v1::GenerateRequest request;
    request.set_text("hi");
    auto reader = stub->Generate(&context, request);
    v1::GenerateResponse response;
    while (reader->Read(&response)) {
    }
    return reader->Finish();
  };
  const auto model = [&](const std::string& authorization) {
    grpc::ClientContext context;
    if (!authorization.empty()) context.AddMetadata("authorization", authorization);
    v1::GetModelResponse response;
    return stub->GetModel(&context, {}, &response);
  };
  const std::string right = absl::StrCat("Bearer ", kKey);
  EXPECT_EQ(generate("").error_code(), grpc::StatusCode::UNAUTHENTICATED);
  const grpc::Status wrong = generate("Bearer key-of-eve-0123456789");
  EXPECT_EQ(wrong.error_code(), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_THAT(wrong.error_message(), Not(HasSubstr("eve")));
  EXPECT_EQ(model("").error_code(), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_TRUE(engine_->seen().empty());
  EXPECT_TRUE(model(right).ok());
  EXPECT_TRUE(generate(right).ok());
  EXPECT_EQ(generate(right).error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
}

TEST_F(KeysApiTest, GrpcRequestsHoldTokensToo) {
  config_.key_limits = {.tokens = 200};
  script()->hold_at = 1;
  Start();
  auto stub = v1::Inference::NewStub(
      grpc::CreateChannel(gateway_->grpc_address(), grpc::InsecureChannelCredentials()));
  v1::GenerateRequest request;
  request.set_text("hi");
  request.set_max_tokens(150);
  const std::string right = absl::StrCat("Bearer ", kKey);
  grpc::ClientContext first;
  first.AddMetadata("authorization", right);
  auto open = stub->Generate(&first, request);
  v1::GenerateResponse response;
  ASSERT_TRUE(open->Read(&response));
  grpc::ClientContext second;
  second.AddMetadata("authorization", right);
  auto refused = stub->Generate(&second, request);
  EXPECT_FALSE(refused->Read(&response));
  EXPECT_EQ(refused->Finish().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(second.GetServerTrailingMetadata().count("retry-after"), 1u);
  engine_->Release();
  while (open->Read(&response)) {
  }
  EXPECT_TRUE(open->Finish().ok());
}

TEST_F(KeysApiTest, AFileThatIsWrongKeepsTheGatewayFromStarting) {
  std::ofstream(file_) << kKey << "\n";
  const auto gateway = StartGateway(config_, nullptr);
  ASSERT_FALSE(gateway.ok());
  EXPECT_THAT(
      std::string(gateway.status().message()),
      ::testing::AllOf(HasSubstr("--api-key-file: "), HasSubstr("line 1"), Not(HasSubstr(kKey))));
}

TEST(RefusalReply, HasTheShapeOfTheClientsApi) {
  const KeyRefusal wrong{.reason = KeyRefusal::Reason::kWrongKey, .message = "no"};
  const HttpReply messages = RefusalReply({.path = "/v1/messages/count_tokens"}, wrong);
  EXPECT_EQ(messages.status, 401);
  EXPECT_EQ(messages.body,
            R"({"type":"error","error":{"type":"authentication_error","message":"no"}})");
  const HttpReply limit =
      RefusalReply({.path = "/v1/messages"}, {.reason = KeyRefusal::Reason::kLimit,
                                              .message = "much",
                                              .retry_after = absl::Milliseconds(2001)});
  EXPECT_EQ(limit.status, 429);
  EXPECT_EQ(At(limit.body, "error.type"), "rate_limit_error");
  EXPECT_EQ(limit.headers.front(), (std::pair<std::string, std::string>("Retry-After", "3")))
      << "a moment too early would be refused again";
  EXPECT_EQ(At(RefusalReply({.path = "/v1/messagesx"}, wrong).body, "error.code"),
            "invalid_api_key");
  // A path that both APIs have.
  HttpRequest models{.path = "/v1/models"};
  EXPECT_EQ(At(RefusalReply(models, wrong).body, "error.code"), "invalid_api_key");
  models.anthropic_version = "2023-06-01";
  EXPECT_EQ(RefusalReply(models, wrong).body, messages.body);
}

class EdgeTest : public GatewayTest {};

TEST_F(EdgeTest, EveryAnswerHasTheRequestsId) {
  Start();
  const auto id = [](const RawReply& reply) {
    const auto found = reply.headers.find("x-request-id");
    return found == reply.headers.end() ? "none" : found->second;
  };
  const std::string mine = "X-Request-Id: mine-1\r\n";
  for (const std::string& request :
       {GetText("/livez", mine), GetText("/nowhere", mine), GetText("/v1/completions", mine),
        PostText("/v1/chat/completions", ChatBody(""), mine),
        PostText("/v1/chat/completions", ChatBody("\"stream\":true"), mine),
        PostText("/v1/chat/completions", "{", mine),
        PostText("/v1/chat/completions", ChatBody("\"request_id\":\"mine-1\""))}) {
    EXPECT_EQ(id(Fetch(address_, request)), "mine-1") << request;
  }
  for (const std::string& request :
       {GetText("/livez"), PostText("/v1/chat/completions", "{"),
        GetText("/livez", "X-Request-Id: two words\r\n"), std::string("garbage\r\n\r\n")}) {
    EXPECT_THAT(id(Fetch(address_, request)), StartsWith("req_")) << request;
  }
}

TEST_F(EdgeTest, AFailedRequestIsAnsweredWithTheIdThatTheLogHas) {
  script()->refusal = absl::ResourceExhaustedError("full");
  Start();
  const RawReply reply = Chat();
  EXPECT_EQ(reply.status, 429);
  EXPECT_EQ(reply.headers.at("x-request-id"), LastSeen().request_id);
}

}  // namespace
}  // namespace quartet::gateway
