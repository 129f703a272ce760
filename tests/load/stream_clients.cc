#include "tests/load/stream_clients.h"

#include <atomic>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/empty_body.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/json.hpp>
#include <string_view>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/cli/sse_reader.h"

namespace quartet::load {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
namespace json = boost::json;
using asio::awaitable;
using asio::redirect_error;
using asio::use_awaitable;
using boost::system::error_code;
using tcp = asio::ip::tcp;

constexpr int kSlowReceiveBufferBytes = 4 << 10;
constexpr size_t kReadBytesMax = 16 << 10;
constexpr uint32_t kSlowTopLogprobs = 20;

// Checks one answer against the feed, event by event.
class AnswerCheck {
 public:
  AnswerCheck(const TokenFeed* feed, size_t stream, StreamReport* report)
      : feed_(feed), stream_(stream), report_(report) {}

  // Calls `on_token` with the index of each token whose text is complete now.
  template <typename OnToken>
  void Take(const cli::SseEvent& event, const OnToken& on_token) {
    if (!report_->fault.empty()) return;
    if (event.data == "[DONE]") {
      report_->whole = finished_ && report_->tokens == feed_->tokens(stream_);
      if (!report_->whole) {
        report_->fault = absl::StrCat("[DONE] came behind ", report_->tokens, " of ",
                                      feed_->tokens(stream_), " tokens");
      }
      return;
    }
    error_code error;
    const json::value chunk = json::parse(event.data, error);
    const json::value* choice = error ? nullptr : chunk.find_pointer("/choices/0", error);
    if (!choice) {
      report_->fault = absl::StrCat("an event is no chunk of a chat: ", event.data.substr(0, 200));
      return;
    }
    for (const char* part : {"/delta/content", "/delta/reasoning_content"}) {
      const json::value* text = choice->find_pointer(part, error);
      if (text && text->is_string()) {
        TakeText({text->get_string().data(), text->get_string().size()}, on_token);
      }
    }
    const json::value* reason = choice->find_pointer("/finish_reason", error);
    finished_ = finished_ || (reason && reason->is_string() && reason->get_string() == "length");
  }

 private:
  template <typename OnToken>
  void TakeText(std::string_view text, const OnToken& on_token) {
    while (!text.empty()) {
      if (report_->tokens == feed_->tokens(stream_)) {
        report_->fault =
            absl::StrCat("text behind the last token: ", std::string(text.substr(0, 40)));
        return;
      }
      const std::string_view rest =
          std::string_view(feed_->word(stream_, report_->tokens).text).substr(shown_);
      const size_t length = std::min(rest.size(), text.size());
      if (text.substr(0, length) != rest.substr(0, length)) {
        report_->fault =
            absl::StrCat("token ", report_->tokens, " should be '", std::string(rest),
                         "' and the text goes on with '", std::string(text.substr(0, 40)), "'");
        return;
      }
      text.remove_prefix(length);
      shown_ += length;
      if (length < rest.size()) return;
      shown_ = 0;
      on_token(report_->tokens++);
    }
  }

  const TokenFeed* const feed_;
  const size_t stream_;
  StreamReport* const report_;
  size_t shown_ = 0;  // of the next token's text
  bool finished_ = false;
};

class Clients final : public StreamClients {
 public:
  Clients(ClientsOptions options, const TokenFeed* feed)
      : options_(std::move(options)),
        feed_(feed),
        reports_(feed->streams()),
        open_slow_(options_.slow_streams),
        open_others_(feed->streams() - options_.slow_streams) {
    const size_t colon = options_.address.rfind(':');
    gateway_ = {asio::ip::make_address(options_.address.substr(0, colon)),
                static_cast<uint16_t>(std::stoi(options_.address.substr(colon + 1)))};
    read_on_.expires_at(Clock::time_point::max());
    for (size_t i = 0; i < options_.opening_max; ++i) OpenNext();
    thread_ = std::thread([this] { context_.run(); });
  }

  ~Clients() override {
    context_.stop();
    thread_.join();
  }

  size_t opened() const override { return opened_; }
  size_t open_slow() const override { return open_slow_; }
  size_t open_others() const override { return open_others_; }
  void ReadOn() override {
    asio::post(context_, [this] {
      reading_on_ = true;
      read_on_.cancel();
    });
  }
  const std::vector<StreamReport>& reports() const override { return reports_; }
  const std::vector<double>& latencies_ms() const override { return latencies_ms_; }
  Clock::time_point last_token_at() const override { return last_token_at_; }

 private:
  bool IsSlow(size_t stream) const { return stream < options_.slow_streams; }

  void OpenNext() {
    if (next_ < feed_->streams()) asio::co_spawn(context_, Run(next_++), asio::detached);
  }

  std::string Request(size_t stream) const {
    const std::string body = absl::StrCat(
        R"({"model":")", options_.model,
        R"(","stream":true,"messages":[{"role":"user","content":"hello"}],"max_tokens":)",
        feed_->tokens(stream),
        IsSlow(stream) ? absl::StrCat(R"(,"logprobs":true,"top_logprobs":)", kSlowTopLogprobs) : "",
        "}");
    return absl::StrCat("POST /v1/chat/completions HTTP/1.1\r\nHost: ", options_.address,
                        "\r\nContent-Type: application/json\r\nX-Request-Id: ", RequestName(stream),
                        "\r\nConnection: close\r\nContent-Length: ", body.size(), "\r\n\r\n", body);
  }

  awaitable<void> Run(size_t stream) {
    StreamReport& report = reports_[stream];
    error_code ec;
    bool begun = false;
    co_await Read(stream, &report, &begun, &ec);
    if (ec && !report.whole) report.error = ec.message();
    if (!begun) {
      if (report.fault.empty()) report.fault = "the answer never began";
      OpenNext();
    }
    --(IsSlow(stream) ? open_slow_ : open_others_);
  }

  awaitable<void> Read(size_t stream, StreamReport* report, bool* begun, error_code* ec) {
    tcp::socket socket(context_);
    socket.open(gateway_.protocol(), *ec);
    if (!*ec && IsSlow(stream)) {
      socket.set_option(asio::socket_base::receive_buffer_size(kSlowReceiveBufferBytes), *ec);
    }
    if (!*ec) co_await socket.async_connect(gateway_, redirect_error(use_awaitable, *ec));
    if (*ec) co_return;
    const std::string request = Request(stream);
    co_await asio::async_write(socket, asio::buffer(request), redirect_error(use_awaitable, *ec));

    AnswerCheck check(feed_, stream, report);
    cli::SseReader events;
    const auto on_token = [&](uint32_t index) {
      if (IsSlow(stream)) return;
      last_token_at_ = Clock::now();
      latencies_ms_.push_back(
          std::chrono::duration<double, std::milli>(last_token_at_ - feed_->SaidAt(stream, index))
              .count());
    };
    const auto on_event = [&](const cli::SseEvent& event) { check.Take(event, on_token); };
    auto on_chunk = [&](uint64_t, boost::core::string_view bytes, error_code&) {
      events.Feed(std::string_view(bytes.data(), bytes.size()), on_event);
      return bytes.size();
    };
    boost::beast::flat_buffer buffer(kReadBytesMax);
    http::response_parser<http::empty_body> parser;
    parser.body_limit(boost::none);
    parser.on_chunk_body(on_chunk);
    if (!*ec) {
      co_await http::async_read_header(socket, buffer, parser, redirect_error(use_awaitable, *ec));
    }
    if (*ec) co_return;
    if (parser.get().result_int() != 200 || !parser.chunked()) {
      report->fault = absl::StrCat("the answer's status is ", parser.get().result_int(),
                                   parser.chunked() ? "" : ", and it is no stream");
      co_return;
    }
    *begun = true;
    ++opened_;
    OpenNext();
    if (IsSlow(stream) && !reading_on_) {
      error_code cancelled;
      co_await read_on_.async_wait(redirect_error(use_awaitable, cancelled));
    }
    while (!*ec && !parser.is_done()) {
      co_await http::async_read_some(socket, buffer, parser, redirect_error(use_awaitable, *ec));
    }
  }

  const ClientsOptions options_;
  const TokenFeed* const feed_;
  tcp::endpoint gateway_;

  // Of the thread, until all streams have ended.
  std::vector<StreamReport> reports_;
  std::vector<double> latencies_ms_;
  Clock::time_point last_token_at_;
  size_t next_ = 0;
  bool reading_on_ = false;

  std::atomic<size_t> opened_{0};
  std::atomic<size_t> open_slow_;
  std::atomic<size_t> open_others_;

  asio::io_context context_{1};
  asio::steady_timer read_on_{context_};
  std::thread thread_;
};

}  // namespace

std::unique_ptr<StreamClients> StreamClients::Start(ClientsOptions options, const TokenFeed* feed) {
  return std::make_unique<Clients>(std::move(options), feed);
}

}  // namespace quartet::load
