#include "services/gateway/openai/api_error.h"

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "services/gateway/routing/retry_after.h"
#include "services/gateway/text/json.h"
#include "services/gateway/text/utf8.h"

namespace quartet::gateway {
namespace {

constexpr size_t kMessageBytesMax = 1000;

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
    case 401:
      return "authentication_error";
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
  std::string message = text::ReplaceIllFormedUtf8(error.message.substr(0, kMessageBytesMax));
  std::string out = "{\"error\":{\"message\":";
  text::AppendJsonString(message, &out);
  out += ",\"type\":\"";
  out += ApiErrorType(error.status);
  out += '"';
  AppendNullable("param", error.param, &out);
  AppendNullable("code", error.code, &out);
  out += "}}";
  return out;
}

HttpReply ApiErrorReply(const ApiError& error) {
  HttpReply reply;
  reply.status = error.status;
  if (error.retry_after_s > 0)
    reply.headers.emplace_back("Retry-After", absl::StrCat(error.retry_after_s));
  reply.body = ApiErrorJson(error);
  return reply;
}

ApiError FromEngineStatus(const absl::Status& status, bool admitted) {
  const std::string text(status.message());
  switch (status.code()) {
    case absl::StatusCode::kResourceExhausted: {
      const absl::Duration wait = RetryAfter(status).value_or(absl::Seconds(1));
      return {.status = 429,
              .message = absl::StrCat("the server is busy: ", text),
              .retry_after_s =
                  static_cast<int>(absl::ToInt64Seconds(absl::Ceil(wait, absl::Seconds(1))))};
    }
    case absl::StatusCode::kDeadlineExceeded:
      return {.status = 504, .message = absl::StrCat("the request took too long: ", text)};
    case absl::StatusCode::kInvalidArgument:
      return {.status = 400, .message = text};
    case absl::StatusCode::kUnavailable:
      if (!admitted) {
        return {.status = 503,
                .message = "the engine is not available at the moment; try again",
                .retry_after_s = 2};
      }
      return {.status = 500, .message = "the engine was lost while it worked on the request"};
    case absl::StatusCode::kAborted:
      return {.status = 500,
              .message = "the engine lost a part of itself while it worked on the request"};
    default:
      // What went wrong inside is for the log.
      return {.status = 500, .message = "internal error"};
  }
}

ApiError NotReadyError() {
  return {
      .status = 503,
      .message = "the server is starting, shutting down or has lost its engine; /readyz says which",
      .retry_after_s = 2};
}

}  // namespace quartet::gateway
