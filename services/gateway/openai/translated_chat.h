// Requests of other APIs, told as chat requests: they are prepared by the same rules, and what is
// wrong with them is said in the words of the request that came.
#ifndef QUARTET_SERVICES_GATEWAY_OPENAI_TRANSLATED_CHAT_H_
#define QUARTET_SERVICES_GATEWAY_OPENAI_TRANSLATED_CHAT_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "services/gateway/exchange/api_answer.h"
#include "services/gateway/openai/prepare.h"
#include "services/gateway/text/value.h"

namespace quartet::gateway {

// A chat request in the making. Its messages remember where they come from.
class TranslatedChat {
 public:
  // Fields of the chat request; an undefined value sets nothing.
  void Set(std::string_view name, text::Value value);
  // `origin`: where the message stands in the request that came, "messages[2].content[0]".
  void AddMessage(text::Value::Entries message, std::string origin);
  size_t messages() const { return messages_.size(); }
  const text::Value& last_message() const { return messages_.back(); }
  // The field `chat` of a chat request is called `here` in the request that came.
  void Rename(std::string chat, std::string here);

  // As POST /v1/chat/completions takes it.
  text::Value Body() const;
  // The same error about the request that came.
  ApiError InItsWords(ApiError error) const;

 private:
  std::string OriginOf(const std::string& param) const;

  text::Value::Entries fields_;
  text::Value::List messages_;
  std::vector<std::string> origins_;
  std::vector<std::pair<std::string, std::string>> names_;
};

// Both are pure and belong on the text pool.
std::variant<Prepared, ApiError> PrepareTranslated(const TranslatedChat& chat,
                                                   const PrepareContext& context);
// Tokens of the prompt. Prompts that do not fit the context are counted too, unless they are far
// from it.
std::variant<uint32_t, ApiError> CountPromptTokens(const TranslatedChat& chat,
                                                   const PrepareContext& context);

}  // namespace quartet::gateway

#endif  // QUARTET_SERVICES_GATEWAY_OPENAI_TRANSLATED_CHAT_H_
