#include "services/common/admin_server.h"

#include <chrono>
#include <cstddef>
#include <string_view>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "boost/asio/awaitable.hpp"
#include "boost/asio/co_spawn.hpp"
#include "boost/asio/detached.hpp"
#include "boost/asio/io_context.hpp"
#include "boost/asio/ip/tcp.hpp"
#include "boost/asio/redirect_error.hpp"
#include "boost/asio/steady_timer.hpp"
#include "boost/asio/use_awaitable.hpp"
#include "boost/beast/core.hpp"
#include "boost/beast/http.hpp"
#include "services/common/process.h"

namespace quartet {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using asio::ip::tcp;

// A scraper and a few probes are all that call here.
constexpr int kMaxConnections = 32;
constexpr size_t kMaxHeaderBytes = 8 * 1024;
constexpr uint64_t kMaxBodyBytes = 4 * 1024;
constexpr std::chrono::seconds kIdleTimeout{30};
constexpr std::chrono::milliseconds kAcceptRetry{100};

using Response = http::response<http::string_body>;

class BeastAdminServer final : public AdminServer {
 public:
  explicit BeastAdminServer(AdminHandlers handlers)
      : handlers_(std::move(handlers)), context_(1), acceptor_(context_) {}

  ~BeastAdminServer() override {
    context_.stop();
    if (thread_.joinable()) thread_.join();
  }

  absl::Status Start(const std::string& listen) {
    const absl::StatusOr<HostPort> where = ParseHostPort(listen);
    if (!where.ok()) return where.status();
    boost::system::error_code error;
    tcp::resolver resolver(context_);
    const auto found =
        resolver.resolve(where->host, std::to_string(where->port), tcp::resolver::passive, error);
    if (error || found.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("cannot resolve '", where->host, "': ", error.message()));
    }
    const tcp::endpoint endpoint = found.begin()->endpoint();
    acceptor_.open(endpoint.protocol(), error);
    if (!error) acceptor_.set_option(asio::socket_base::reuse_address(true), error);
    if (!error) acceptor_.bind(endpoint, error);
    if (!error) acceptor_.listen(asio::socket_base::max_listen_connections, error);
    if (error) {
      return absl::UnavailableError(
          absl::StrCat("cannot listen on ", listen, ": ", error.message()));
    }
    const tcp::endpoint bound = acceptor_.local_endpoint(error);
    const std::string host = bound.address().to_string();
    address_ = bound.address().is_v6() ? absl::StrCat("[", host, "]:", bound.port())
                                       : absl::StrCat(host, ":", bound.port());
    asio::co_spawn(context_, Accept(), asio::detached);
    thread_ = std::thread([this] { context_.run(); });
    return absl::OkStatus();
  }

  std::string address() const override { return address_; }

 private:
  asio::awaitable<void> Accept() {
    while (true) {
      boost::system::error_code error;
      tcp::socket socket =
          co_await acceptor_.async_accept(asio::redirect_error(asio::use_awaitable, error));
      if (error == asio::error::operation_aborted) co_return;
      if (error) {
        // Out of descriptors, for instance: trying again at once would only burn the processor.
        asio::steady_timer pause(context_, kAcceptRetry);
        co_await pause.async_wait(asio::redirect_error(asio::use_awaitable, error));
        continue;
      }
      if (connections_ >= kMaxConnections) continue;  // Closes the socket.
      asio::co_spawn(context_, Serve(std::move(socket)), asio::detached);
    }
  }

  asio::awaitable<void> Serve(tcp::socket socket) {
    ++connections_;
    beast::tcp_stream stream(std::move(socket));
    beast::flat_buffer buffer(kMaxHeaderBytes + kMaxBodyBytes);
    boost::system::error_code error;
    while (true) {
      http::request_parser<http::string_body> parser;
      parser.header_limit(kMaxHeaderBytes);
      parser.body_limit(kMaxBodyBytes);
      stream.expires_after(kIdleTimeout);
      co_await http::async_read(stream, buffer, parser,
                                asio::redirect_error(asio::use_awaitable, error));
      if (error) break;
      const Response response = Answer(parser.get());
      stream.expires_after(kIdleTimeout);
      co_await http::async_write(stream, response,
                                 asio::redirect_error(asio::use_awaitable, error));
      if (error || response.need_eof()) break;
    }
    stream.socket().shutdown(tcp::socket::shutdown_both, error);
    --connections_;
  }

  Response Answer(const http::request<http::string_body>& request) const {
    Response response(http::status::ok, request.version());
    response.keep_alive(request.keep_alive());
    response.set(http::field::content_type, "text/plain; charset=utf-8");
    const std::string_view whole(request.target().data(), request.target().size());
    const std::string_view path = whole.substr(0, whole.find('?'));
    const bool known = path == "/metrics" || path == "/livez" || path == "/readyz";
    if (!known) {
      response.result(http::status::not_found);
      response.body() = "not found: here are /metrics, /livez and /readyz\n";
    } else if (request.method() != http::verb::get && request.method() != http::verb::head) {
      response.result(http::status::method_not_allowed);
      response.set(http::field::allow, "GET, HEAD");
      response.body() = "only GET and HEAD\n";
    } else if (path == "/metrics") {
      response.set(http::field::content_type, "text/plain; version=0.0.4; charset=utf-8");
      if (handlers_.metrics) response.body() = handlers_.metrics();
    } else if (path == "/livez") {
      response.body() = "ok\n";
    } else {
      const std::string reason =
          handlers_.not_ready_reason ? handlers_.not_ready_reason() : std::string();
      if (!reason.empty()) response.result(http::status::service_unavailable);
      response.body() = reason.empty() ? "ok\n" : absl::StrCat("not ready: ", reason, "\n");
    }
    response.prepare_payload();
    if (request.method() == http::verb::head) response.body().clear();
    return response;
  }

  const AdminHandlers handlers_;
  asio::io_context context_;
  tcp::acceptor acceptor_;
  std::string address_;
  int connections_ = 0;  // Only on the server's thread.
  std::thread thread_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<AdminServer>> StartAdminServer(const std::string& listen,
                                                              AdminHandlers handlers) {
  auto server = std::make_unique<BeastAdminServer>(std::move(handlers));
  const absl::Status status = server->Start(listen);
  if (!status.ok()) return status;
  return std::unique_ptr<AdminServer>(std::move(server));
}

}  // namespace quartet
