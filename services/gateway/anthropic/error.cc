#include "services/gateway/anthropic/error.h"

#include "absl/strings/str_cat.h"
#include "services/gateway/text/json.h"

namespace quartet::gateway {
namespace {

constexpr int kOverloaded = 529;

}  // namespace

bool SpeaksAnthropic(const HttpRequest& request) {
  return !request.anthropic_version.empty();
}

std::string_view AnthropicErrorType(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 408:
    case 504:
      return "timeout_error";
    case 413:
      return "request_too_large";
    case 429:
      return "rate_limit_error";
    case 503:
    case kOverloaded:
      return "overloaded_error";
    default:
      return status >= 500 ? "api_error" : "invalid_request_error";
  }
}

std::string AnthropicErrorJson(const ApiError& error) {
  ApiError told = error;
  if (!error.param.empty() && !error.message.starts_with(error.param)) {
    told.message = absl::StrCat(error.param, ": ", error.message);
  }
  std::string out = "{\"type\":\"error\",\"error\":{\"type\":\"";
  out += AnthropicErrorType(error.status);
  out += "\",\"message\":";
  text::AppendJsonString(ClientMessage(told), &out);
  out += "}}";
  return out;
}

HttpReply AnthropicErrorReply(ApiError error) {
  if (error.status == 503) error.status = kOverloaded;
  return ErrorReplyWith(error, AnthropicErrorJson(error));
}

}  // namespace quartet::gateway
