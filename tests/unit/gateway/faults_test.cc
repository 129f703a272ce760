// The engine refuses, fails, goes away and comes back; the gateway starts and stops.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tests/unit/gateway/gateway_fixture.h"

namespace quartet::gateway {
namespace {

using testing::At;
using ::testing::HasSubstr;
using testing::PostText;
using testing::RawClient;
using testing::RawReply;

class FaultsTest : public GatewayTest {
 protected:
  // Asks until /readyz answers `status`.
  bool AwaitReadyz(int status) {
    const absl::Time end = absl::Now() + absl::Seconds(20);
    while (absl::Now() < end) {
      if (Get("/readyz").status == status) return true;
    }
    return false;
  }
};

TEST_F(FaultsTest, BeforeTheModelIsLoadedRequestsAreToldToComeBack) {
  StartEngine();
  StartGatewayOnly();
  EXPECT_EQ(Get("/livez").status, 200);
  const RawReply ready = Get("/readyz");
  EXPECT_EQ(ready.status, 503);
  EXPECT_THAT(At(ready.body, "reason"), HasSubstr("tokenizer"));
  const RawReply reply = Chat();
  EXPECT_EQ(reply.status, 503);
  EXPECT_EQ(At(reply.body, "error.type"), "unavailable_error");
  EXPECT_EQ(reply.headers.at("retry-after"), "2");
}

TEST_F(FaultsTest, AModelFolderThatIsNotThereIsAnErrorThatNamesIt) {
  StartEngine();
  config_.model_dir = "/nowhere/model";
  StartGatewayOnly();
  const absl::Status status = gateway_->LoadModel();
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(std::string(status.message()), HasSubstr("/nowhere/model"));
}

TEST_F(FaultsTest, AnEngineThatIsNotReadyMakesTheGatewayNotReady) {
  Start();
  engine_->SetReady(false, "2 of 4 ranks are missing");
  ASSERT_TRUE(AwaitReadyz(503));
  EXPECT_THAT(At(Get("/readyz").body, "reason"), HasSubstr("2 of 4 ranks are missing"));
  EXPECT_EQ(Chat().status, 503);
  engine_->SetReady(true);
  ASSERT_TRUE(AwaitReadyz(200));
  EXPECT_EQ(Chat().status, 200);
}

TEST_F(FaultsTest, WhatTheEngineRefusesKeepsItsMeaning) {
  Start();
  script()->refusal = absl::ResourceExhaustedError("64 requests wait");
  EXPECT_EQ(Chat().status, 429);
  script()->refusal = absl::UnavailableError("draining");
  EXPECT_EQ(Chat().status, 503);
  script()->refusal = absl::InvalidArgumentError("prompt_ids[3] is 9999");
  const RawReply reply = Chat();
  EXPECT_EQ(reply.status, 400);
  EXPECT_THAT(At(reply.body, "error.message"), HasSubstr("prompt_ids[3]"));
  script()->refusal = absl::InternalError("secret detail");
  const RawReply internal = Chat();
  EXPECT_EQ(internal.status, 500);
  EXPECT_THAT(internal.body, ::testing::Not(HasSubstr("secret")));
}

TEST_F(FaultsTest, ARefusalCarriesTheEnginesRetryAfterInWholeSeconds) {
  script()->refusal = absl::ResourceExhaustedError("4 requests wait");
  Start();
  EXPECT_EQ(Chat().headers.at("retry-after"), "1") << "the engine did not say";
  script()->retry_after_ms = 12001;
  const RawReply reply = Chat();
  EXPECT_EQ(reply.status, 429);
  EXPECT_EQ(reply.headers.at("retry-after"), "13");
  EXPECT_EQ(Chat(R"("stream":true)").headers.at("retry-after"), "13");
}

TEST_F(FaultsTest, ADeadlineThatPassesIs504OrAnErrorEvent) {
  script()->refusal = absl::DeadlineExceededError("its deadline of 50 ms passed after 0 tokens");
  Start();
  const RawReply reply = Chat();
  EXPECT_EQ(reply.status, 504);
  EXPECT_EQ(At(reply.body, "error.type"), "timeout");
  EXPECT_THAT(At(reply.body, "error.message"), HasSubstr("after 0 tokens"));
  script()->refusal = absl::OkStatus();
  script()->fail_at = 2;
  script()->failure = absl::DeadlineExceededError("its deadline of 50 ms passed after 2 tokens");
  const auto events = Events(Chat(R"("stream":true)"));
  EXPECT_EQ(events.back(), "[DONE]");
  EXPECT_THAT(At(events[events.size() - 2], "error.message"), HasSubstr("after 2 tokens"));
}

TEST_F(FaultsTest, DeadlinesKeyAndClassReachTheEngine) {
  Start();
  const auto post = [this](const std::string& fields, const std::string& headers) {
    testing::Fetch(address_, PostText("/v1/chat/completions", ChatBody(fields), headers));
    return LastSeen();
  };
  testing::SeenSequence seen = post("", "");
  EXPECT_EQ(seen.total_deadline_ms, 0u);
  EXPECT_EQ(seen.first_token_deadline_ms, 0u);
  EXPECT_EQ(seen.fair_key, 0u);
  EXPECT_FALSE(seen.batch);
  seen = post(R"("ttft_deadline_ms":700,"service_tier":"flex","user":"ann")",
              "X-Request-Deadline-Ms: 60000\r\n");
  EXPECT_EQ(seen.first_token_deadline_ms, 700u);
  EXPECT_LE(seen.total_deadline_ms, 60000u);
  EXPECT_GT(seen.total_deadline_ms, 30000u) << "what the gateway needed is taken off";
  EXPECT_TRUE(seen.batch);
  const uint64_t ann = seen.fair_key;
  EXPECT_NE(ann, 0u);
  const uint64_t key = post(R"("user":"ann")", "Authorization: Bearer secret\r\n").fair_key;
  EXPECT_NE(key, ann);
  EXPECT_EQ(post(R"("user":"bob")", "Authorization: Bearer secret\r\n").fair_key, key);
  const std::string salt = post("\"user\":\"ann\"", "Authorization: Bearer secret\r\n").cache_salt;
  EXPECT_NE(salt, "");
  EXPECT_NE(post("\"user\":\"ann\"", "Authorization: Bearer other\r\n").cache_salt, salt);
  EXPECT_EQ(post("\"user\":\"ann\"", "").cache_salt, "");
  EXPECT_EQ(post(R"("cache_salt":"s")", "Authorization: Bearer secret\r\n").cache_salt, "s");
}

TEST_F(FaultsTest, ADeadlineThatIsNoNumberIsRefused) {
  Start();
  for (const char* value : {"0", "-5", "1.5", "soon", "99999999999999"}) {
    const RawReply reply =
        testing::Fetch(address_, PostText("/v1/chat/completions", ChatBody(""),
                                          absl::StrCat("X-Request-Deadline-Ms: ", value, "\r\n")));
    EXPECT_EQ(reply.status, 400) << value;
    EXPECT_THAT(At(reply.body, "error.message"), HasSubstr(value));
  }
}

TEST_F(FaultsTest, AWorkerThatIsLostGivesOpenRequestsA500) {
  script()->fail_at = 2;
  Start();
  const RawReply reply = Chat();
  EXPECT_EQ(reply.status, 500);
  EXPECT_EQ(At(reply.body, "error.type"), "server_error");
}

TEST_F(FaultsTest, OneLostSequenceEndsTheWholeRequest) {
  script()->fail_at = 2;
  Start();
  const RawReply reply = Post("/v1/completions", R"({"prompt":["a","b","c"],"stream":true})");
  const auto events = Events(reply);
  int errors = 0;
  for (const std::string& event : events)
    errors += At(event, "error.message") == "<none>" || event == "[DONE]" ? 0 : 1;
  EXPECT_EQ(errors, 1);
  EXPECT_EQ(events.back(), "[DONE]");
}

TEST_F(FaultsTest, AnEngineThatGoesAwayIsFoundAgain) {
  script()->hold_at = 2;
  Start();
  const int port = std::stoi(engine_->address().substr(engine_->address().rfind(':') + 1));
  RawClient streaming(address_), waiting(address_);
  streaming.Send(PostText("/v1/chat/completions", ChatBody(R"("stream":true)")));
  waiting.Send(PostText("/v1/chat/completions", ChatBody("")));
  ASSERT_TRUE(engine_->WaitFor([](const auto& seen) {
    return seen.size() == 2 && seen[0].tokens_sent == 2 && seen[1].tokens_sent == 2;
  }));
  // The first text shows that the gateway has the tokens.
  ASSERT_EQ(streaming.ReadHead().status, 200);
  ASSERT_THAT(streaming.ReadEvent(), HasSubstr("assistant"));
  engine_.reset();
  std::string event, last;
  while ((event = streaming.ReadEvent()) != "") {
    if (event == "data: [DONE]") break;
    last = event;
  }
  EXPECT_EQ(event, "data: [DONE]");
  EXPECT_THAT(last, HasSubstr("\"error\""));
  EXPECT_EQ(waiting.ReadReply().status, 500);
  ASSERT_TRUE(AwaitReadyz(503));
  EXPECT_EQ(Chat().status, 503);

  script()->hold_at.reset();
  StartEngine(port);
  ASSERT_TRUE(AwaitReadyz(200));
  EXPECT_EQ(Chat().status, 200);
}

TEST_F(FaultsTest, DrainingLetsOpenAnswersFinish) {
  script()->hold_at = 2;
  Start();
  RawClient client(address_);
  client.Send(PostText("/v1/chat/completions", ChatBody(R"("stream":true)")));
  ASSERT_TRUE(
      engine_->WaitFor([](const auto& seen) { return !seen.empty() && seen[0].tokens_sent == 2; }));
  std::thread drain([this] { gateway_->Drain(absl::Seconds(20), absl::Seconds(5)); });
  while (gateway_->NotReadyReason().empty()) std::this_thread::yield();
  engine_->Release();
  const auto events = Events(client.ReadReply());
  EXPECT_EQ(At(events[events.size() - 2], "choices.0.finish_reason"), "stop");
  drain.join();
}

TEST_F(FaultsTest, DrainingEndsWhatDoesNotFinish) {
  script()->hold_at = 2;
  Start();
  RawClient client(address_);
  client.Send(PostText("/v1/chat/completions", ChatBody(R"("stream":true)")));
  ASSERT_TRUE(
      engine_->WaitFor([](const auto& seen) { return !seen.empty() && seen[0].tokens_sent == 2; }));
  gateway_->Drain(absl::Milliseconds(50), absl::Seconds(5));
  const auto events = Events(client.ReadReply());
  EXPECT_EQ(events.back(), "[DONE]");
  EXPECT_THAT(events[events.size() - 2], HasSubstr("\"error\""));
  EXPECT_TRUE(engine_->WaitFor([](const auto& seen) { return seen[0].cancelled; }));
}

TEST_F(FaultsTest, TheAdminPortSaysTheSame) {
  config_.listen_admin = "127.0.0.1:0";
  Start();
  const std::string admin = gateway_->admin_address();
  EXPECT_EQ(testing::Fetch(admin, testing::GetText("/readyz")).status, 200);
  EXPECT_THAT(testing::Fetch(admin, testing::GetText("/metrics")).body,
              HasSubstr("quartet_gateway_ready 1"));
  engine_.reset();
  ASSERT_TRUE(AwaitReadyz(503));
  EXPECT_EQ(testing::Fetch(admin, testing::GetText("/readyz")).status, 503);
}

}  // namespace
}  // namespace quartet::gateway
