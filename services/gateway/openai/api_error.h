// Errors as OpenAI's API words them.
#ifndef QUARTET_SERVICES_GATEWAY_OPENAI_API_ERROR_H_
#define QUARTET_SERVICES_GATEWAY_OPENAI_API_ERROR_H_

#include <string>
#include <string_view>

#include "services/gateway/exchange/api_error.h"
#include "services/gateway/http/http_call.h"

namespace quartet::gateway {

// The error type that belongs to an HTTP status.
std::string_view ApiErrorType(int status);
// {"error":{"message","type","param","code"}} on one line. Long messages are cut.
std::string ApiErrorJson(const ApiError& error);
HttpReply ApiErrorReply(const ApiError& error);

}  // namespace quartet::gateway

#endif  // QUARTET_SERVICES_GATEWAY_OPENAI_API_ERROR_H_
