#include "services/gateway/openai/api_error.h"

#include "absl/strings/str_cat.h"
#include "services/gateway/text/json.h"

namespace quartet::gateway {
namespace {

void AppendNullable(std::string_view name, const std::string& value, std::string* out) {
  absl::StrAppend(out, ",\"", std::string(name), "\":");
  if (value.empty()) {
    *out += "null";
  } else {
    text::AppendJsonString(value, out);
  }
}

}  // namespace

std::string_view ApiErrorType(int status) {
  switch (status) {
    case 408:
    case 504:
      return "timeout";
    case 429:
      return "rate_limit_error";
    case 500:
      return "server_error";
    case 503:
      return "unavailable_error";
    default:
      return "invalid_request_error";
  }
}

std::string ApiErrorJson(const ApiError& error) {
  std::string out = "{\"error\":{\"message\":";
  text::AppendJsonString(ClientMessage(error), &out);
  out += ",\"type\":\"";
  out += ApiErrorType(error.status);
  out += '"';
  AppendNullable("param", error.param, &out);
  AppendNullable("code", error.code, &out);
  out += "}}";
  return out;
}

HttpReply ApiErrorReply(const ApiError& error) {
  return ErrorReplyWith(error, ApiErrorJson(error));
}

}  // namespace quartet::gateway
