#ifndef QUARTET_SERVICES_CLI_HTTP_CLIENT_H_
#define QUARTET_SERVICES_CLI_HTTP_CLIENT_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace quartet::cli {

struct Url {
  std::string host;
  uint16_t port = 80;
  std::string path;  // without a slash at its end
};

// "http://host[:port][/path]". Errors say what would be right; https is refused (a proxy's work).
absl::StatusOr<Url> ParseUrl(const std::string& text);

struct HttpResponse {
  int status = 0;
  std::string body;
};

// One keep-alive connection; opened by the first request and again when the server closed it.
// Blocking; one thread at a time. Errors are kUnavailable (nobody there, or the connection broke)
// and name the address.
class HttpClient {
 public:
  virtual ~HttpClient() = default;
  virtual absl::StatusOr<HttpResponse> Get(const std::string& path) = 0;
  // Sends `body` as JSON. With status 200, each piece of the answer's body goes to `on_bytes` as it
  // comes and the returned body is empty; with another status, the body is returned.
  virtual absl::StatusOr<HttpResponse> PostStreaming(
      const std::string& path, const std::string& body,
      const std::function<void(std::string_view)>& on_bytes) = 0;
};

// `api_key` goes with every request; empty: none does.
std::unique_ptr<HttpClient> MakeHttpClient(const Url& url, const std::string& api_key);

// QUARTET_API_KEY of the environment; a flag could be read by everybody on the machine.
std::string ApiKeyOfEnvironment();

// What an answer with an error status says: its OpenAI error message if it has one, else its body.
std::string ErrorText(const HttpResponse& response);

}  // namespace quartet::cli

#endif  // QUARTET_SERVICES_CLI_HTTP_CLIENT_H_
