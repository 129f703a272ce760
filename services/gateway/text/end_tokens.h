// What a model folder says about how generation ends and how it samples by default.
#ifndef QUARTET_SERVICES_GATEWAY_TEXT_END_TOKENS_H_
#define QUARTET_SERVICES_GATEWAY_TEXT_END_TOKENS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "services/gateway/text/tokenizer.h"

namespace quartet::text {

struct EndTokens {
  // Sorted, without repeats: generation_config.json eos_token_id, config.json eos_token_id and its
  // text_config's, and the id of tokenizer_config.json eos_token.
  std::vector<int32_t> ids;
  // Ids from here to vocab_size - 1 have no text and must never be sampled. Equal to vocab_size if
  // there are none.
  int32_t first_padding_id = 0;
  // Of the model (config.json), not of the tokenizer.
  int32_t vocab_size = 0;

  bool Contains(int32_t id) const;
};

// Defaults for parameters that a request leaves out.
struct SamplingDefaults {
  // generation_config.json "do_sample": false. Then `temperature` is 0 here, whatever the file
  // says.
  bool greedy = false;
  double temperature = 1.0;
  double top_p = 1.0;
  int32_t top_k = 0;  // 0: off
  double min_p = 0.0;
  double repetition_penalty = 1.0;
};

struct GenerationDefaults {
  EndTokens end;
  SamplingDefaults sampling;
  // config.json max_position_embeddings (also inside text_config); 0 if the file does not say.
  int64_t max_position_embeddings = 0;
};

// Reads config.json (needed), generation_config.json and tokenizer_config.json (both may be
// missing) of `model_dir`. Errors name the file and the field. It is an error if no end token is
// known at all, or if one is out of range.
absl::StatusOr<GenerationDefaults> LoadGenerationDefaults(const std::string& model_dir,
                                                          const Tokenizer& tokenizer);

}  // namespace quartet::text

#endif  // QUARTET_SERVICES_GATEWAY_TEXT_END_TOKENS_H_
