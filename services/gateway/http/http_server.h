// The HTTP/1.1 end of the gateway.
#ifndef QUARTET_SERVICES_GATEWAY_HTTP_HTTP_SERVER_H_
#define QUARTET_SERVICES_GATEWAY_HTTP_HTTP_SERVER_H_

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "services/gateway/http/http_call.h"
#include "services/gateway/http/open_files.h"

namespace quartet::gateway {

struct HttpRoute {
  std::string method;  // "GET" (HEAD comes with it) or "POST"
  std::string path;    // exact; or, if it ends with '/', a prefix of one more segment
  // Called on a connection's thread with the whole request; must not block and must see to it that
  // the call is answered.
  std::function<void(std::shared_ptr<HttpCall>)> handler;
  // The body must be JSON: another content type is answered with 415.
  bool json_body = false;
};

// Written to the access log when a request has ended.
struct HttpAccess {
  std::string method;
  std::string path;
  std::string route;  // the route's path, "" if none matched: a label with few values
  std::string remote;
  int status = 0;  // 499: the client went away before the answer was complete
  size_t request_bytes = 0;
  size_t response_bytes = 0;
  double seconds = 0;
  std::string request_id;  // as it was sent, or would have been
  std::string notes;
};

// What is decided about a request when its head has come.
struct HttpAdmission {
  std::optional<HttpReply> refusal;  // sent instead of what the handler would say
  std::shared_ptr<void> lease;       // let go when the answer is complete or its client has gone
  std::string caller;                // for the access log, as `key`; empty: nobody in particular
};

struct HttpServerOptions {
  std::string listen = "127.0.0.1:0";
  int threads = 2;  // each has an event loop and an acceptor of its own
  size_t connections_max = kDefaultConnections;
  size_t header_bytes_max = 32 << 10;
  size_t body_bytes_max = size_t{64} << 20;
  // Of all bodies that are being received; more is answered with 503.
  size_t bodies_bytes_max = size_t{1} << 30;
  // What a client may send ahead while it waits for an answer.
  size_t pipelined_bytes_max = 64 << 10;
  OutputMarks marks;
  std::chrono::milliseconds idle_timeout{75'000};    // between requests of a connection
  std::chrono::milliseconds header_timeout{10'000};  // first byte to end of head
  std::chrono::milliseconds body_timeout{60'000};    // the whole body
  std::chrono::milliseconds slow_reader_timeout{30'000};
  std::chrono::milliseconds ping_interval{15'000};
  int send_buffer_bytes = 0;  // SO_SNDBUF of connections; 0: the system's choice
  // Origins whose pages may read the answers; "*" is all of them.
  std::vector<std::string> cors_origins;
  // Makes the body of the server's own error answers (request, status, message). Of the request it
  // has what had been read by then, which may be nothing.
  std::function<std::string(const HttpRequest&, int, const std::string&)> error_body;
  // Asked before a request's body is read, on a connection's thread; must not block.
  std::function<HttpAdmission(const HttpRequest&, const HttpRoute&)> admit;
  // Names requests whose client did not. None: they stay without a name.
  std::function<std::string()> make_request_id;
  std::function<void(const HttpAccess&)> on_access;  // on a connection's thread
};

// Serves routes on one port. Owns its threads; a connection stays on the thread that accepted it.
class HttpServer {
 public:
  virtual ~HttpServer() = default;          // as Stop
  virtual std::string address() const = 0;  // host:port that was bound
  virtual size_t connections() const = 0;
  // Accepts no more connections, closes idle ones, and the others after the answer that they are
  // working on.
  virtual void Drain() = 0;
  // Whether all connections have ended within `wait`.
  virtual bool WaitIdle(std::chrono::milliseconds wait) = 0;
  // Closes everything and joins the threads. Unfinished calls are told by on_closed.
  virtual void Stop() = 0;
};

absl::StatusOr<std::unique_ptr<HttpServer>> StartHttpServer(HttpServerOptions options,
                                                            std::vector<HttpRoute> routes);

}  // namespace quartet::gateway

#endif  // QUARTET_SERVICES_GATEWAY_HTTP_HTTP_SERVER_H_
