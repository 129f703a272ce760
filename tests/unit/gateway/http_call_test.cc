#include "services/gateway/http/http_call.h"

#include <gtest/gtest.h>

#include "services/gateway/http/sse.h"

namespace quartet::gateway {
namespace {

struct Made {
  explicit Made(CallTraits traits = {})
      : call(HttpRequest{}, traits, closing, [this] { ++wakes; }) {}
  std::shared_ptr<std::atomic<bool>> closing = std::make_shared<std::atomic<bool>>(false);
  int wakes = 0;
  BufferedCall call;
};

TEST(HttpCall, AWholeReplyHasItsLength) {
  Made made;
  made.call.Reply({.status = 429, .headers = {{"Retry-After", "1"}}, .body = "{}"});
  EXPECT_EQ(made.call.Take().bytes,
            "HTTP/1.1 429 Too Many Requests\r\nContent-Type: application/json\r\nContent-Length: "
            "2\r\nRetry-After: 1\r\n\r\n{}");
  EXPECT_TRUE(made.call.keep_alive());
  EXPECT_EQ(made.wakes, 1);
}

TEST(HttpCall, AStreamOfEventsIsChunkedAndEndsWithAnEmptyChunk) {
  Made made;
  made.call.StartStream(SseHead());
  EXPECT_EQ(made.call.Take().bytes,
            "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; "
            "charset=utf-8\r\nTransfer-Encoding: chunked\r\n"
            "Cache-Control: no-cache\r\nX-Accel-Buffering: no\r\n\r\n");
  made.call.Write(SseData("{\"a\":1}"));
  EXPECT_EQ(made.call.Take().bytes, "f\r\ndata: {\"a\":1}\n\n\r\n");
  made.call.Ping();
  EXPECT_EQ(made.call.Take().bytes, "8\r\n: ping\n\n\r\n");
  made.call.Write(kSseDone);
  made.call.EndStream();
  const BufferedCall::Output last = made.call.Take();
  EXPECT_EQ(last.bytes, "e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n");
  EXPECT_TRUE(last.finished);
}

TEST(HttpCall, AnHttp10StreamEndsWithTheConnection) {
  Made made({.http_1_0 = true});
  made.call.StartStream(SseHead());
  made.call.Write(kSseDone);
  made.call.EndStream();
  const std::string bytes = made.call.Take().bytes;
  EXPECT_EQ(bytes.find("chunked"), std::string::npos);
  EXPECT_NE(bytes.find("Connection: close\r\n"), std::string::npos);
  EXPECT_TRUE(bytes.ends_with("\r\n\r\ndata: [DONE]\n\n"));
  EXPECT_FALSE(made.call.keep_alive());
}

TEST(HttpCall, AnswersToHeadHaveNoBodyButItsLength) {
  Made made({.head_only = true});
  made.call.Reply({.body = "hello"});
  const std::string bytes = made.call.Take().bytes;
  EXPECT_NE(bytes.find("Content-Length: 5\r\n"), std::string::npos);
  EXPECT_TRUE(bytes.ends_with("\r\n\r\n"));
}

TEST(HttpCall, HeadersOfEveryAnswerGiveWayToTheHandlers) {
  Made made({.headers = {{"X-Request-Id", "server"}, {"Vary", "Origin"}}});
  made.call.Reply({.headers = {{"x-request-id", "handler"}}});
  const std::string bytes = made.call.Take().bytes;
  EXPECT_NE(bytes.find("x-request-id: handler\r\nVary: Origin\r\n"), std::string::npos);
  EXPECT_EQ(bytes.find("server"), std::string::npos);
  EXPECT_EQ(made.call.request_id(), "handler");
}

TEST(HttpCall, WhatItHoldsIsLetGoBeforeTheEndIsSent) {
  for (const int way : {0, 1, 2}) {
    Made made;
    auto lease = std::make_shared<int>();
    std::weak_ptr<int> held = lease;
    made.call.Hold(std::move(lease));
    if (way == 0) made.call.Reply({});
    if (way == 1) {
      made.call.StartStream(SseHead());
      made.call.Write(kSseDone);
      EXPECT_FALSE(held.expired());
      made.call.EndStream();
    }
    if (way == 2) made.call.Close();
    EXPECT_TRUE(held.expired()) << way;
  }
}

TEST(HttpCall, WhileTheServerDrainsConnectionsAreNotKept) {
  Made made;
  made.closing->store(true);
  made.call.Reply({});
  EXPECT_NE(made.call.Take().bytes.find("Connection: close\r\n"), std::string::npos);
}

TEST(HttpCall, WriteSaysWhenToPauseAndOnDrainedWhenToGoOn) {
  Made made({.marks = {.pause_at = 1000, .resume_at = 300}});
  int drained = 0;
  made.call.Watch([] {}, [&] { ++drained; });
  made.call.StartStream({.content_type = "text/plain"});
  const size_t head = made.call.Take().bytes.size();
  made.call.Sent(head);
  EXPECT_TRUE(made.call.Write(std::string(500, 'x')));
  EXPECT_FALSE(made.call.Write(std::string(500, 'x')));
  EXPECT_TRUE(made.call.paused());
  const size_t taken = made.call.Take().bytes.size();
  EXPECT_FALSE(made.call.Write("y")) << "bytes that were taken but not sent still count";
  made.call.Sent(taken - 400);
  EXPECT_EQ(drained, 0);
  made.call.Sent(200);
  EXPECT_EQ(drained, 1);
  EXPECT_FALSE(made.call.paused());
}

TEST(HttpCall, OnClosedComesOnceAndNotAfterTheAnswerIsComplete) {
  Made made;
  int closed = 0;
  made.call.Watch([&] { ++closed; }, [] {});
  made.call.Close();
  made.call.Close();
  EXPECT_EQ(closed, 1);
  made.call.Reply({});
  EXPECT_EQ(made.call.Take().bytes, "") << "after the peer has gone everything is dropped";

  Made late;
  late.call.Close();
  late.call.Watch([&] { ++closed; }, [] {});
  EXPECT_EQ(closed, 2) << "told at once if the peer had gone before";

  Made complete;
  complete.call.Watch([&] { ++closed; }, [] {});
  complete.call.Reply({});
  complete.call.Close();
  EXPECT_EQ(closed, 2);
}

}  // namespace
}  // namespace quartet::gateway
