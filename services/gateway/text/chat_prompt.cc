#include "services/gateway/text/chat_prompt.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/gateway/text/absl_strings.h"
#include "services/gateway/text/normalise.h"

namespace quartet::text {
namespace {

constexpr std::string_view kThinkOpen = "<think>";

// A token covers at least one byte of text, so that a longer prompt cannot fit; the real check
// follows after encoding.
constexpr int64_t kBytesPerTokenLimit = 8;
constexpr int64_t kBytesSlack = 64 << 10;

// One boolean field that may be missing.
std::optional<bool> Flag(const Value& body, const char* key, RequestNormaliser& normaliser) {
  const Value value = body.Get(key);
  if (value.is_absent()) return std::nullopt;
  if (!value.is_bool()) {
    normaliser.Fail(key, absl::StrCat(key, " must be true or false, got ", Av(value.TypeName())));
    return std::nullopt;
  }
  return value.boolean();
}

// The API's words for effort in the template's three.
std::string MapEffort(const Value& effort, const char* param, RequestNormaliser& normaliser) {
  if (effort.is_absent()) return "";
  if (effort.is_string()) {
    const std::string& word = effort.string();
    if (word == "none" || word == "minimal" || word == "low") return "low";
    if (word == "medium" || word == "high") return "high";
    if (word == "xhigh" || word == "max") return "max";
  }
  normaliser.Fail(
      param, absl::StrCat(param, " must be one of none, minimal, low, medium, high, xhigh, max"));
  return "";
}

// reasoning_effort, or what stands for it in other APIs; empty if the request says nothing.
std::string Effort(const Value& body, RequestNormaliser& normaliser) {
  std::string effort = MapEffort(body.Get("reasoning_effort"), "reasoning_effort", normaliser);
  if (!effort.empty()) return effort;
  const Value reasoning = body.Get("reasoning");
  if (!reasoning.is_absent() && !reasoning.is_object()) {
    normaliser.Fail("reasoning", "reasoning must be an object");
    return "";
  }
  effort = MapEffort(reasoning.Get("effort"), "reasoning.effort", normaliser);
  if (!effort.empty()) return effort;
  if (const Value enabled = reasoning.Get("enabled"); enabled.is_bool() && !enabled.boolean()) {
    return "low";
  }
  const Value type = body.Get("thinking").Get("type");
  if (type.is_string() && type.string() == "disabled") return "low";
  return "";
}

void SetEntry(Value::Entries* entries, std::string_view key, Value value) {
  for (auto& [name, old] : *entries) {
    if (name == key) {
      old = std::move(value);
      return;
    }
  }
  entries->emplace_back(std::string(key), std::move(value));
}

Value WithEntry(const Value& object, std::string_view key, Value value) {
  Value::Entries entries = object.entries();
  SetEntry(&entries, key, std::move(value));
  return Value::MakeObject(std::move(entries));
}

// Puts the cut marker behind the text that the model is to continue.
Value MarkLastMessage(const Value& messages, NormalisedChat* chat, RequestNormaliser& normaliser) {
  Value::List list = messages.list();
  Value& last = list.back();
  const std::string param = absl::StrCat("messages[", list.size() - 1, "]");
  if (last.Get("role").string() != "assistant") {
    normaliser.Fail(param, "continue_final_message needs an assistant's message at the end");
    return {};
  }
  if (last.Find("tool_calls") != nullptr) {
    normaliser.Fail(param, "continue_final_message cannot continue a message with tool_calls");
    return {};
  }
  const std::string content = last.Get("content").string();
  const Value reasoning = last.Get("reasoning_content");
  chat->continues = true;
  chat->continues_reasoning = content.empty() && reasoning.is_string();
  const char* key = chat->continues_reasoning ? "reasoning_content" : "content";
  const std::string text = chat->continues_reasoning ? reasoning.string() : content;
  last = WithEntry(last, key, Value::String(text + std::string(kCutMarker)));
  return Value::MakeList(std::move(list));
}

RequestError TooLong(int64_t tokens, const ChatPromptOptions& options) {
  return {absl::StrCat("the prompt has ", tokens < 0 ? std::string("more") : absl::StrCat(tokens),
                       " tokens", tokens < 0 ? " than fit" : "", "; with room for ",
                       options.output_tokens_min, " output tokens at most ",
                       std::max<int64_t>(0, options.context_tokens - options.output_tokens_min),
                       " of the context of ", options.context_tokens, " can be used"),
          "messages", "context_length_exceeded"};
}

bool EndsWith(std::string_view text, std::string_view end) {
  return text.size() >= end.size() && text.substr(text.size() - end.size()) == end;
}

}  // namespace

std::variant<NormalisedChat, RequestError> NormaliseChatRequest(const Value& body,
                                                                const ControlTokenEscaper& escaper,
                                                                const ChatPromptOptions& options) {
  RequestNormaliser normaliser(escaper, options);
  NormalisedChat chat;
  if (!body.is_object()) {
    return RequestError{absl::StrCat("the body must be a JSON object, got ", Av(body.TypeName())),
                        "", ""};
  }
  const Value kwargs = body.Get("chat_template_kwargs");
  if (!kwargs.is_absent() && !kwargs.is_object()) {
    return RequestError{
        absl::StrCat("chat_template_kwargs must be an object, got ", Av(kwargs.TypeName())),
        "chat_template_kwargs", ""};
  }
  Value messages = normaliser.Messages(body.Get("messages"));
  Value tools = normaliser.Tools(body.Get("tools"));
  Value::Entries variables;
  if (kwargs.is_object() && !normaliser.failed()) {
    const Value passed = normaliser.Passed(kwargs, "chat_template_kwargs");
    if (passed.is_object()) variables = passed.entries();
  }
  const std::string effort = Effort(body, normaliser);
  const std::optional<bool> generation = Flag(body, "add_generation_prompt", normaliser);
  const bool continues = Flag(body, "continue_final_message", normaliser).value_or(false);
  if (continues && generation.value_or(false)) {
    normaliser.Fail("continue_final_message",
                    "continue_final_message and add_generation_prompt cannot both be true");
  }
  if (continues && !normaliser.failed()) messages = MarkLastMessage(messages, &chat, normaliser);
  if (normaliser.failed()) return normaliser.error();

  if (!effort.empty()) SetEntry(&variables, "reasoning_effort", Value::String(effort));
  if (continues) {
    SetEntry(&variables, "add_generation_prompt", Value::Bool(false));
  } else if (generation.has_value()) {
    SetEntry(&variables, "add_generation_prompt", Value::Bool(*generation));
  } else if (!kwargs.Get("add_generation_prompt").is_bool()) {
    SetEntry(&variables, "add_generation_prompt", Value::Bool(true));
  }
  SetEntry(&variables, "messages", std::move(messages));
  SetEntry(&variables, "tools", std::move(tools));
  chat.variables = Value::MakeObject(std::move(variables));
  return chat;
}

std::variant<RenderedChat, RequestError> RenderChat(const ChatTemplate& chat_template,
                                                    const ControlTokenEscaper& escaper,
                                                    const Value& body,
                                                    const ChatPromptOptions& options) {
  std::variant<NormalisedChat, RequestError> normalised =
      NormaliseChatRequest(body, escaper, options);
  if (auto* error = std::get_if<RequestError>(&normalised)) return std::move(*error);
  const NormalisedChat& chat = std::get<NormalisedChat>(normalised);

  absl::StatusOr<std::string> rendered = chat_template.Render(chat.variables, options.limits);
  if (!rendered.ok()) {
    return RequestError{std::string(rendered.status().message()), "messages", ""};
  }
  if (chat.continues) {
    const size_t cut = rendered->rfind(kCutMarker);
    if (cut == std::string::npos) {
      return RequestError{
          "the chat template does not show the last message, so that it cannot be continued",
          "continue_final_message", ""};
    }
    rendered->resize(cut);
  }
  const bool opens_think = chat.continues_reasoning || EndsWith(*rendered, kThinkOpen);
  return RenderedChat{*std::move(rendered), opens_think};
}

std::variant<ChatPrompt, RequestError> BuildChatPrompt(const ModelText& model, const Value& body,
                                                       const ChatPromptOptions& options) {
  std::variant<RenderedChat, RequestError> result =
      RenderChat(*model.chat_template, model.escaper, body, options);
  if (auto* error = std::get_if<RequestError>(&result)) return std::move(*error);
  RenderedChat& rendered = std::get<RenderedChat>(result);
  const int64_t bytes_max = options.context_tokens * kBytesPerTokenLimit + kBytesSlack;
  if (options.context_tokens > 0 && static_cast<int64_t>(rendered.text.size()) > bytes_max) {
    return TooLong(-1, options);
  }

  ChatPrompt prompt;
  absl::StatusOr<std::vector<int32_t>> ids = options.trust_content_tokens
                                                 ? model.tokenizer->Encode(rendered.text)
                                                 : model.tokenizer->EncodeRendered(rendered.text);
  if (!ids.ok()) return RequestError{std::string(ids.status().message()), "messages", ""};
  prompt.ids = *std::move(ids);
  prompt.system_tokens = static_cast<uint32_t>(
      std::ranges::find_first_of(prompt.ids, model.turn_ids) - prompt.ids.begin());
  const int64_t tokens = static_cast<int64_t>(prompt.ids.size());
  if (options.context_tokens > 0 && tokens + options.output_tokens_min > options.context_tokens) {
    return TooLong(tokens, options);
  }
  prompt.opens_think = rendered.opens_think;
  prompt.text = options.trust_content_tokens ? std::move(rendered.text)
                                             : model.escaper.Unescape(rendered.text);
  return prompt;
}

}  // namespace quartet::text
