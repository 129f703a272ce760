// What a client asks for: the fields of a request body, checked.
#ifndef QUARTET_SERVICES_GATEWAY_OPENAI_REQUEST_H_
#define QUARTET_SERVICES_GATEWAY_OPENAI_REQUEST_H_

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "services/gateway/openai/answer_form.h"
#include "services/gateway/openai/api_error.h"
#include "services/gateway/openai/fields.h"
#include "services/gateway/routing/engine_client.h"
#include "services/gateway/routing/generation.h"
#include "services/gateway/text/end_tokens.h"
#include "services/gateway/text/value.h"

namespace quartet::gateway {

// What the checks need to know about the server.
struct RequestLimits {
  std::string served_model_name;
  bool any_model = false;  // requests may name any
  int32_t vocab_size = 0;
};

inline constexpr size_t kPromptsMax = 128;  // of one completion request
inline constexpr size_t kChoicesMax = 128;  // of one request
inline constexpr size_t kStopStringsMax = 16;
inline constexpr size_t kStopStringBytesMax = 1024;

struct CommonFields {
  bool stream = false;
  bool include_usage = false;
  bool continuous_usage_stats = false;
  std::optional<int64_t> max_tokens;
  std::optional<double> temperature;
  std::optional<double> top_p;
  std::optional<int64_t> top_k;
  std::optional<double> min_p;
  std::optional<int64_t> seed;
  double presence_penalty = 0;
  double frequency_penalty = 0;
  std::optional<double> repetition_penalty;
  std::vector<std::pair<int32_t, float>> logit_bias;
  uint32_t min_tokens = 0;
  uint32_t n = 1;  // choices of each prompt
  AnswerFormFields form;
  LogprobsWanted logprobs;
  bool prompt_logprobs = false;  // asked for by that name
  std::vector<std::string> stop;
  std::vector<int32_t> stop_token_ids;
  bool include_stop_str_in_output = false;
  bool ignore_eos = false;
  bool skip_special_tokens = true;
  bool return_token_ids = false;
  std::string request_id;
  std::string cache_salt;
  bool cache_read_only = false;  // of the prefix cache
  std::string user;
  bool batch = false;  // asked for as service_tier "flex", or as a priority above 0
  std::optional<int64_t> ttft_deadline_ms;
  IgnoredFields ignored;
};

struct ChatFields : CommonFields {
  bool no_tool_calls = false;                     // tool_choice "none"
  std::optional<uint32_t> thinking_token_budget;  // under any of its names
  bool include_reasoning = true;
  bool parallel_tool_calls = true;
};

// Text, in which added tokens are matched, or ids.
using CompletionPrompt = std::variant<std::string, std::vector<int32_t>>;

struct CompletionFields : CommonFields {
  std::vector<CompletionPrompt> prompts;
  bool echo = false;
};

// Fails if the field "model" is there and names another than the served one.
void CheckModel(Fields& fields, const RequestLimits& limits, std::optional<ApiError>* error);

// Both refuse, by name, everything that asks for something that this server does not do; unknown
// fields are ignored. The messages of a chat are checked only as far as their list; the prompt
// builder checks the rest. Pure.
std::variant<ChatFields, ApiError> ParseChatFields(const text::Value& body,
                                                   const RequestLimits& limits);
std::variant<CompletionFields, ApiError> ParseCompletionFields(const text::Value& body,
                                                               const RequestLimits& limits);

// The sampling of a request. Defaults come from the model; if those say greedy, a request samples
// only if it gives one of temperature, top_p, top_k and min_p. Without a seed `random_seed` is
// taken.
Sampling ResolveSampling(const CommonFields& fields, const text::SamplingDefaults& defaults,
                         uint64_t random_seed);

}  // namespace quartet::gateway

#endif  // QUARTET_SERVICES_GATEWAY_OPENAI_REQUEST_H_
