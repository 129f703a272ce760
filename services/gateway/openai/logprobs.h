// Log-probabilities as the APIs write them.
#ifndef QUARTET_SERVICES_GATEWAY_OPENAI_LOGPROBS_H_
#define QUARTET_SERVICES_GATEWAY_OPENAI_LOGPROBS_H_

#include <cstdint>
#include <span>
#include <string>

#include "services/gateway/routing/generation.h"
#include "services/gateway/text/detokenizer.h"

namespace quartet::gateway {

// {token, logprob, bytes, top_logprobs}, ... of each, with commas between.
void AppendLogprobEntries(std::span<const ScoredToken> tokens, std::string* out);

// {"content":[{token, logprob, bytes, top_logprobs}],"refusal":null}: `bytes` are those of the
// token, `token` is their text with U+FFFD for parts of characters.
void AppendChatLogprobs(std::span<const ScoredToken> tokens, std::string* out);

// [null,{"ID":{logprob, decoded_token}, ...}, ...]: for each token of a prompt itself and the
// likeliest ones in its place.
void AppendPromptLogprobs(std::span<const ScoredToken> tokens, std::string* out);

// One choice's {tokens, token_logprobs, top_logprobs, text_offset} of a completion, in pieces. The
// offsets are characters from the beginning of all pieces.
class CompletionLogprobs {
 public:
  void Append(std::span<const ScoredToken> tokens, std::string* out);

 private:
  text::Utf8Assembler characters_;
  uint64_t offset_ = 0;
};

}  // namespace quartet::gateway

#endif  // QUARTET_SERVICES_GATEWAY_OPENAI_LOGPROBS_H_
