// From the body of POST /v1/messages to a chat request.
#ifndef QUARTET_SERVICES_GATEWAY_ANTHROPIC_REQUEST_H_
#define QUARTET_SERVICES_GATEWAY_ANTHROPIC_REQUEST_H_

#include <variant>

#include "services/gateway/anthropic/message_writer.h"
#include "services/gateway/exchange/api_error.h"
#include "services/gateway/openai/translated_chat.h"
#include "services/gateway/text/value.h"

namespace quartet::gateway {

struct MessagesRequest {
  TranslatedChat chat;
  bool stream = false;
  ThinkingDisplay thinking = ThinkingDisplay::kShown;
};

// What messages are for: an answer, or only the count of their tokens, which needs no limits.
enum class MessagesUse { kAnswer, kCount };

// Refuses, by name, what this server cannot do; unknown fields and all that concerns caching are
// ignored. What chat requests have too is checked when the chat request is prepared. Pure.
//
// * Results of a user's message become tool messages and come before the rest of it. A result that
//   is an error begins with "Error: ".
// * An assistant's thinking becomes reasoning_content. Redacted thinking says nothing and is
//   dropped.
// * A message of the assistant at the end is continued.
// * Thinking that is disabled is not shown, though the model thinks all the same.
std::variant<MessagesRequest, ApiError> TranslateMessages(const text::Value& body, MessagesUse use);

}  // namespace quartet::gateway

#endif  // QUARTET_SERVICES_GATEWAY_ANTHROPIC_REQUEST_H_
