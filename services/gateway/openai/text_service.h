// Text and ids without the engine: /tokenize, /detokenize, /apply-template, and /version.
#ifndef QUARTET_SERVICES_GATEWAY_OPENAI_TEXT_SERVICE_H_
#define QUARTET_SERVICES_GATEWAY_OPENAI_TEXT_SERVICE_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "services/gateway/http/http_server.h"
#include "services/gateway/openai/api_error.h"
#include "services/gateway/routing/gateway_core.h"
#include "services/gateway/text/model_text.h"

namespace quartet::gateway {

struct TextContext {
  const text::ModelText* model = nullptr;
  std::string served_model_name;
  uint32_t max_model_len = 0;  // tokens; it bounds what is worth encoding
  bool trust_content_tokens = false;
  bool any_model = false;  // requests may name any
};

// Each makes the body of an answer from the body of a request, with the same prompt builder and
// tokenizer that answer chats. Pure and thread safe.

// {"prompt"} or {"messages", ...} to {"count", "max_model_len", "tokens", "token_strs"?}.
std::variant<std::string, ApiError> TokenizeText(std::string_view body, const TextContext& context);
// {"tokens"} to {"prompt"}.
std::variant<std::string, ApiError> DetokenizeIds(std::string_view body,
                                                  const TextContext& context);
// {"messages", ...} to {"prompt"}.
std::variant<std::string, ApiError> ApplyTemplate(std::string_view body,
                                                  const TextContext& context);

// The routes; `core` must outlive the server that they are given to. They need the model's text but
// no engine, and work on the text pool.
std::vector<HttpRoute> TextRoutes(GatewayCore* core);

}  // namespace quartet::gateway

#endif  // QUARTET_SERVICES_GATEWAY_OPENAI_TEXT_SERVICE_H_
