#include <string>
#include <variant>

#include "services/gateway/openai/prepare.h"
#include "services/gateway/text/json.h"
#include "services/gateway/text/model_text.h"
#include "tests/fuzz/text_fuzz_target.h"

// The input is the body of a chat request; its first byte chooses how it is read. It becomes a plan
// that fits the context, or an error that is the client's.
QUARTET_FUZZ_TARGET(FuzzPrepareChat) {
  using namespace quartet;
  static const auto model = text::LoadModelText(QUARTET_SOURCE_DIR "/models/quartet-demo-exl3");
  fuzz::Require(model.ok());
  if (input.empty()) return;
  const auto choice = static_cast<unsigned char>(input[0]);
  const gateway::PrepareContext context{.model = model->get(),
                                        .served_model_name = "m",
                                        .max_model_len = 512,
                                        .trust_content_tokens = (choice & 1) != 0,
                                        .authorization = (choice & 2) != 0 ? "Bearer key" : ""};
  const auto result = (choice & 4) != 0 ? gateway::PrepareCompletion(input.substr(1), context)
                                        : gateway::PrepareChat(input.substr(1), context);
  if (const auto* error = std::get_if<gateway::ApiError>(&result)) {
    fuzz::Require(error->status >= 400 && error->status < 500);
    const auto body = text::ParseJson(gateway::ApiErrorJson(*error));
    fuzz::Require(body.ok() && body->Get("error").Get("message").is_string());
    return;
  }
  const auto& prepared = std::get<gateway::Prepared>(result);
  fuzz::Require(!prepared.plan.choices.empty());
  for (const gateway::ChoicePlan& plan : prepared.plan.choices) {
    fuzz::Require(!plan.prompt_ids.empty());
    fuzz::Require(plan.prompt_ids.size() + plan.max_tokens <= context.max_model_len);
    for (const int32_t id : plan.prompt_ids) {
      fuzz::Require(id >= 0 && id < (*model)->defaults.end.vocab_size);
    }
  }
}
