#include "services/cli/http_client.h"

#include <array>
#include <cstddef>
#include <cstdlib>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "boost/asio/connect.hpp"
#include "boost/asio/io_context.hpp"
#include "boost/asio/ip/tcp.hpp"
#include "boost/beast/core.hpp"
#include "boost/beast/http.hpp"
#include "boost/json.hpp"
#include "services/cli/terminal.h"
#include "services/common/process.h"

namespace quartet::cli {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
namespace json = boost::json;
using asio::ip::tcp;

constexpr size_t kPieceBytes = 16 * 1024;
constexpr uint64_t kMaxBodyBytes = uint64_t{1} << 30;
constexpr size_t kShownBodyBytes = 300;

class BeastHttpClient final : public HttpClient {
 public:
  BeastHttpClient(const Url& url, const std::string& api_key) : url_(url), api_key_(api_key) {}

  absl::StatusOr<HttpResponse> Get(const std::string& path) override {
    std::string body;
    absl::StatusOr<HttpResponse> response =
        Send(http::verb::get, path, "", [&](auto piece) { body.append(piece); });
    if (response.ok() && response->status == 200) response->body = std::move(body);
    return response;
  }

  absl::StatusOr<HttpResponse> PostStreaming(
      const std::string& path, const std::string& body,
      const std::function<void(std::string_view)>& on_bytes) override {
    return Send(http::verb::post, path, body, on_bytes);
  }

 private:
  absl::Status Broken(std::string_view doing, const boost::system::error_code& error) {
    socket_.reset();
    return absl::UnavailableError(
        absl::StrCat(std::string(doing), " ", url_.host, ":", url_.port, ": ", error.message()));
  }

  absl::Status Connect() {
    boost::system::error_code error;
    tcp::resolver resolver(context_);
    const auto found = resolver.resolve(url_.host, std::to_string(url_.port), error);
    if (error) return Broken("cannot resolve", error);
    socket_.emplace(context_);
    buffer_.clear();
    asio::connect(*socket_, found, error);
    if (error) return Broken("cannot connect to", error);
    socket_->set_option(tcp::no_delay(true), error);
    return absl::OkStatus();
  }

  absl::StatusOr<HttpResponse> Send(http::verb verb, const std::string& path,
                                    const std::string& body,
                                    const std::function<void(std::string_view)>& on_bytes) {
    http::request<http::string_body> request(verb, url_.path + path, 11);
    request.set(http::field::host, absl::StrCat(url_.host, ":", url_.port));
    request.set(http::field::user_agent, "quartet");
    if (!api_key_.empty()) {
      request.set(http::field::authorization, absl::StrCat("Bearer ", api_key_));
    }
    if (verb == http::verb::post) {
      request.set(http::field::content_type, "application/json");
      request.body() = body;
      request.prepare_payload();
    }
    const bool reused = socket_.has_value();
    if (!reused) {
      const absl::Status connected = Connect();
      if (!connected.ok()) return connected;
    }
    boost::system::error_code error;
    http::response_parser<http::buffer_body> parser;
    parser.body_limit(kMaxBodyBytes);
    http::write(*socket_, request, error);
    if (!error) http::read_header(*socket_, buffer_, parser, error);
    if (error && reused && !parser.got_some()) {
      // The server closed an idle connection; nothing of this request was answered.
      socket_.reset();
      return Send(verb, path, body, on_bytes);
    }
    if (error) return Broken("no answer from", error);

    HttpResponse response;
    response.status = parser.get().result_int();
    std::array<char, kPieceBytes> piece;
    while (!parser.is_done()) {
      parser.get().body().data = piece.data();
      parser.get().body().size = piece.size();
      http::read_some(*socket_, buffer_, parser, error);
      if (error == http::error::need_buffer) error = {};
      const std::string_view got(piece.data(), piece.size() - parser.get().body().size);
      if (response.status == 200) {
        if (!got.empty()) on_bytes(got);
      } else {
        response.body.append(got);
      }
      if (error) return Broken("the connection broke to", error);
    }
    if (!parser.get().keep_alive()) socket_.reset();
    return response;
  }

  const Url url_;
  const std::string api_key_;
  asio::io_context context_;
  std::optional<tcp::socket> socket_;
  beast::flat_buffer buffer_;
};

}  // namespace

absl::StatusOr<Url> ParseUrl(const std::string& text) {
  constexpr std::string_view kScheme = "http://";
  const auto bad = [&text](std::string_view why) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", text, "': ", std::string(why), "; right would be http://127.0.0.1:8000"));
  };
  if (absl::StartsWith(text, "https://")) return bad("https is not spoken here");
  if (!absl::StartsWith(text, {kScheme.data(), kScheme.size()})) return bad("it is no http:// URL");
  std::string rest = text.substr(kScheme.size());
  Url url;
  const size_t slash = rest.find('/');
  if (slash != std::string::npos) {
    url.path = rest.substr(slash);
    rest = rest.substr(0, slash);
  }
  while (!url.path.empty() && url.path.back() == '/') url.path.pop_back();
  if (url.path.find_first_of(" \r\n?#") != std::string::npos) {
    return bad("the path has a character that it cannot have");
  }
  const bool has_port =
      rest.find(':', rest.empty() || rest[0] != '[' ? 0 : rest.find(']')) != std::string::npos;
  const absl::StatusOr<HostPort> where = ParseHostPort(has_port ? rest : rest + ":80");
  if (!where.ok()) return bad("host or port is wrong");
  url.host = where->host;
  url.port = where->port;
  return url;
}

std::unique_ptr<HttpClient> MakeHttpClient(const Url& url, const std::string& api_key) {
  return std::make_unique<BeastHttpClient>(url, api_key);
}

std::string ApiKeyOfEnvironment() {
  const char* key = std::getenv("QUARTET_API_KEY");
  return key != nullptr ? key : "";
}

std::string ErrorText(const HttpResponse& response) {
  json::error_code error;
  const json::value value = json::parse(response.body, error);
  if (!error && value.is_object()) {
    const json::value* inner = value.get_object().if_contains("error");
    const json::value* message = inner != nullptr && inner->is_object()
                                     ? inner->get_object().if_contains("message")
                                     : nullptr;
    if (message != nullptr && message->is_string()) {
      return absl::StrCat("HTTP ", response.status, ": ", Printable(message->get_string().c_str()));
    }
  }
  return absl::StrCat("HTTP ", response.status, ": ",
                      Printable(response.body.substr(0, kShownBodyBytes)));
}

}  // namespace quartet::cli
