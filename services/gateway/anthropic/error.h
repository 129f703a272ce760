// Errors as Anthropic's API words them.
#ifndef QUARTET_SERVICES_GATEWAY_ANTHROPIC_ERROR_H_
#define QUARTET_SERVICES_GATEWAY_ANTHROPIC_ERROR_H_

#include <string>
#include <string_view>

#include "services/gateway/exchange/api_error.h"
#include "services/gateway/http/http_call.h"

namespace quartet::gateway {

// Whether the client speaks that API on a path that others have too: its clients send the header
// Anthropic-Version always.
bool SpeaksAnthropic(const HttpRequest& request);

// The error type that belongs to an HTTP status of that API.
std::string_view AnthropicErrorType(int status);
// {"type":"error","error":{"type","message"}} on one line. The shape has no place for the field, so
// the message begins with it.
std::string AnthropicErrorJson(const ApiError& error);
// Where others say 503, this API says 529.
HttpReply AnthropicErrorReply(ApiError error);

}  // namespace quartet::gateway

#endif  // QUARTET_SERVICES_GATEWAY_ANTHROPIC_ERROR_H_
