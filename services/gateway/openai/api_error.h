// Errors as OpenAI's API words them.
#ifndef QUARTET_SERVICES_GATEWAY_OPENAI_API_ERROR_H_
#define QUARTET_SERVICES_GATEWAY_OPENAI_API_ERROR_H_

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "services/gateway/http/http_call.h"

namespace quartet::gateway {

struct ApiError {
  int status = 400;
  std::string message;
  std::string param;  // the field, "messages[2].content[0]"; empty: null
  std::string code;   // empty: null
  int retry_after_s = 0;
};

// The error type that belongs to an HTTP status.
std::string_view ApiErrorType(int status);
// {"error":{"message","type","param","code"}} on one line. Long messages are cut.
std::string ApiErrorJson(const ApiError& error);
HttpReply ApiErrorReply(const ApiError& error);
// What an error of the engine means to a client. `admitted`: the engine had begun to work.
ApiError FromEngineStatus(const absl::Status& status, bool admitted);
// Says nothing about addresses inside: that is for operators.
ApiError NotReadyError();

}  // namespace quartet::gateway

#endif  // QUARTET_SERVICES_GATEWAY_OPENAI_API_ERROR_H_
