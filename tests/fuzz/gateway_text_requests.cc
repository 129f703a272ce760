#include <string>
#include <variant>

#include "absl/strings/str_cat.h"
#include "services/gateway/openai/text_service.h"
#include "services/gateway/text/json.h"
#include "services/gateway/text/model_text.h"
#include "tests/fuzz/text_fuzz_target.h"

// The input is the body of a request to /tokenize, /detokenize or /apply-template, which its first
// byte chooses. The answer is JSON, and what was tokenised has its text again.
QUARTET_FUZZ_TARGET(FuzzTextRequests) {
  using namespace quartet;
  static const auto model = text::LoadModelText(QUARTET_SOURCE_DIR "/models/quartet-demo-exl3");
  fuzz::Require(model.ok());
  if (input.empty()) return;
  const auto choice = static_cast<unsigned char>(input[0]);
  input.remove_prefix(1);
  const gateway::TextContext context{
      .model = model->get(), .served_model_name = "m", .max_model_len = 512};
  const auto result = choice % 3 == 0   ? gateway::TokenizeText(input, context)
                      : choice % 3 == 1 ? gateway::DetokenizeIds(input, context)
                                        : gateway::ApplyTemplate(input, context);
  if (const auto* error = std::get_if<gateway::ApiError>(&result)) {
    fuzz::Require(error->status >= 400 && error->status < 500);
    fuzz::Require(text::ParseJson(gateway::ApiErrorJson(*error)).ok());
    return;
  }
  const auto body = text::ParseJson(std::get<std::string>(result));
  fuzz::Require(body.ok());
  const text::Value prompt = text::ParseJson(input)->Get("prompt");
  if (choice % 3 != 0 || !prompt.is_string()) return;
  std::string tokens;
  fuzz::Require(text::AppendJson(body->Get("tokens"), {}, &tokens).ok());
  const auto back = gateway::DetokenizeIds(absl::StrCat("{\"tokens\":", tokens, "}"), context);
  fuzz::Require(std::holds_alternative<std::string>(back));
  fuzz::Require(text::ParseJson(std::get<std::string>(back))->Get("prompt").Equals(prompt));
}
