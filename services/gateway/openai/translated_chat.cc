#include "services/gateway/openai/translated_chat.h"

#include <algorithm>
#include <optional>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "services/gateway/openai/request.h"
#include "services/gateway/text/chat_prompt.h"

namespace quartet::gateway {
namespace {

using text::Value;

constexpr std::string_view kMessages = "messages[";

// Counting costs as much as encoding does, so it has an end too.
constexpr int64_t kCountedContexts = 16;

// `name` itself or a part of it: "stop[3]" of "stop".
bool IsIn(std::string_view name, std::string_view param) {
  return param.starts_with(name) &&
         (param.size() == name.size() || param[name.size()] == '[' || param[name.size()] == '.');
}

}  // namespace

void TranslatedChat::Set(std::string_view name, Value value) {
  if (!value.is_undefined()) fields_.emplace_back(std::string(name), std::move(value));
}

void TranslatedChat::AddMessage(Value::Entries message, std::string origin) {
  messages_.push_back(Value::MakeObject(std::move(message)));
  origins_.push_back(std::move(origin));
}

void TranslatedChat::Rename(std::string chat, std::string here) {
  names_.emplace_back(std::move(chat), std::move(here));
}

Value TranslatedChat::Body() const {
  Value::Entries entries = fields_;
  entries.emplace_back("messages", Value::MakeList(messages_));
  return Value::MakeObject(std::move(entries));
}

std::string TranslatedChat::OriginOf(const std::string& param) const {
  if (param.starts_with(kMessages)) {
    const size_t end = std::min(param.find(']'), param.size());
    size_t index = 0;
    if (absl::SimpleAtoi(param.substr(kMessages.size(), end - kMessages.size()), &index) &&
        index < origins_.size()) {
      return origins_[index] + param.substr(std::min(end + 1, param.size()));
    }
  }
  for (const auto& [chat, here] : names_) {
    if (IsIn(chat, param)) return here + param.substr(chat.size());
  }
  return param;
}

ApiError TranslatedChat::InItsWords(ApiError error) const {
  const std::string origin = OriginOf(error.param);
  if (error.message.starts_with(error.param + ":")) {
    error.message.replace(0, error.param.size(), origin);
  }
  error.param = origin;
  return error;
}

std::variant<Prepared, ApiError> PrepareTranslated(const TranslatedChat& chat,
                                                   const PrepareContext& context) {
  auto result = PrepareChatValue(chat.Body(), context);
  if (auto* error = std::get_if<ApiError>(&result)) return chat.InItsWords(std::move(*error));
  return result;
}

std::variant<uint32_t, ApiError> CountPromptTokens(const TranslatedChat& chat,
                                                   const PrepareContext& context) {
  const Value body = chat.Body();
  auto fields = ParseChatFields(body, LimitsOf(context));
  if (auto* error = std::get_if<ApiError>(&fields)) return chat.InItsWords(std::move(*error));
  text::ChatPromptOptions options;
  options.trust_content_tokens = context.trust_content_tokens;
  options.context_tokens = kCountedContexts * context.max_model_len;
  auto prompt = text::BuildChatPrompt(*context.model, body, options);
  if (auto* error = std::get_if<text::RequestError>(&prompt)) {
    return chat.InItsWords({.message = std::move(error->message),
                            .param = std::move(error->param),
                            .code = std::move(error->code)});
  }
  return static_cast<uint32_t>(std::get<text::ChatPrompt>(prompt).ids.size());
}

}  // namespace quartet::gateway
