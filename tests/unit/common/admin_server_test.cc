#include "services/common/admin_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "boost/asio/connect.hpp"
#include "boost/asio/io_context.hpp"
#include "boost/asio/ip/tcp.hpp"
#include "boost/asio/read.hpp"
#include "boost/asio/write.hpp"
#include "services/common/metrics.h"
#include "services/common/process.h"

namespace quartet {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

class Client {
 public:
  explicit Client(const std::string& address) : socket_(context_) {
    const auto where = ParseHostPort(address);
    boost::asio::ip::tcp::resolver resolver(context_);
    boost::asio::connect(socket_, resolver.resolve(where->host, std::to_string(where->port)));
  }

  // Sends `text` and reads until the other side closes.
  std::string Exchange(const std::string& text) {
    std::string answer;
    boost::system::error_code error;
    boost::asio::write(socket_, boost::asio::buffer(text), error);  // May be closed under us.
    boost::asio::read(socket_, boost::asio::dynamic_buffer(answer), error);
    return answer;
  }

 private:
  boost::asio::io_context context_;
  boost::asio::ip::tcp::socket socket_;
};

std::string Get(const std::string& address, const std::string& target,
                const std::string& method = "GET") {
  return Client(address).Exchange(method + " " + target +
                                  " HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n");
}

std::unique_ptr<AdminServer> StartOrDie(AdminHandlers handlers) {
  auto server = StartAdminServer("127.0.0.1:0", std::move(handlers));
  EXPECT_TRUE(server.ok()) << server.status();
  return server.ok() ? *std::move(server) : nullptr;
}

TEST(AdminServer, PortZeroTakesAFreePortAndSaysWhich) {
  const auto server = StartOrDie({});
  ASSERT_NE(server, nullptr);
  const auto where = ParseHostPort(server->address());
  ASSERT_TRUE(where.ok());
  EXPECT_EQ(where->host, "127.0.0.1");
  EXPECT_NE(where->port, 0);
}

TEST(AdminServer, ServesTheMetricsOfTheProcess) {
  const std::unique_ptr<Metrics> metrics = MakeMetrics();
  metrics->GetCounter("quartet_steps_total", "Steps").Add(5);
  const auto server = StartOrDie({.metrics = [&metrics] { return metrics->Expose(); }});
  ASSERT_NE(server, nullptr);
  const std::string answer = Get(server->address(), "/metrics");
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(answer, HasSubstr("Content-Type: text/plain; version=0.0.4"));
  EXPECT_THAT(answer, HasSubstr("quartet_steps_total 5\n"));
}

TEST(AdminServer, IsLiveFromTheStartAndReadyWhenTheProcessSaysSo) {
  std::atomic<bool> ready{false};
  const auto server = StartOrDie(
      {.not_ready_reason = [&ready] { return ready ? std::string() : "loading weights"; }});
  ASSERT_NE(server, nullptr);
  EXPECT_THAT(Get(server->address(), "/livez"), StartsWith("HTTP/1.1 200"));
  const std::string before = Get(server->address(), "/readyz");
  EXPECT_THAT(before, StartsWith("HTTP/1.1 503"));
  EXPECT_THAT(before, HasSubstr("loading weights"));
  ready = true;
  EXPECT_THAT(Get(server->address(), "/readyz"), StartsWith("HTTP/1.1 200"));
}

TEST(AdminServer, KnowsThreePathsAndReadsOnly) {
  const auto server = StartOrDie({});
  ASSERT_NE(server, nullptr);
  EXPECT_THAT(Get(server->address(), "/"), StartsWith("HTTP/1.1 404"));
  EXPECT_THAT(Get(server->address(), "/livez?probe=1"), StartsWith("HTTP/1.1 200"));
  const std::string posted = Get(server->address(), "/metrics", "POST");
  EXPECT_THAT(posted, StartsWith("HTTP/1.1 405"));
  EXPECT_THAT(posted, HasSubstr("Allow: GET, HEAD"));
}

TEST(AdminServer, AHeadRequestGetsTheLengthButNoBody) {
  const auto server = StartOrDie({.metrics = [] { return std::string("quartet_x 1\n"); }});
  ASSERT_NE(server, nullptr);
  const std::string answer = Get(server->address(), "/metrics", "HEAD");
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(answer, HasSubstr("Content-Length: 12"));
  EXPECT_THAT(answer, ::testing::EndsWith("\r\n\r\n"));
}

TEST(AdminServer, AConnectionServesSeveralRequests) {
  const auto server = StartOrDie({});
  ASSERT_NE(server, nullptr);
  const std::string answer = Client(server->address())
                                 .Exchange(
                                     "GET /livez HTTP/1.1\r\nHost: a\r\n\r\n"
                                     "GET /readyz HTTP/1.1\r\nHost: a\r\n"
                                     "Connection: close\r\n\r\n");
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 200"));
  EXPECT_NE(answer.find("HTTP/1.1 200", 10), std::string::npos);
}

TEST(AdminServer, GarbageAndTooLongHeadersEndOnlyTheirConnection) {
  const auto server = StartOrDie({});
  ASSERT_NE(server, nullptr);
  Client(server->address()).Exchange("\x16\x03\x01 not http\r\n\r\n");
  Client(server->address())
      .Exchange("GET /livez HTTP/1.1\r\nX: " + std::string(64 * 1024, 'x') + "\r\n\r\n");
  EXPECT_THAT(Get(server->address(), "/livez"), StartsWith("HTTP/1.1 200"));
}

TEST(AdminServer, ItsEndClosesOpenConnections) {
  auto server = StartOrDie({});
  ASSERT_NE(server, nullptr);
  Client idle(server->address());
  EXPECT_THAT(Get(server->address(), "/livez"), StartsWith("HTTP/1.1 200"));
  server.reset();
  EXPECT_EQ(idle.Exchange(""), "");
}

TEST(AdminServer, APortInUseIsAnErrorThatNamesIt) {
  const auto server = StartOrDie({});
  ASSERT_NE(server, nullptr);
  const auto second = StartAdminServer(server->address(), {});
  ASSERT_FALSE(second.ok());
  EXPECT_THAT(std::string(second.status().message()), HasSubstr(server->address()));
  EXPECT_THAT(std::string(second.status().message()), HasSubstr("in use"));
}

TEST(AdminServer, ABadAddressIsRefused) {
  EXPECT_FALSE(StartAdminServer("127.0.0.1", {}).ok());
  EXPECT_FALSE(StartAdminServer("unix:/tmp/x", {}).ok());
}

}  // namespace
}  // namespace quartet
