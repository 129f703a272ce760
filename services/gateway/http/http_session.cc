#include "services/gateway/http/http_session.h"

#include <netinet/in.h>
#include <netinet/tcp.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/error.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "services/gateway/http/http_rules.h"

namespace quartet::gateway {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using asio::awaitable;
using asio::redirect_error;
using asio::use_awaitable;
using boost::system::error_code;
using tcp = asio::ip::tcp;
using Clock = std::chrono::steady_clock;
using UnsentLowMark = asio::detail::socket_option::integer<IPPROTO_TCP, TCP_NOTSENT_LOWAT>;

// What the system holds of an answer that its peer has no room for.
constexpr int kUnsentBytesMax = 64 << 10;

// One connection. Lives in its coroutine, on its loop's thread.
class Session final : public HttpSession, public std::enable_shared_from_this<Session> {
 public:
  Session(HttpLoop* loop, tcp::socket socket)
      : loop_(loop),
        shared_(loop->shared),
        options_(loop->shared->options),
        socket_(std::move(socket)),
        deadline_(loop->context),
        wake_(loop->context) {
    loop_->sessions.insert(this);
  }

  ~Session() override {
    loop_->sessions.erase(this);
    {
      std::lock_guard lock(shared_->mutex);
      --shared_->connections;
    }
    shared_->idle.notify_all();
  }

  // The coroutine owns the session; it ends when the connection does.
  static awaitable<void> Run(std::shared_ptr<Session> self) { co_await self->Serve(); }

  void Drain() override {
    if (idle_) Abort();
  }

  void Abort() override {
    stopped_ = true;
    error_code ec;
    socket_.close(ec);
    deadline_.cancel();
    if (call_) call_->Close();
    Notify();
  }

 private:
  using Parser = http::request_parser<http::string_body>;

  awaitable<void> Serve() {
    error_code ec;
    socket_.set_option(tcp::no_delay(true), ec);
    // Else the system takes megabytes ahead of a reader that is slow, and its pause comes late.
    socket_.set_option(UnsentLowMark(kUnsentBytesMax), ec);
    if (options_.send_buffer_bytes > 0) {
      socket_.set_option(asio::socket_base::send_buffer_size(options_.send_buffer_bytes), ec);
    }
    const auto endpoint = socket_.remote_endpoint(ec);
    if (!ec) remote_ = endpoint.address().to_string();
    while (!stopped_ && co_await ServeOne()) {
    }
    socket_.close(ec);
  }

  // After `limit` the pending operations of the socket end with operation_aborted and timed_out_ is
  // set.
  void Arm(std::chrono::milliseconds limit) {
    timed_out_ = false;
    At(Clock::now() + limit, &Session::TimeOut);
  }
  // The same for writing call_'s answer. Who reads slowly has his time from the pause on, and once
  // the answer has ended; until then he is in nobody's way.
  void ArmWrite() {
    timed_out_ = false;
    At(paused_since_.value_or(Clock::now()) + options_.slow_reader_timeout,
       paused_since_ || call_->finished() ? &Session::TimeOut : &Session::ArmWrite);
  }
  void TimeOut() {
    timed_out_ = true;
    error_code ec;
    socket_.cancel(ec);
  }
  // Calls `act` then, unless Disarm or another At comes before.
  void At(Clock::time_point when, void (Session::*act)()) {
    const uint64_t turn = ++deadline_turn_;
    deadline_.expires_at(when);
    deadline_.async_wait([self = shared_from_this(), turn, act](error_code ec) {
      if (!ec && turn == self->deadline_turn_) (self.get()->*act)();
    });
  }
  void Disarm() {
    ++deadline_turn_;
    deadline_.cancel();
  }

  void Notify() {
    signalled_ = true;
    wake_.cancel();
    NotePause();
  }
  void NotePause() {
    if (!call_ || !call_->paused()) {
      paused_since_.reset();
    } else if (!paused_since_) {
      paused_since_ = Clock::now();
    }
  }

  // Waits until Notify, or `limit` if there is one.
  awaitable<void> WaitForWork(std::optional<Clock::duration> limit) {
    if (!signalled_) {
      if (limit) {
        wake_.expires_after(*limit);
      } else {
        wake_.expires_at(Clock::time_point::max());
      }
      error_code ec;
      co_await wake_.async_wait(redirect_error(use_awaitable, ec));
    }
    signalled_ = false;
  }

  // One request and its answer. False: the connection ends.
  awaitable<bool> ServeOne() {
    error_code ec;
    if (buffer_.size() == 0) {
      idle_ = true;
      if (shared_->draining->load()) co_return false;
      Arm(options_.idle_timeout);
      const size_t got = co_await socket_.async_read_some(buffer_.prepare(4096),
                                                          redirect_error(use_awaitable, ec));
      Disarm();
      idle_ = false;
      if (ec || stopped_) co_return false;
      buffer_.commit(got);
    }
    started_ = Clock::now();
    route_.clear();
    caller_.clear();
    lease_.reset();

    Parser parser;
    parser.header_limit(static_cast<uint32_t>(options_.header_bytes_max));
    parser.body_limit(options_.body_bytes_max);
    Arm(options_.header_timeout);
    co_await http::async_read_header(socket_, buffer_, parser, redirect_error(use_awaitable, ec));
    Disarm();
    if (stopped_) co_return false;
    if (ec) {
      HttpRequest unread{.method = "-", .path = "-", .remote = remote_};
      if (options_.make_request_id) unread.request_id = options_.make_request_id();
      CallTraits traits;
      co_return co_await RefuseUnread(ec, "head", std::move(unread), std::move(traits));
    }

    const auto& head = parser.get();
    HttpRequest request;
    request.method = std::string(head.method_string());
    request.remote = remote_;
    request.client_request_id = FitRequestId(std::string_view(head["X-Request-Id"]));
    request.request_id = request.client_request_id;
    if (request.request_id.empty() && options_.make_request_id) {
      request.request_id = options_.make_request_id();
    }
    request.authorization = std::string(head[http::field::authorization]);
    if (const auto key = head["X-Api-Key"]; request.authorization.empty() && !key.empty()) {
      request.authorization = absl::StrCat("Bearer ", std::string(key));
    }
    request.deadline_ms = std::string(head["X-Request-Deadline-Ms"]);
    request.anthropic_version = std::string(head["Anthropic-Version"]);
    request.path = RequestPath({head.target().data(), head.target().size()});

    const RouteMatch match = FindRoute(shared_->routes, request.method, request.path);
    route_ = match.route ? match.route->path : "";
    const CorsRequest cors{
        .origin = std::string_view(head[http::field::origin]),
        .method = std::string_view(head[http::field::access_control_request_method]),
        .headers = std::string_view(head[http::field::access_control_request_headers])};
    CallTraits traits{.http_1_0 = head.version() < 11,
                      .keep_alive = head.keep_alive(),
                      .head_only = request.method == "HEAD",
                      .marks = options_.marks,
                      .headers = CorsHeaders(options_.cors_origins, cors)};
    std::optional<HttpReply> refusal;
    if (match.route) {
      refusal = Admit(request, *match.route);
      if (!refusal && match.route->json_body) {
        const std::string fault =
            BodyHeadersFault(std::string_view(head[http::field::content_type]),
                             std::string_view(head[http::field::content_encoding]));
        if (!fault.empty()) refusal = Refusal(request, 415, fault);
      }
    } else if (match.allowed.empty()) {
      refusal = Refusal(request, 404, absl::StrCat("no such path: ", request.path.substr(0, 200)));
    } else if (request.method == "OPTIONS" && !cors.method.empty() && !traits.headers.empty()) {
      refusal = HttpReply{.content_type = "text/plain; charset=utf-8",
                          .headers = PreflightHeaders(cors, match.allowed)};
    } else {
      refusal = Refusal(
          request, 405,
          absl::StrCat("method ", request.method.substr(0, 20), " is not allowed for this path"));
      refusal->headers.emplace_back("Allow", absl::StrJoin(match.allowed, ", "));
    }
    const auto expect = head[http::field::expect];
    if (!refusal && !expect.empty()) {
      if (absl::EqualsIgnoreCase({expect.data(), expect.size()}, "100-continue")) {
        if (!parser.is_done() && !traits.http_1_0 && buffer_.size() == 0) {
          static constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";
          Arm(options_.header_timeout);
          co_await asio::async_write(socket_, asio::buffer(kContinue),
                                     redirect_error(use_awaitable, ec));
          Disarm();
          if (ec || stopped_) co_return false;
        }
      } else {
        refusal = Refusal(request, 417, "the only expectation that can be met is 100-continue");
      }
    }
    if (refusal) {
      // What is left of the body is not read, so the connection cannot go on.
      const bool body_left = !parser.is_done();
      if (body_left) traits.keep_alive = false;
      MakeCall(std::move(request), traits);
      call_->Reply(*std::move(refusal));
      co_return co_await Respond(body_left);
    }

    Arm(options_.body_timeout);
    size_t counted = 0;
    bool too_many = false;
    while (!parser.is_done() && !ec && !too_many) {
      co_await http::async_read_some(socket_, buffer_, parser, redirect_error(use_awaitable, ec));
      const size_t now = parser.get().body().size();
      too_many = (shared_->bodies_bytes += now - counted) > options_.bodies_bytes_max;
      counted = now;
    }
    Disarm();
    if (stopped_ || ec || too_many) {
      shared_->bodies_bytes -= counted;
      if (stopped_) co_return false;
      traits.keep_alive = false;
      if (too_many) {
        HttpReply reply =
            Refusal(request, 503, "too many large requests are being received; try again");
        reply.headers.emplace_back("Retry-After", "1");
        MakeCall(std::move(request), traits);
        call_->Reply(std::move(reply));
        co_return co_await Respond(true);
      }
      co_return co_await RefuseUnread(ec, "body", std::move(request), std::move(traits));
    }
    request.body = std::move(parser.get().body());
    request_bytes_ = request.body.size();
    MakeCall(std::move(request), traits);
    // From here on the handler answers for the body's memory.
    shared_->bodies_bytes -= counted;
    match.route->handler(call_);
    co_return co_await Respond(false);
  }

  // Asks whether the request may come in; what it is refused with if not.
  std::optional<HttpReply> Admit(const HttpRequest& request, const HttpRoute& route) {
    if (!options_.admit) return std::nullopt;
    HttpAdmission admission = options_.admit(request, route);
    lease_ = std::move(admission.lease);
    caller_ = std::move(admission.caller);
    return std::move(admission.refusal);
  }

  HttpReply Refusal(const HttpRequest& request, int status, const std::string& message) {
    HttpReply reply;
    reply.status = status;
    reply.body = options_.error_body ? options_.error_body(request, status, message)
                                     : absl::StrCat(message, "\n");
    if (!options_.error_body) reply.content_type = "text/plain; charset=utf-8";
    return reply;
  }

  // Answers, if that makes sense, a request that could not be read.
  awaitable<bool> RefuseUnread(error_code ec, const char* what, HttpRequest request,
                               CallTraits traits) {
    int status = 400;
    std::string message;
    if (timed_out_) {
      status = 408;
      message = absl::StrCat("the request's ", what, " did not arrive in time");
    } else if (ec == http::error::body_limit) {
      status = 413;
      message = absl::StrCat("the body is over the limit of ", options_.body_bytes_max, " bytes");
    } else if (ec == http::error::header_limit || ec == http::error::buffer_overflow) {
      status = 431;
      message = absl::StrCat("the head is over the limit of ", options_.header_bytes_max, " bytes");
    } else if (ec == http::error::end_of_stream || ec == http::error::partial_message ||
               ec.category() != error_code(http::error::bad_method).category()) {
      co_return false;  // the client has gone
    } else {
      message = absl::StrCat("malformed HTTP request: ", ec.message());
    }
    HttpReply reply = Refusal(request, status, message);
    traits.keep_alive = false;
    MakeCall(std::move(request), std::move(traits));
    call_->Reply(std::move(reply));
    co_return co_await Respond(true);
  }

  void MakeCall(HttpRequest request, CallTraits traits) {
    // Handlers may call from any thread; the session's own members are touched on its thread only.
    auto notify = [weak = weak_from_this(), executor = loop_->context.get_executor()] {
      asio::post(executor, [weak] {
        if (auto self = weak.lock()) self->Notify();
      });
    };
    if (!request.request_id.empty())
      traits.headers.emplace_back("X-Request-Id", request.request_id);
    call_ = std::make_shared<BufferedCall>(std::move(request), std::move(traits), shared_->draining,
                                           std::move(notify));
    if (!caller_.empty()) call_->Note("key", caller_);
    call_->Hold(std::move(lease_));
  }

  // Reads ahead while the answer is made, to see at once when the peer goes away.
  awaitable<void> WatchPeer() {
    while (watching_) {
      error_code ec;
      if (buffer_.size() >= options_.pipelined_bytes_max) {
        gone_ = true;
        break;
      }
      const size_t got = co_await socket_.async_read_some(buffer_.prepare(4096),
                                                          redirect_error(use_awaitable, ec));
      if (ec) {
        if (watching_) gone_ = true;
        break;
      }
      buffer_.commit(got);
    }
    watcher_ended_ = true;
    Notify();
  }

  // Sends the answer of call_ as it is made. False: the connection ends. `unread`: the peer may
  // still be sending.
  awaitable<bool> Respond(bool unread) {
    auto call = call_;
    gone_ = false;
    watching_ = false;
    watcher_ended_ = true;
    if (!call->finished()) {
      watching_ = true;
      watcher_ended_ = false;
      asio::co_spawn(loop_->context, WatchPeer(), asio::detached);
    }
    bool sent = co_await Send(*call);
    if (!sent) call->Close();
    call->Detach();
    watching_ = false;
    error_code ec;
    if (!watcher_ended_) socket_.cancel(ec);
    while (!watcher_ended_) co_await WaitForWork(std::nullopt);
    LogAccess(*call, sent);
    call_ = nullptr;
    request_bytes_ = 0;
    if (!sent || stopped_) co_return false;
    if (unread) {
      co_await Linger();
      co_return false;
    }
    if (!call->keep_alive()) {
      socket_.shutdown(tcp::socket::shutdown_send, ec);
      co_return false;
    }
    co_return true;
  }

  // False: the peer has gone or is too slow.
  awaitable<bool> Send(BufferedCall& call) {
    auto last = Clock::now();
    for (;;) {
      if (stopped_) co_return false;
      if (gone_ && !call.finished()) co_return false;
      BufferedCall::Output output = call.Take();
      size_t done = 0;
      while (done < output.bytes.size()) {
        NotePause();
        if (paused_since_ && Clock::now() - *paused_since_ > options_.slow_reader_timeout) {
          co_return false;
        }
        error_code ec;
        ArmWrite();
        const size_t n = co_await socket_.async_write_some(
            asio::buffer(output.bytes.data() + done, output.bytes.size() - done),
            redirect_error(use_awaitable, ec));
        Disarm();
        if (ec || stopped_ || (gone_ && !call.finished())) co_return false;
        done += n;
        call.Sent(n);
        last = Clock::now();
      }
      if (output.finished) co_return true;
      if (call.pings()) {
        const auto silent = Clock::now() - last;
        if (silent >= options_.ping_interval) {
          call.Ping();
          last = Clock::now();
          continue;
        }
        co_await WaitForWork(options_.ping_interval - silent);
      } else {
        co_await WaitForWork(std::nullopt);
      }
    }
  }

  // Lets the peer read the answer before the connection is reset: closing a socket with unread
  // input would discard it.
  awaitable<void> Linger() {
    error_code ec;
    socket_.shutdown(tcp::socket::shutdown_send, ec);
    buffer_.clear();
    size_t total = 0;
    Arm(std::chrono::seconds(2));
    while (!ec && total < options_.body_bytes_max) {
      total += co_await socket_.async_read_some(buffer_.prepare(64 << 10),
                                                redirect_error(use_awaitable, ec));
    }
    Disarm();
  }

  void LogAccess(const BufferedCall& call, bool sent) {
    if (!options_.on_access) return;
    const HttpRequest& request = call.request();
    options_.on_access({.method = request.method,
                        .path = request.path,
                        .route = route_,
                        .remote = request.remote,
                        .status = sent ? call.status() : 499,
                        .request_bytes = request_bytes_,
                        .response_bytes = call.body_bytes(),
                        .seconds = std::chrono::duration<double>(Clock::now() - started_).count(),
                        .request_id = call.status() != 0 ? call.request_id() : request.request_id,
                        .notes = call.notes()});
  }

  HttpLoop* const loop_;
  HttpShared* const shared_;
  const HttpServerOptions& options_;
  tcp::socket socket_;
  asio::steady_timer deadline_;
  asio::steady_timer wake_;
  boost::beast::flat_buffer buffer_{1 << 20};
  std::string remote_;
  std::string route_;
  std::string caller_;
  std::shared_ptr<void> lease_;  // until the call holds it
  std::shared_ptr<BufferedCall> call_;
  std::optional<Clock::time_point> paused_since_;  // of call_
  Clock::time_point started_;
  size_t request_bytes_ = 0;
  uint64_t deadline_turn_ = 0;
  bool timed_out_ = false;
  bool signalled_ = false;
  bool idle_ = false;
  bool stopped_ = false;
  bool gone_ = false;
  bool watching_ = false;
  bool watcher_ended_ = true;
};

}  // namespace

awaitable<void> ServeConnection(HttpLoop* loop, tcp::socket socket) {
  return Session::Run(std::make_shared<Session>(loop, std::move(socket)));
}

}  // namespace quartet::gateway
