// What went wrong with a request, before it is put into the words of an API.
#ifndef QUARTET_SERVICES_GATEWAY_EXCHANGE_API_ERROR_H_
#define QUARTET_SERVICES_GATEWAY_EXCHANGE_API_ERROR_H_

#include <string>

#include "absl/status/status.h"
#include "services/gateway/access/key_gate.h"
#include "services/gateway/http/http_call.h"

namespace quartet::gateway {

struct ApiError {
  int status = 400;
  std::string message;
  std::string param;  // the field, "messages[2].content[0]"; empty: null
  std::string code;   // empty: null
  int retry_after_s = 0;
};

// The message as it may go to a client: cut if it is long, and well-formed UTF-8.
std::string ClientMessage(const ApiError& error);
// A reply with the error's status and Retry-After.
HttpReply ErrorReplyWith(const ApiError& error, std::string body);
// What an error of the engine means to a client. `admitted`: the engine had begun to work.
ApiError FromEngineStatus(const absl::Status& status, bool admitted);
// What the gate's refusal means to a client.
ApiError FromKeyRefusal(const KeyRefusal& refusal);
// Says nothing about addresses inside: that is for operators.
ApiError NotReadyError();

}  // namespace quartet::gateway

#endif  // QUARTET_SERVICES_GATEWAY_EXCHANGE_API_ERROR_H_
