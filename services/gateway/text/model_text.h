// Everything of a model folder that concerns text, loaded once at start.
#ifndef QUARTET_SERVICES_GATEWAY_TEXT_MODEL_TEXT_H_
#define QUARTET_SERVICES_GATEWAY_TEXT_MODEL_TEXT_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "services/gateway/text/control_tokens.h"
#include "services/gateway/text/end_tokens.h"
#include "services/gateway/text/template/chat_template.h"
#include "services/gateway/text/tokenizer.h"

namespace quartet::text {

struct ModelTextOptions {
  // --chat-template FILE: used instead of the folder's template.
  std::string chat_template_file;
};

// Immutable, shared by all threads.
struct ModelText {
  std::unique_ptr<const Tokenizer> tokenizer;
  ControlTokenEscaper escaper;
  std::unique_ptr<const ChatTemplate> chat_template;
  // Where the template came from, for logs.
  std::string chat_template_origin;
  GenerationDefaults defaults;
  // Tokens that begin a turn of somebody other than the system: what is before the first of them is
  // the system prompt with the tools.
  std::vector<int32_t> turn_ids;
};

// Reads tokenizer.json, the template and the configuration files of `model_dir`. The template is
// the file of the options, else chat_template.jinja, else "chat_template" of tokenizer_config.json
// (a string, or a list of {name, template} of which "default" is taken), else the built-in one, if
// the tokenizer has the tokens that this writes. Errors name the file that is missing or wrong and
// say what would be right.
absl::StatusOr<std::unique_ptr<const ModelText>> LoadModelText(
    const std::string& model_dir, const ModelTextOptions& options = {});

}  // namespace quartet::text

#endif  // QUARTET_SERVICES_GATEWAY_TEXT_MODEL_TEXT_H_
