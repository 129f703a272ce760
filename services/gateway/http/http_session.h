// One connection of the HTTP server, from its first byte to its last.
#ifndef QUARTET_SERVICES_GATEWAY_HTTP_HTTP_SESSION_H_
#define QUARTET_SERVICES_GATEWAY_HTTP_HTTP_SESSION_H_

#include <atomic>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <unordered_set>
#include <vector>

#include "services/gateway/http/http_server.h"

namespace quartet::gateway {

// Used on its loop's thread only.
class HttpSession {
 public:
  virtual ~HttpSession() = default;
  // Between requests: ends the connection. Otherwise the answer in work is the last one.
  virtual void Drain() = 0;
  // Ends the connection now.
  virtual void Abort() = 0;
};

// What the threads share.
struct HttpShared {
  HttpServerOptions options;
  std::vector<HttpRoute> routes;
  std::shared_ptr<std::atomic<bool>> draining = std::make_shared<std::atomic<bool>>(false);
  std::atomic<bool> stopping{false};
  std::atomic<size_t> connections{0};
  std::atomic<size_t> bodies_bytes{0};
  std::mutex mutex;
  std::condition_variable idle;
};

// One event loop, its acceptor and the sessions that it accepted. Everything but the thread is used
// on that thread only.
struct HttpLoop {
  explicit HttpLoop(HttpShared* shared) : shared(shared) {}
  HttpShared* shared;
  boost::asio::io_context context{1};
  boost::asio::ip::tcp::acceptor acceptor{context};
  std::optional<boost::asio::executor_work_guard<boost::asio::io_context::executor_type>> guard;
  std::unordered_set<HttpSession*> sessions;
  std::thread thread;
};

// Serves a connection that is counted in `loop->shared->connections` until it ends, and then takes
// it off there. `loop` must outlive the coroutine.
boost::asio::awaitable<void> ServeConnection(HttpLoop* loop, boost::asio::ip::tcp::socket socket);

}  // namespace quartet::gateway

#endif  // QUARTET_SERVICES_GATEWAY_HTTP_HTTP_SESSION_H_
