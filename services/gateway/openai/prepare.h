// From a request body to a plan for the engine: everything that costs time, done on the text pool.
#ifndef QUARTET_SERVICES_GATEWAY_OPENAI_PREPARE_H_
#define QUARTET_SERVICES_GATEWAY_OPENAI_PREPARE_H_

#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "services/gateway/exchange/api_answer.h"
#include "services/gateway/openai/api_error.h"
#include "services/gateway/openai/request.h"
#include "services/gateway/routing/generation.h"
#include "services/gateway/text/model_text.h"

namespace quartet::gateway {

// How the answer is to look.
struct AnswerStyle {
  bool chat = false;
  bool stream = false;
  bool include_usage = false;
  bool continuous_usage_stats = false;
  bool return_token_ids = false;
  bool include_reasoning = true;
  bool echo = false;
  bool logprobs = false;
  bool prompt_logprobs = false;
  uint32_t choices_per_prompt = 1;
};

struct Prepared {
  GenerationPlan plan;  // its request_id is what the client gave, often empty
  AnswerStyle style;
  std::vector<std::string> echo_texts;           // of each choice, with echo
  std::vector<std::vector<int32_t>> prompt_ids;  // of each choice, with return_token_ids
};

// Pure and thread safe, as all functions here.
std::variant<text::Value, ApiError> ParseBody(std::string_view body);
RequestLimits LimitsOf(const PrepareContext& context);
// Pictures, sounds and films need what this server does not have yet, and must not be dropped
// without a word.
std::optional<ApiError> RefuseMedia(const text::Value& messages);

std::variant<Prepared, ApiError> PrepareChat(std::string_view body, const PrepareContext& context);
std::variant<Prepared, ApiError> PrepareCompletion(std::string_view body,
                                                   const PrepareContext& context);
// The same from a body that is parsed already, and from checked fields. `tokens_default` is what is
// generated at most if the fields do not say.
std::variant<Prepared, ApiError> PrepareChatValue(const text::Value& body,
                                                  const PrepareContext& context);
std::variant<Prepared, ApiError> PrepareCompletionFields(CompletionFields fields,
                                                         const PrepareContext& context,
                                                         uint32_t tokens_default);

// How the text that the model writes to a chat request becomes its answer.
text::AnswerTextOptions ChatTextOptions(const text::Value& body, const ChatFields& fields,
                                        bool opens_think);

// The error for a prompt that leaves too little room: `requested` tokens of output, 0 if the client
// did not say.
ApiError ContextLengthError(std::string_view param, uint64_t prompt_tokens, uint64_t requested,
                            uint32_t max_model_len);

}  // namespace quartet::gateway

#endif  // QUARTET_SERVICES_GATEWAY_OPENAI_PREPARE_H_
