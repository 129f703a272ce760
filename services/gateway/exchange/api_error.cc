#include "services/gateway/exchange/api_error.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "services/gateway/routing/retry_after.h"
#include "services/gateway/text/utf8.h"

namespace quartet::gateway {
namespace {

constexpr size_t kMessageBytesMax = 1000;

}  // namespace

std::string ClientMessage(const ApiError& error) {
  return text::ReplaceIllFormedUtf8(error.message.substr(0, kMessageBytesMax));
}

HttpReply ErrorReplyWith(const ApiError& error, std::string body) {
  HttpReply reply;
  reply.status = error.status;
  if (error.retry_after_s > 0)
    reply.headers.emplace_back("Retry-After", absl::StrCat(error.retry_after_s));
  reply.body = std::move(body);
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
    case absl::StatusCode::kFailedPrecondition:
      if (!admitted) {
        return {.status = 503,
                .message = "the engine cannot hold answers to a form at the moment; try again",
                .retry_after_s = 2};
      }
      return {.status = 500, .message = "the answer left the form that was asked for"};
    case absl::StatusCode::kAborted:
      return {.status = 500,
              .message = "the engine lost a part of itself while it worked on the request"};
    default:
      // What went wrong inside is for the log.
      return {.status = 500, .message = "internal error"};
  }
}

ApiError FromKeyRefusal(const KeyRefusal& refusal) {
  if (refusal.reason != KeyRefusal::Reason::kLimit) {
    return {.status = 401, .message = refusal.message, .code = "invalid_api_key"};
  }
  return {.status = 429,
          .message = refusal.message,
          .code = "rate_limit_exceeded",
          .retry_after_s = static_cast<int>(
              absl::ToInt64Seconds(absl::Ceil(refusal.retry_after, absl::Seconds(1))))};
}

ApiError NotReadyError() {
  return {
      .status = 503,
      .message = "the server is starting, shutting down or has lost its engine; /readyz says which",
      .retry_after_s = 2};
}

}  // namespace quartet::gateway
