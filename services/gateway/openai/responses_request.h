// From the body of POST /v1/responses to a chat request.
#ifndef QUARTET_SERVICES_GATEWAY_OPENAI_RESPONSES_REQUEST_H_
#define QUARTET_SERVICES_GATEWAY_OPENAI_RESPONSES_REQUEST_H_

#include <string>
#include <variant>

#include "services/gateway/exchange/api_error.h"
#include "services/gateway/openai/translated_chat.h"
#include "services/gateway/text/value.h"

namespace quartet::gateway {

struct ResponsesRequest {
  TranslatedChat chat;
  bool stream = false;
  // Fields of the request as its response repeats them, for example "instructions".
  text::Value::Entries repeated;
};

// Refuses, by name, what this server cannot do, above all what would need stored responses; unknown
// fields are ignored. What chat requests have too is checked when the chat request is prepared.
// Pure.
//
// Items of the assistant in a row (reasoning, messages, function calls) make one message, as they
// did when the model wrote them.
std::variant<ResponsesRequest, ApiError> TranslateResponses(const text::Value& body);

}  // namespace quartet::gateway

#endif  // QUARTET_SERVICES_GATEWAY_OPENAI_RESPONSES_REQUEST_H_
