#include "services/gateway/http/http_server.h"

#include <sys/socket.h>

#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>

#include "absl/strings/str_cat.h"
#include "services/common/process.h"
#include "services/gateway/http/http_session.h"
#include "services/gateway/http/open_files.h"

namespace quartet::gateway {
namespace {

namespace asio = boost::asio;
using asio::awaitable;
using asio::redirect_error;
using asio::use_awaitable;
using boost::system::error_code;
using tcp = asio::ip::tcp;

awaitable<void> Accept(HttpLoop* loop) {
  HttpShared* shared = loop->shared;
  asio::steady_timer pause(loop->context);
  while (loop->acceptor.is_open()) {
    error_code ec;
    tcp::socket socket = co_await loop->acceptor.async_accept(redirect_error(use_awaitable, ec));
    if (!loop->acceptor.is_open()) co_return;
    if (ec) {
      // Out of descriptors, or the peer was quicker: waiting is all that can be done.
      pause.expires_after(std::chrono::milliseconds(50));
      co_await pause.async_wait(redirect_error(use_awaitable, ec));
      continue;
    }
    if (++shared->connections > shared->options.connections_max) {
      --shared->connections;
      const std::string body =
          shared->options.error_body
              ? shared->options.error_body({}, 503, "too many connections; try again")
              : std::string("too many connections\n");
      const std::string answer = absl::StrCat(
          "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nContent-Length: ",
          body.size(), "\r\nRetry-After: 1\r\n",
          shared->options.make_request_id
              ? absl::StrCat("X-Request-Id: ", shared->options.make_request_id(), "\r\n")
              : "",
          "Connection: close\r\n\r\n", body);
      socket.non_blocking(true, ec);
      socket.write_some(asio::buffer(answer), ec);  // a fresh socket's buffer takes this much
      continue;
    }
    asio::co_spawn(loop->context, ServeConnection(loop, std::move(socket)), asio::detached);
  }
}

class Server final : public HttpServer {
 public:
  Server(HttpServerOptions options, std::vector<HttpRoute> routes) {
    shared_.options = std::move(options);
    shared_.routes = std::move(routes);
  }
  ~Server() override { Stop(); }

  absl::Status Start() {
    auto parts = ParseHostPort(shared_.options.listen);
    if (!parts.ok()) return parts.status();
    if (absl::Status allowed = AllowOpenFiles(shared_.options.connections_max + kOtherOpenFiles);
        !allowed.ok()) {
      return allowed;
    }
    asio::io_context resolving;
    tcp::resolver resolver(resolving);
    error_code ec;
    const auto found =
        resolver.resolve(parts->host, std::to_string(parts->port), tcp::resolver::passive, ec);
    if (ec || found.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("cannot listen on ", shared_.options.listen, ": ", ec.message()));
    }
    tcp::endpoint endpoint = found.begin()->endpoint();
    const int threads = std::max(1, shared_.options.threads);
    for (int i = 0; i < threads; ++i) {
      auto loop = std::make_unique<HttpLoop>(&shared_);
      using ReusePort = asio::detail::socket_option::boolean<SOL_SOCKET, SO_REUSEPORT>;
      loop->acceptor.open(endpoint.protocol(), ec);
      // The first acceptor takes the port alone, so that a port that another process serves is an
      // error and not a share.
      if (!ec) loop->acceptor.set_option(tcp::acceptor::reuse_address(true), ec);
      if (!ec && i == 0 && endpoint.port() != 0) {
        tcp::acceptor probe(loop->context, endpoint.protocol());
        probe.set_option(tcp::acceptor::reuse_address(true), ec);
        if (!ec) probe.bind(endpoint, ec);
      }
      if (!ec) loop->acceptor.set_option(ReusePort(true), ec);
      if (!ec) loop->acceptor.bind(endpoint, ec);
      if (!ec) loop->acceptor.listen(1024, ec);
      if (ec) {
        return absl::UnavailableError(
            absl::StrCat("cannot listen on ", shared_.options.listen, ": ", ec.message()));
      }
      if (i == 0) endpoint = loop->acceptor.local_endpoint();
      loops_.push_back(std::move(loop));
    }
    const std::string host = endpoint.address().to_string();
    address_ = endpoint.address().is_v6() ? absl::StrCat("[", host, "]:", endpoint.port())
                                          : absl::StrCat(host, ":", endpoint.port());
    for (auto& loop : loops_) {
      loop->guard.emplace(loop->context.get_executor());
      asio::co_spawn(loop->context, Accept(loop.get()), asio::detached);
      loop->thread = std::thread([context = &loop->context] { context->run(); });
    }
    return absl::OkStatus();
  }

  std::string address() const override { return address_; }
  size_t connections() const override { return shared_.connections.load(); }

  void Drain() override {
    shared_.draining->store(true);
    for (auto& loop : loops_) {
      asio::post(loop->context, [loop = loop.get()] {
        error_code ec;
        loop->acceptor.close(ec);
        for (HttpSession* session : loop->sessions) session->Drain();
      });
    }
  }

  bool WaitIdle(std::chrono::milliseconds wait) override {
    std::unique_lock lock(shared_.mutex);
    return shared_.idle.wait_for(lock, wait, [this] { return shared_.connections.load() == 0; });
  }

  void Stop() override {
    if (shared_.stopping.exchange(true)) return;
    Drain();
    for (auto& loop : loops_) {
      asio::post(loop->context, [loop = loop.get()] {
        // Sessions end by themselves when their sockets are closed; then the loop has nothing left
        // to do.
        for (HttpSession* session : loop->sessions) session->Abort();
        loop->guard.reset();
      });
    }
    for (auto& loop : loops_) {
      if (loop->thread.joinable()) loop->thread.join();
    }
  }

 private:
  HttpShared shared_;
  std::vector<std::unique_ptr<HttpLoop>> loops_;
  std::string address_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<HttpServer>> StartHttpServer(HttpServerOptions options,
                                                            std::vector<HttpRoute> routes) {
  auto server = std::make_unique<Server>(std::move(options), std::move(routes));
  if (absl::Status status = server->Start(); !status.ok()) return status;
  return server;
}

}  // namespace quartet::gateway
