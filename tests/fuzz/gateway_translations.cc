#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include "services/gateway/anthropic/request.h"
#include "services/gateway/openai/request.h"
#include "services/gateway/openai/responses_request.h"
#include "services/gateway/text/chat_prompt.h"
#include "services/gateway/text/json.h"
#include "tests/fuzz/text_fuzz_target.h"

// The input is the body of a request to another API than that of chats; its first byte chooses
// which. What comes out is a chat request that JSON can say and that the chat's own checks answer,
// or an error with a message, about a field of the request that came.
QUARTET_FUZZ_TARGET(FuzzTranslations) {
  using namespace quartet;
  static const text::ControlTokenEscaper escaper({});
  if (input.empty()) return;
  const auto choice = static_cast<unsigned char>(input[0]);
  const auto body = text::ParseJson(input.substr(1));
  if (!body.ok()) return;

  const auto check = [](const gateway::TranslatedChat& chat) {
    const text::Value made = chat.Body();
    std::string json;
    fuzz::Require(text::AppendJson(made, {}, &json).ok());
    auto fields = gateway::ParseChatFields(made, {.served_model_name = "m", .vocab_size = 2048});
    if (const auto* error = std::get_if<gateway::ApiError>(&fields)) {
      fuzz::Require(!chat.InItsWords(*error).message.empty());
    }
    const auto normalised = text::NormaliseChatRequest(made, escaper, {});
    if (const auto* error = std::get_if<text::RequestError>(&normalised)) {
      fuzz::Require(!error->message.empty());
    }
  };
  const auto read = [&](auto result) {
    if (const auto* error = std::get_if<gateway::ApiError>(&result)) {
      fuzz::Require(!error->message.empty());
    } else {
      check(std::get<0>(result).chat);
    }
  };
  switch (choice % 3) {
    case 0:
      read(gateway::TranslateMessages(*body, gateway::MessagesUse::kAnswer));
      break;
    case 1:
      read(gateway::TranslateMessages(*body, gateway::MessagesUse::kCount));
      break;
    default:
      read(gateway::TranslateResponses(*body));
  }
}
