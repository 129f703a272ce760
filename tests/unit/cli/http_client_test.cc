#include "services/cli/http_client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <string>

#include "tests/unit/cli/fake_http_server.h"

namespace quartet::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(ParseUrl, TakesHostPortAndPath) {
  const auto plain = ParseUrl("http://127.0.0.1:8000");
  ASSERT_TRUE(plain.ok());
  EXPECT_EQ(plain->host, "127.0.0.1");
  EXPECT_EQ(plain->port, 8000);
  EXPECT_EQ(plain->path, "");
  const auto full = ParseUrl("http://[::1]:80/proxy/");
  ASSERT_TRUE(full.ok());
  EXPECT_EQ(full->host, "::1");
  EXPECT_EQ(full->path, "/proxy");
  const auto short_form = ParseUrl("http://gateway");
  ASSERT_TRUE(short_form.ok());
  EXPECT_EQ(short_form->port, 80);
}

TEST(ParseUrl, SaysWhatWouldBeRight) {
  for (const char* bad : {"", "127.0.0.1:8000", "https://x", "ftp://x", "http://", "http://:80",
                          "http://x:port", "http://x/a b"}) {
    const auto url = ParseUrl(bad);
    ASSERT_FALSE(url.ok()) << bad;
    EXPECT_THAT(std::string(url.status().message()), HasSubstr("http://127.0.0.1:8000"));
  }
}

std::unique_ptr<HttpClient> ClientOf(const FakeHttpServer& server) {
  return MakeHttpClient(*ParseUrl(server.url()), "");
}

TEST(HttpClient, UsesOneConnectionForSeveralRequests) {
  FakeHttpServer server([](const SeenRequest& request) { return PlainAnswer(200, request.line); });
  const auto client = ClientOf(server);
  const auto first = client->Get("/one");
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(first->status, 200);
  EXPECT_EQ(first->body, "GET /one HTTP/1.1");
  const auto second = client->Get("/two");
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_EQ(second->body, "GET /two HTTP/1.1");
}

TEST(HttpClient, AKeyGoesWithEveryRequest) {
  FakeHttpServer server(
      [](const SeenRequest& request) { return PlainAnswer(200, request.authorization); });
  const auto client = MakeHttpClient(*ParseUrl(server.url()), "secret");
  EXPECT_EQ(client->Get("/one")->body, "bearer secret");
  EXPECT_EQ(client->Get("/two")->body, "bearer secret");
  EXPECT_EQ(ClientOf(server)->Get("/three")->body, "");
}

TEST(HttpClient, StreamsAGoodAnswer) {
  FakeHttpServer server([](const SeenRequest&) { return StreamAnswer({"a", "b"}); });
  std::string bytes;
  const auto response = ClientOf(server)->PostStreaming(
      "/x", R"({"k":1})", [&bytes](std::string_view piece) { bytes.append(piece); });
  ASSERT_TRUE(response.ok()) << response.status();
  EXPECT_EQ(response->status, 200);
  EXPECT_EQ(bytes, "data: a\n\ndata: b\n\n");
  ASSERT_EQ(server.seen().size(), 1U);
  EXPECT_EQ(server.seen()[0].body, R"({"k":1})");
}

TEST(HttpClient, ReturnsTheBodyOfAnErrorInstead) {
  FakeHttpServer server(
      [](const SeenRequest&) { return PlainAnswer(400, R"({"error":{"message":"bad"}})"); });
  bool streamed = false;
  const auto response = ClientOf(server)->PostStreaming(
      "/x", "{}", [&streamed](std::string_view) { streamed = true; });
  ASSERT_TRUE(response.ok()) << response.status();
  EXPECT_FALSE(streamed);
  EXPECT_EQ(ErrorText(*response), "HTTP 400: bad");
}

TEST(HttpClient, OpensAnotherConnectionAfterTheServerClosedIt) {
  FakeHttpServer server(
      [](const SeenRequest&) { return PlainAnswer(200, "x", "Connection: close\r\n"); });
  const auto client = ClientOf(server);
  EXPECT_TRUE(client->Get("/one").ok());
  EXPECT_TRUE(client->Get("/two").ok());
  EXPECT_EQ(server.seen().size(), 2U);
}

TEST(HttpClient, AConnectionThatBreaksInTheMiddleIsAnError) {
  FakeHttpServer server([](const SeenRequest&) {
    return std::string("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 100\r\n\r\nhalf");
  });
  std::string bytes;
  const auto response = ClientOf(server)->PostStreaming(
      "/x", "{}", [&bytes](std::string_view piece) { bytes.append(piece); });
  EXPECT_FALSE(response.ok());
  EXPECT_EQ(bytes, "half");
}

TEST(ErrorText, ShowsABodyThatIsNoJson) {
  EXPECT_THAT(ErrorText({502, "<html>\x1b"}), StartsWith("HTTP 502: <html>"));
}

}  // namespace
}  // namespace quartet::cli
