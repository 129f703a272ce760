#include "services/gateway/http/http_server.h"

#include <gtest/gtest.h>

#include <condition_variable>
#include <mutex>

#include "absl/strings/str_cat.h"
#include "services/gateway/http/sse.h"
#include "tests/unit/gateway/raw_client.h"

namespace quartet::gateway {
namespace {

using std::chrono::milliseconds;
using testing::Fetch;
using testing::GetText;
using testing::PostText;
using testing::RawClient;
using testing::RawReply;

// Something that happens in another thread.
class Event {
 public:
  void Set() {
    std::lock_guard lock(mutex_);
    set_ = true;
    changed_.notify_all();
  }
  bool Wait() {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(20), [this] { return set_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool set_ = false;
};

class HttpServerTest : public ::testing::Test {
 protected:
  void Start(HttpServerOptions options = {}) {
    options.error_body = [](const HttpRequest&, int status, const std::string& message) {
      return absl::StrCat("{\"status\":", status, ",\"message\":\"", message, "\"}");
    };
    options.on_access = [this](const HttpAccess& access) {
      std::lock_guard lock(mutex_);
      accesses_.push_back(access);
      changed_.notify_all();
    };
    auto server = StartHttpServer(
        std::move(options),
        {{.method = "POST",
          .path = "/echo",
          .handler = [](auto call) { call->Reply({.body = call->TakeBody()}); },
          .json_body = true},
         {.method = "GET",
          .path = "/hello",
          .handler = [](auto call) { call->Reply({.body = "hello"}); }},
         {.method = "GET",
          .path = "/item/",
          .handler = [](auto call) { call->Reply({.body = call->request().path}); }},
         {.method = "GET", .path = "/held", .handler = [this](auto call) { Hold(call, false); }},
         {.method = "GET", .path = "/stream", .handler = [this](auto call) { Hold(call, true); }}});
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    address_ = server_->address();
  }

  void Hold(std::shared_ptr<HttpCall> call, bool stream) {
    call->Watch([this] { closed_.Set(); }, [this] { drained_.Set(); });
    if (stream) call->StartStream(SseHead());
    std::lock_guard lock(mutex_);
    held_ = std::move(call);
    changed_.notify_all();
  }

  std::shared_ptr<HttpCall> Held() {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::seconds(20), [this] { return held_ != nullptr; });
    return held_;
  }

  HttpAccess Access(size_t index) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::seconds(20), [&] { return accesses_.size() > index; });
    return accesses_.size() > index ? accesses_[index] : HttpAccess{};
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::shared_ptr<HttpCall> held_;
  std::vector<HttpAccess> accesses_;
  Event closed_;
  Event drained_;
  std::string address_;
  std::unique_ptr<HttpServer> server_;  // last: its threads use the rest
};

TEST_F(HttpServerTest, KeepsAConnectionForManyRequests) {
  Start();
  RawClient client(address_);
  for (int i = 0; i < 3; ++i) {
    client.Send(PostText("/echo", absl::StrCat("{\"i\":", i, "}")));
    const RawReply reply = client.ReadReply();
    EXPECT_EQ(reply.status, 200);
    EXPECT_EQ(reply.body, absl::StrCat("{\"i\":", i, "}"));
  }
  EXPECT_EQ(server_->connections(), 1u);
}

TEST_F(HttpServerTest, AnswersPipelinedRequestsInOrder) {
  Start();
  RawClient client(address_);
  client.Send(GetText("/item/1") + GetText("/item/2") + GetText("/item/3"));
  for (const char* path : {"/item/1", "/item/2", "/item/3"})
    EXPECT_EQ(client.ReadReply().body, path);
}

TEST_F(HttpServerTest, GarbageAfterARequestIsRefusedAfterItsAnswer) {
  Start();
  RawClient client(address_);
  client.Send(GetText("/hello") + "\x01\x02 garbage\r\n\r\n");
  EXPECT_EQ(client.ReadReply().body, "hello");
  const RawReply refused = client.ReadReply();
  EXPECT_EQ(refused.status, 400);
  EXPECT_EQ(refused.headers.at("connection"), "close");
  EXPECT_TRUE(client.AtEnd());
  EXPECT_EQ(Fetch(address_, GetText("/hello")).status, 200) << "the server goes on";
}

TEST_F(HttpServerTest, RefusesByPathMethodAndContent) {
  Start();
  EXPECT_EQ(Fetch(address_, GetText("/nowhere")).status, 404);
  EXPECT_EQ(Fetch(address_, GetText("/item/a/b")).status, 404);
  const RawReply method = Fetch(address_, GetText("/echo"));
  EXPECT_EQ(method.status, 405);
  EXPECT_EQ(method.headers.at("allow"), "POST");
  EXPECT_EQ(Fetch(address_, "DELETE /hello HTTP/1.1\r\n\r\n").headers.at("allow"), "GET, HEAD");
  EXPECT_EQ(Fetch(address_,
                  "POST /echo HTTP/1.1\r\nContent-Type: text/plain\r\nContent-Length: 2\r\n\r\n{}")
                .status,
            415);
  EXPECT_EQ(Fetch(address_, PostText("/echo", "{}", "Content-Encoding: gzip\r\n")).status, 415);
  EXPECT_EQ(Fetch(address_, "POST /echo HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}").status, 200)
      << "no type is fine";
  EXPECT_EQ(Fetch(address_,
                  "POST /echo HTTP/1.1\r\nContent-Type: Application/JSON; "
                  "charset=utf-8\r\nContent-Length: 2\r\n\r\n{}")
                .status,
            200);
}

TEST_F(HttpServerTest, PagesOfKnownOriginsMayAskAndRead) {
  Start({.cors_origins = {"https://a.example"}});
  const std::string origin = "Origin: https://a.example\r\n";
  const std::string ask = "Access-Control-Request-Method: POST\r\n";
  const auto options = [&](const std::string& path, const std::string& headers) {
    return Fetch(address_, "OPTIONS " + path + " HTTP/1.1\r\n" + headers + "\r\n");
  };
  const RawReply preflight = options("/echo", origin + ask);
  EXPECT_EQ(preflight.status, 200);
  EXPECT_EQ(preflight.body, "");
  EXPECT_EQ(preflight.headers.at("access-control-allow-origin"), "https://a.example");
  EXPECT_EQ(preflight.headers.at("access-control-allow-methods"), "POST");
  EXPECT_EQ(options("/nowhere", origin + ask).status, 404);
  EXPECT_EQ(options("/echo", origin).status, 405) << "not a preflight";
  EXPECT_EQ(options("/echo", ask + "Origin: https://b.example\r\n").status, 405);
  for (const std::string& request :
       {PostText("/echo", "{}", origin), GetText("/nowhere", origin)}) {
    EXPECT_EQ(Fetch(address_, request).headers.at("access-control-allow-origin"),
              "https://a.example");
  }
  EXPECT_EQ(Fetch(address_, GetText("/hello")).headers.count("access-control-allow-origin"), 0u);
}

TEST_F(HttpServerTest, WithoutOriginsThereIsNoCrossOriginAccess) {
  Start();
  const std::string headers =
      "Origin: https://a.example\r\nAccess-Control-Request-Method: POST\r\n";
  const RawReply reply = Fetch(address_, "OPTIONS /echo HTTP/1.1\r\n" + headers + "\r\n");
  EXPECT_EQ(reply.status, 405);
  EXPECT_EQ(reply.headers.count("access-control-allow-origin"), 0u);
}

TEST_F(HttpServerTest, ARequestThatIsNotAdmittedIsAnsweredBeforeItsBody) {
  int leases = 0;  // of the connection's thread
  Start({.admit = [&](const HttpRequest& request, const HttpRoute& route) {
    HttpAdmission admission;
    if (request.authorization != "Bearer yes") {
      admission.refusal = HttpReply{.status = 401, .body = "no"};
      return admission;
    }
    ++leases;
    admission.lease = std::shared_ptr<void>(nullptr, [&](void*) { --leases; });
    admission.caller = "ann";
    return admission;
  }});
  RawClient refused(address_);
  refused.Send("POST /echo HTTP/1.1\r\nContent-Length: 1000000\r\n\r\n");
  EXPECT_EQ(refused.ReadReply().body, "no");
  EXPECT_EQ(Access(0).status, 401);

  RawClient client(address_);
  for (const char* header : {"Authorization: Bearer yes\r\n", "X-Api-Key: yes\r\n"}) {
    client.Send(PostText("/echo", "{}", header));
    EXPECT_EQ(client.ReadReply().status, 200);
    EXPECT_EQ(leases, 0) << "let go before the answer had come";
  }
  EXPECT_EQ(Access(1).notes, " key=ann");
  client.Send(GetText("/nowhere"));
  EXPECT_EQ(client.ReadReply().status, 404) << "where there is nothing, nothing is asked";
  EXPECT_EQ(Access(3).notes, "");
}

TEST_F(HttpServerTest, RequestsHaveTheirClientsIdOrOneThatWasMade) {
  Start({.make_request_id = [] { return std::string("made"); }});
  EXPECT_EQ(Fetch(address_, GetText("/hello")).headers.at("x-request-id"), "made");
  // An answer is written down once it has been sent: another connection's may come before it.
  EXPECT_EQ(Access(0).request_id, "made");
  EXPECT_EQ(Fetch(address_, GetText("/hello", "X-Request-Id: mine\r\n")).headers.at("x-request-id"),
            "mine");
  EXPECT_EQ(Access(1).request_id, "mine");
}

TEST_F(HttpServerTest, ABodyWithTwoLengthsIsRefused) {
  Start();
  for (const char* lengths : {"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n",
                              "Transfer-Encoding: chunked\r\nContent-Length: 2\r\n",
                              "Content-Length: 2\r\nContent-Length: 3\r\n"}) {
    EXPECT_EQ(Fetch(address_, absl::StrCat("POST /echo HTTP/1.1\r\n", lengths, "\r\n{}")).status,
              400)
        << lengths;
  }
}

TEST_F(HttpServerTest, HeadIsGetWithoutTheBody) {
  Start();
  RawClient client(address_);
  client.Send("HEAD /hello HTTP/1.1\r\n\r\n");
  const RawReply reply = client.ReadReply(true);
  EXPECT_EQ(reply.status, 200);
  EXPECT_EQ(reply.headers.at("content-length"), "5");
  client.Send(GetText("/hello"));
  EXPECT_EQ(client.ReadReply().body, "hello");
}

TEST_F(HttpServerTest, TooLargeABodyIsRefusedHoweverItIsAnnounced) {
  Start({.body_bytes_max = 1000});
  EXPECT_EQ(Fetch(address_, PostText("/echo", std::string(1000, ' '))).status, 200);
  EXPECT_EQ(Fetch(address_, PostText("/echo", std::string(1001, ' '))).status, 413);
  std::string chunked = "POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n";
  for (int i = 0; i < 20; ++i) chunked += "64\r\n" + std::string(100, ' ') + "\r\n";
  EXPECT_EQ(Fetch(address_, chunked + "0\r\n\r\n").status, 413);
}

TEST_F(HttpServerTest, TooLargeAHeadIsRefused) {
  Start({.header_bytes_max = 2000});
  EXPECT_EQ(Fetch(address_, GetText("/hello", "X-A: " + std::string(3000, 'a') + "\r\n")).status,
            431);
}

TEST_F(HttpServerTest, ABodyThatDoesNotArriveEndsWith408) {
  Start({.body_timeout = milliseconds(50)});
  RawClient client(address_);
  client.Send("POST /echo HTTP/1.1\r\nContent-Length: 10\r\n\r\n{");
  EXPECT_EQ(client.ReadReply().status, 408);
  EXPECT_TRUE(client.AtEnd());
}

TEST_F(HttpServerTest, AHeadThatDoesNotArriveEndsWith408) {
  Start({.header_timeout = milliseconds(50)});
  RawClient client(address_);
  client.Send("GET /he");
  EXPECT_EQ(client.ReadReply().status, 408);
}

TEST_F(HttpServerTest, AnIdleConnectionIsClosedWithoutAWord) {
  Start({.idle_timeout = milliseconds(50)});
  RawClient client(address_);
  client.Send(GetText("/hello"));
  EXPECT_EQ(client.ReadReply().status, 200);
  EXPECT_EQ(client.ReadAll(), "");
}

TEST_F(HttpServerTest, Expect100ContinueIsMetBeforeTheBodyAndRefusedWhenTheRequestIs) {
  Start({.body_bytes_max = 1000});
  RawClient client(address_);
  client.Send("POST /echo HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n");
  EXPECT_EQ(client.ReadHead().status, 100);
  client.Send("{}");
  EXPECT_EQ(client.ReadReply().body, "{}");
  EXPECT_EQ(
      Fetch(address_, "POST /echo HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 2000\r\n\r\n")
          .status,
      413);
  EXPECT_EQ(
      Fetch(address_, "POST /nowhere HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n")
          .status,
      404);
  EXPECT_EQ(
      Fetch(address_, "POST /echo HTTP/1.1\r\nExpect: magic\r\nContent-Length: 2\r\n\r\n{}").status,
      417);
}

TEST_F(HttpServerTest, Http10StreamsEndWithTheConnection) {
  Start();
  RawClient client(address_);
  client.Send("GET /stream HTTP/1.0\r\n\r\n");
  auto call = Held();
  ASSERT_NE(call, nullptr);
  call->Write("data: 1\n\n");
  call->EndStream();
  const RawReply reply = client.ReadReply();
  EXPECT_EQ(reply.headers.count("transfer-encoding"), 0u);
  EXPECT_EQ(reply.body, "data: 1\n\n");
}

TEST_F(HttpServerTest, ASilentStreamIsKeptAliveByPings) {
  Start({.ping_interval = milliseconds(20)});
  RawClient client(address_);
  client.Send(GetText("/stream"));
  client.ReadHead();
  EXPECT_EQ(client.ReadEvent(), ": ping");
  EXPECT_EQ(client.ReadEvent(), ": ping");
  Held()->EndStream();
}

// How a client can leave, and what it was waiting for.
enum class Leaving { kClose, kHalfClose, kReset };
class LeavingClientTest : public HttpServerTest,
                          public ::testing::WithParamInterface<std::tuple<Leaving, const char*>> {};

TEST_P(LeavingClientTest, IsNoticedWhileItsAnswerIsMade) {
  const auto [way, path] = GetParam();
  Start();
  RawClient client(address_);
  client.Send(GetText(path));
  ASSERT_NE(Held(), nullptr);
  if (way == Leaving::kClose) client.Close();
  if (way == Leaving::kHalfClose) client.HalfClose();
  if (way == Leaving::kReset) client.Reset();
  EXPECT_TRUE(closed_.Wait());
  EXPECT_EQ(Access(0).status, 499);
}

INSTANTIATE_TEST_SUITE_P(Ways, LeavingClientTest,
                         ::testing::Combine(::testing::Values(Leaving::kClose, Leaving::kHalfClose,
                                                              Leaving::kReset),
                                            ::testing::Values("/held", "/stream")));

TEST_F(HttpServerTest, ASlowReaderIsPausedAndGoesOnWhenItReads) {
  Start({.marks = {.pause_at = 64 << 10, .resume_at = 16 << 10}, .send_buffer_bytes = 8 << 10});
  RawClient client(address_, 8 << 10);
  client.Send(GetText("/stream"));
  client.ReadHead();
  auto call = Held();
  ASSERT_NE(call, nullptr);
  const std::string piece(4096, 'x');
  int pieces = 1;
  while (call->Write(piece)) ASSERT_LT(++pieces, 10'000);
  EXPECT_LT(pieces, 1000) << "paused before much is buffered";
  call->Write("end");
  size_t read = 0;
  std::string chunk;
  while (chunk != "end") {
    chunk = client.ReadChunk();
    ASSERT_NE(chunk, "");
    read += chunk.size();
  }
  EXPECT_EQ(read, piece.size() * static_cast<size_t>(pieces) + 3) << "nothing is lost";
  EXPECT_TRUE(drained_.Wait());
  call->EndStream();
}

TEST_F(HttpServerTest, AReaderThatStopsIsDroppedAfterItsTime) {
  Start({.marks = {.pause_at = 64 << 10, .resume_at = 16 << 10},
         .slow_reader_timeout = milliseconds(100),
         .send_buffer_bytes = 8 << 10});
  RawClient client(address_, 8 << 10);
  client.Send(GetText("/stream"));
  auto call = Held();
  ASSERT_NE(call, nullptr);
  const std::string piece(4096, 'x');
  while (call->Write(piece)) {
  }
  EXPECT_TRUE(closed_.Wait());
  EXPECT_EQ(Access(0).status, 499);
}

// More than the sockets of the next two tests take, less than what pauses.
constexpr size_t kUnreadPieces = 50;

TEST_F(HttpServerTest, AReaderThatStopsIsLeftAloneUntilItsAnswerHasToPause) {
  Start({.threads = 1, .slow_reader_timeout = milliseconds(200), .send_buffer_bytes = 8 << 10});
  const std::string piece(4096, 'x');
  RawClient stopped(address_, 8 << 10);
  stopped.Send(GetText("/stream"));
  auto call = Held();
  ASSERT_NE(call, nullptr);
  for (size_t i = 0; i < kUnreadPieces; ++i) ASSERT_TRUE(call->Write(piece));
  {
    std::lock_guard lock(mutex_);
    held_ = nullptr;
  }
  RawClient paused(address_, 8 << 10);
  paused.Send(GetText("/stream"));
  auto later = Held();
  ASSERT_NE(later, nullptr);
  while (later->Write(piece)) {
  }
  EXPECT_EQ(Access(0).status, 499) << "the later one is dropped";
  stopped.ReadHead();
  size_t read = 0;
  std::string chunk;
  while (read < kUnreadPieces * piece.size() && (chunk = stopped.ReadChunk()) != "") {
    read += chunk.size();
  }
  EXPECT_EQ(read, kUnreadPieces * piece.size()) << "and the one that stopped before has it all";
  call->EndStream();
  EXPECT_EQ(Access(1).status, 200);
}

TEST_F(HttpServerTest, AReaderThatStopsIsDroppedOnceItsAnswerHasEnded) {
  Start({.slow_reader_timeout = milliseconds(100), .send_buffer_bytes = 8 << 10});
  RawClient client(address_, 8 << 10);
  client.Send(GetText("/stream"));
  auto call = Held();
  ASSERT_NE(call, nullptr);
  for (size_t i = 0; i < kUnreadPieces; ++i) ASSERT_TRUE(call->Write(std::string(4096, 'x')));
  call->EndStream();
  EXPECT_EQ(Access(0).status, 499);
}

TEST_F(HttpServerTest, WhatMayBeSentAheadIsLimited) {
  Start({.pipelined_bytes_max = 10'000});
  RawClient client(address_);
  client.Send(GetText("/held"));
  ASSERT_NE(Held(), nullptr);
  const std::string more(200'000, 'x');
  client.Send(more);
  EXPECT_TRUE(closed_.Wait());
}

TEST_F(HttpServerTest, ConnectionsAreLimited) {
  Start({.threads = 1, .connections_max = 2});
  RawClient first(address_), second(address_);
  first.Send(GetText("/hello"));
  second.Send(GetText("/hello"));
  EXPECT_EQ(first.ReadReply().status, 200);
  EXPECT_EQ(second.ReadReply().status, 200);
  RawClient third(address_);
  EXPECT_EQ(third.ReadReply().status, 503);
  EXPECT_TRUE(third.AtEnd());
}

TEST_F(HttpServerTest, DrainingClosesIdleConnectionsAndFinishesOpenAnswers) {
  Start();
  RawClient idle(address_), busy(address_);
  idle.Send(GetText("/hello"));
  idle.ReadReply();
  busy.Send(GetText("/held"));
  auto call = Held();
  ASSERT_NE(call, nullptr);
  server_->Drain();
  EXPECT_TRUE(idle.AtEnd());
  EXPECT_FALSE(server_->WaitIdle(milliseconds(0)));
  call->Reply({.body = "late"});
  const RawReply reply = busy.ReadReply();
  EXPECT_EQ(reply.body, "late");
  EXPECT_EQ(reply.headers.at("connection"), "close");
  EXPECT_TRUE(busy.AtEnd());
  EXPECT_TRUE(server_->WaitIdle(milliseconds(20'000)));
}

TEST_F(HttpServerTest, StoppingTellsOpenCallsAndLateAnswersAreHarmless) {
  Start();
  RawClient client(address_);
  client.Send(GetText("/stream"));
  auto call = Held();
  ASSERT_NE(call, nullptr);
  server_->Stop();
  EXPECT_TRUE(closed_.Wait());
  server_.reset();
  call->Write("too late");
  call->EndStream();
}

TEST_F(HttpServerTest, APortInUseIsAnError) {
  Start();
  auto second = StartHttpServer({.listen = address_}, {});
  ASSERT_FALSE(second.ok());
  EXPECT_NE(second.status().message().find(address_), std::string::npos) << second.status();
}

}  // namespace
}  // namespace quartet::gateway
