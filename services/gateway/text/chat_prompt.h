// From the JSON body of a chat request to the ids of its prompt.
#ifndef QUARTET_SERVICES_GATEWAY_TEXT_CHAT_PROMPT_H_
#define QUARTET_SERVICES_GATEWAY_TEXT_CHAT_PROMPT_H_

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "services/gateway/text/model_text.h"
#include "services/gateway/text/value.h"

namespace quartet::text {

// Why a request is refused (HTTP status 400, type invalid_request_error).
struct RequestError {
  std::string message;
  // The field, for example "messages[2].content[0]"; empty if it is none in particular.
  std::string param;
  // For example "context_length_exceeded"; often empty.
  std::string code;
};

struct ChatPrompt {
  // As rendered; text that clients typed is restored, so this can be shown (and may spell more
  // control tokens than `ids` holds).
  std::string text;
  std::vector<int32_t> ids;
  // Of those, the system prompt and the tools, with which other conversations begin too.
  uint32_t system_tokens = 0;
  // The prompt ends inside a reasoning block: the model's output starts as reasoning.
  bool opens_think = false;
};

// A prompt before it is encoded.
struct RenderedChat {
  // As the template writes it: control tokens that clients typed are markers in it.
  std::string text;
  bool opens_think = false;
};

struct ChatPromptOptions {
  // Encodes control tokens in clients' text as control tokens, as most servers do.
  bool trust_content_tokens = false;
  // Tool calls in the history whose arguments are not a JSON object count as calls without
  // arguments, instead of errors.
  bool lenient_tool_history = false;
  // Tokens that prompt and output may have together; 0: no check.
  int64_t context_tokens = 0;
  // Room that the output needs at least.
  int64_t output_tokens_min = 1;
  TemplateLimits limits;
};

// The steps between a body and a template: roles, content, reasoning, tool-call arguments,
// variables. The result is an object of template variables with "messages", "tools" and so on.
// Exposed for tests.
struct NormalisedChat {
  Value variables;
  // continue_final_message: the prompt is cut at kCutMarker, which the last message holds.
  bool continues = false;
  // ... and that message has reasoning only.
  bool continues_reasoning = false;
};
std::variant<NormalisedChat, RequestError> NormaliseChatRequest(const Value& body,
                                                                const ControlTokenEscaper& escaper,
                                                                const ChatPromptOptions& options);

// Normalises and renders; the escaper's tokens are those that clients may not forge. Pure.
std::variant<RenderedChat, RequestError> RenderChat(const ChatTemplate& chat_template,
                                                    const ControlTokenEscaper& escaper,
                                                    const Value& body,
                                                    const ChatPromptOptions& options = {});

// Normalises, renders, encodes and checks the length. Pure; may be called from any thread; belongs
// off the event loop.
std::variant<ChatPrompt, RequestError> BuildChatPrompt(const ModelText& model, const Value& body,
                                                       const ChatPromptOptions& options = {});

}  // namespace quartet::text

#endif  // QUARTET_SERVICES_GATEWAY_TEXT_CHAT_PROMPT_H_
