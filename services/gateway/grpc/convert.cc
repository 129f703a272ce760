#include "services/gateway/grpc/convert.h"

#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/gateway/openai/answer.h"
#include "services/gateway/openai/translated_chat.h"
#include "services/gateway/text/json.h"
#include "services/gateway/text/value.h"

namespace quartet::gateway {
namespace {

using text::Value;

std::optional<ApiError> Refuse(std::string_view field, std::string_view message) {
  const std::string param(field);
  return ApiError{.message = absl::StrCat(param, ": ", std::string(message)), .param = param};
}

std::optional<ApiError> CheckPenalties(const v1::SamplingParams& from) {
  if (!(from.presence_penalty() >= -2 && from.presence_penalty() <= 2)) {
    return Refuse("sampling.presence_penalty", "must be a number from -2 to 2");
  }
  if (!(from.frequency_penalty() >= -2 && from.frequency_penalty() <= 2)) {
    return Refuse("sampling.frequency_penalty", "must be a number from -2 to 2");
  }
  if (!(from.repetition_penalty() >= 0 && from.repetition_penalty() <= 1e6f)) {
    return Refuse("sampling.repetition_penalty", "must be a number above 0, or 0 for 1");
  }
  return std::nullopt;
}

std::optional<ApiError> CheckIds(const v1::SamplingParams& from, int32_t vocab_size) {
  constexpr int kMost = 1024;
  const auto bad_id = [vocab_size](int32_t id) { return id < 0 || id >= vocab_size; };
  if (from.logit_bias_size() > kMost || from.banned_ids_size() > kMost) {
    return Refuse(from.logit_bias_size() > kMost ? "sampling.logit_bias" : "sampling.banned_ids",
                  absl::StrCat("must hold at most ", kMost, " token ids"));
  }
  for (const auto& [id, bias] : from.logit_bias()) {
    if (bad_id(id)) {
      return Refuse("sampling.logit_bias",
                    absl::StrCat("token ids are 0 to ", vocab_size - 1, ", not ", id));
    }
    if (!(bias >= -100 && bias <= 100)) {
      return Refuse("sampling.logit_bias",
                    absl::StrCat("the value of ", id, " must be a number from -100 to 100"));
    }
  }
  for (const int32_t id : from.banned_ids()) {
    if (!bad_id(id)) continue;
    return Refuse("sampling.banned_ids",
                  absl::StrCat("token ids are 0 to ", vocab_size - 1, ", not ", id));
  }
  return std::nullopt;
}

// What the client sends takes the place of the model's defaults as a whole.
std::optional<ApiError> TakeSampling(const v1::SamplingParams& from, int32_t vocab_size,
                                     Prepared* out) {
  if (!(from.temperature() >= 0 && from.temperature() <= 2)) {
    return Refuse("sampling.temperature", "must be a number from 0 to 2");
  }
  if (!(from.top_p() >= 0 && from.top_p() <= 1))
    return Refuse("sampling.top_p", "must be a number from 0 to 1");
  if (!(from.min_p() >= 0 && from.min_p() <= 1))
    return Refuse("sampling.min_p", "must be a number from 0 to 1");
  if (from.top_k() < -1) return Refuse("sampling.top_k", "must be -1, 0 or more");
  if (auto error = CheckPenalties(from)) return error;
  if (auto error = CheckIds(from, vocab_size)) return error;
  CommonFields fields;
  fields.temperature = from.temperature();
  fields.top_p = from.top_p() == 0 ? 1 : from.top_p();
  fields.top_k = from.top_k();
  fields.min_p = from.min_p();
  fields.presence_penalty = from.presence_penalty();
  fields.frequency_penalty = from.frequency_penalty();
  fields.repetition_penalty = from.repetition_penalty() == 0 ? 1 : from.repetition_penalty();
  fields.logit_bias.assign(from.logit_bias().begin(), from.logit_bias().end());
  fields.min_tokens = from.min_tokens();
  std::vector<int32_t> banned = std::move(out->plan.sampling.banned_ids);
  banned.insert(banned.end(), from.banned_ids().begin(), from.banned_ids().end());
  out->plan.sampling = ResolveSampling(fields, {}, from.seed());
  out->plan.sampling.seeded = true;  // a seed that is not given is 0
  out->plan.sampling.banned_ids = std::move(banned);
  out->plan.output.min_tokens = from.min_tokens();
  for (ChoicePlan& choice : out->plan.choices) choice.choice += from.choice();
  return std::nullopt;
}

// Sets a field of a request by its name in HTTP's APIs.
using Setter = std::function<void(const char*, Value)>;

Value Strings(const google::protobuf::RepeatedPtrField<std::string>& from) {
  Value::List list;
  for (const std::string& text : from) list.push_back(Value::String(text));
  return Value::MakeList(std::move(list));
}

Value FormOf(const v1::AnswerForm& form) {
  switch (form.form_case()) {
    case v1::AnswerForm::kJsonObject:
      return Value::MakeObject({{"json_object", Value::Bool(form.json_object())}});
    case v1::AnswerForm::kJsonSchema:
      return Value::MakeObject({{"json", Value::String(form.json_schema())}});
    case v1::AnswerForm::kRegex:
      return Value::MakeObject({{"regex", Value::String(form.regex())}});
    case v1::AnswerForm::kChoices:
      return Value::MakeObject({{"choice", Strings(form.choices().texts())}});
    case v1::AnswerForm::FORM_NOT_SET:
      break;
  }
  return Value::MakeObject({});
}

// What all kinds of prompts have, where the message says something of its own.
void SetCommon(const v1::GenerateRequest& from, const Setter& set) {
  if (from.max_tokens() > 0) {
    set("max_tokens", Value::Integer(from.max_tokens()));
    set("max_completion_tokens", Value::None());
  }
  if (from.stop_size() > 0) set("stop", Strings(from.stop()));
  if (from.stop_token_ids_size() > 0) {
    Value::List ids;
    for (const int32_t id : from.stop_token_ids()) ids.push_back(Value::Integer(id));
    set("stop_token_ids", Value::MakeList(std::move(ids)));
  }
  if (from.has_skip_special_tokens()) {
    set("skip_special_tokens", Value::Bool(from.skip_special_tokens()));
  }
  const std::pair<const char*, bool> switches[] = {
      {"ignore_eos", from.ignore_eos()},
      {"return_token_ids", from.return_token_ids()},
      {"include_stop_str_in_output", from.include_stop_str_in_output()},
      {"cache_read_only", from.cache_read_only()}};
  for (const auto& [name, on] : switches) {
    if (on) set(name, Value::Bool(true));
  }
  const std::pair<const char*, uint32_t> numbers[] = {
      {"n", from.n()},
      {"min_tokens", from.sampling().min_tokens()},
      {"ttft_deadline_ms", from.ttft_deadline_ms()}};
  for (const auto& [name, number] : numbers) {
    if (number > 0) set(name, Value::Integer(number));
  }
  const std::pair<const char*, const std::string&> texts[] = {
      {"request_id", from.request_id()}, {"cache_salt", from.cache_salt()}, {"user", from.user()}};
  for (const auto& [name, text] : texts) {
    if (!text.empty()) set(name, Value::String(text));
  }
  if (from.batch()) set("service_tier", Value::String("flex"));
  if (from.has_prompt_logprobs()) {
    set("prompt_logprobs", Value::Integer(from.prompt_logprobs()));
  }
  if (from.has_form()) set("structured_outputs", FormOf(from.form()));
}

// What only chats have.
void SetChat(const v1::GenerateRequest& from, const Setter& set) {
  if (from.logprobs()) {
    set("logprobs", Value::Bool(true));
    set("top_logprobs", Value::Integer(from.top_logprobs()));
  }
  if (from.has_thinking_token_budget()) {
    set("thinking_token_budget", Value::Integer(from.thinking_token_budget()));
  }
}

std::variant<Prepared, ApiError> PrepareChatJson(const v1::GenerateRequest& request,
                                                 const PrepareContext& context) {
  auto body = text::ParseJson(request.chat_request_json());
  if (!body.ok() || !body->is_object()) {
    return *Refuse("chat_request_json",
                   body.ok()
                       ? std::string("must be a JSON object")
                       : absl::StrCat("is not valid JSON: ", std::string(body.status().message())));
  }
  // The message's own fields go before those of the JSON; of keys that repeat the last wins.
  Value::Entries entries;
  for (const Value::Entry& entry : body->entries()) {
    if (entry.first != "stream" && entry.first != "stream_options") entries.push_back(entry);
  }
  const Setter set = [&entries](const char* name, Value value) {
    entries.emplace_back(name, std::move(value));
  };
  SetCommon(request, set);
  SetChat(request, set);
  return PrepareChatValue(Value::MakeObject(std::move(entries)), context);
}

// A field of JSON text within a typed message; undefined if it is empty.
Value JsonObject(const std::string& json, const std::string& field,
                 std::optional<ApiError>* error) {
  if (json.empty()) return {};
  auto value = text::ParseJson(json);
  if (value.ok() && value->is_object()) return *std::move(value);
  if (!*error) {
    *error = Refuse(field, value.ok() ? std::string("must be a JSON object")
                                      : absl::StrCat("is not valid JSON: ",
                                                     std::string(value.status().message())));
  }
  return {};
}

Value::Entries MessageOf(const v1::ChatMessage& from) {
  Value::Entries message = {{"role", Value::String(from.role())},
                            {"content", Value::String(from.content())}};
  if (!from.reasoning().empty()) {
    message.emplace_back("reasoning_content", Value::String(from.reasoning()));
  }
  if (!from.tool_call_id().empty()) {
    message.emplace_back("tool_call_id", Value::String(from.tool_call_id()));
  }
  Value::List calls;
  for (const v1::ToolCall& call : from.tool_calls()) {
    calls.push_back(Value::MakeObject(
        {{"id", Value::String(call.id())},
         {"type", Value::String("function")},
         {"function", Value::MakeObject({{"name", Value::String(call.name())},
                                         {"arguments", Value::String(call.arguments_json())}})}}));
  }
  if (!calls.empty()) message.emplace_back("tool_calls", Value::MakeList(std::move(calls)));
  return message;
}

Value ToolChoiceOf(const v1::ToolChoice& from) {
  if (from.mode() == v1::ToolChoice::MODE_NONE) return Value::String("none");
  const Value mode =
      Value::String(from.mode() == v1::ToolChoice::MODE_REQUIRED ? "required" : "auto");
  if (from.names().empty()) return mode;
  Value::List tools;
  for (const std::string& name : from.names()) {
    tools.push_back(
        Value::MakeObject({{"type", Value::String("function")},
                           {"function", Value::MakeObject({{"name", Value::String(name)}})}}));
  }
  return Value::MakeObject(
      {{"type", Value::String("allowed_tools")},
       {"allowed_tools",
        Value::MakeObject({{"mode", mode}, {"tools", Value::MakeList(std::move(tools))}})}});
}

// Names the message's field where the form that FormOf made of it is wrong.
void NameForm(TranslatedChat* chat) {
  chat->Rename("structured_outputs.json", "form.json_schema");
  chat->Rename("structured_outputs.choice", "form.choices");
  chat->Rename("structured_outputs", "form");
}

std::variant<Prepared, ApiError> PrepareTypedChat(const v1::GenerateRequest& request,
                                                  const PrepareContext& context) {
  const v1::Chat& from = request.chat();
  TranslatedChat chat;
  chat.Rename("messages", "chat.messages");
  chat.Rename("tools", "chat.tools");
  chat.Rename("tool_choice", "chat.tool_choice");
  chat.Rename("reasoning_effort", "chat.reasoning_effort");
  chat.Rename("continue_final_message", "chat.continue_final_message");
  chat.Rename("chat_template_kwargs", "chat.template_kwargs_json");
  NameForm(&chat);
  std::optional<ApiError> error;
  for (int i = 0; i < from.messages_size(); ++i) {
    chat.AddMessage(MessageOf(from.messages(i)), absl::StrCat("chat.messages[", i, "]"));
  }
  Value::List tools;
  for (int i = 0; i < from.tools_size(); ++i) {
    const v1::ChatTool& tool = from.tools(i);
    Value::Entries function = {{"name", Value::String(tool.name())}};
    if (!tool.description().empty()) {
      function.emplace_back("description", Value::String(tool.description()));
    }
    Value parameters = JsonObject(tool.parameters_json(),
                                  absl::StrCat("chat.tools[", i, "].parameters_json"), &error);
    if (!parameters.is_undefined()) function.emplace_back("parameters", std::move(parameters));
    tools.push_back(Value::MakeObject({{"type", Value::String("function")},
                                       {"function", Value::MakeObject(std::move(function))}}));
  }
  if (!tools.empty()) chat.Set("tools", Value::MakeList(std::move(tools)));
  if (from.has_tool_choice()) chat.Set("tool_choice", ToolChoiceOf(from.tool_choice()));
  if (from.single_tool_call()) chat.Set("parallel_tool_calls", Value::Bool(false));
  if (!from.reasoning_effort().empty()) {
    chat.Set("reasoning_effort", Value::String(from.reasoning_effort()));
  }
  if (from.hide_reasoning()) chat.Set("include_reasoning", Value::Bool(false));
  if (from.continue_final_message()) chat.Set("continue_final_message", Value::Bool(true));
  chat.Set("chat_template_kwargs",
           JsonObject(from.template_kwargs_json(), "chat.template_kwargs_json", &error));
  if (error) return *std::move(error);
  const Setter set = [&chat](const char* name, Value value) { chat.Set(name, std::move(value)); };
  SetCommon(request, set);
  SetChat(request, set);
  return PrepareTranslated(chat, context);
}

std::variant<Prepared, ApiError> PreparePlain(const v1::GenerateRequest& request,
                                              const PrepareContext& context) {
  if (request.has_thinking_token_budget()) {
    return *Refuse("thinking_token_budget", "needs chat or chat_request_json");
  }
  const int32_t vocab_size = context.model->defaults.end.vocab_size;
  CompletionPrompt prompt = request.text();
  if (request.prompt_case() == v1::GenerateRequest::kTokenIds) {
    const auto& ids = request.token_ids().ids();
    for (int i = 0; i < ids.size(); ++i) {
      if (ids[i] < 0 || ids[i] >= vocab_size) {
        return *Refuse(
            absl::StrCat("token_ids.ids[", i, "]"),
            absl::StrCat("must be a token id from 0 to ", vocab_size - 1, ", not ", ids[i]));
      }
    }
    prompt = std::vector<int32_t>(ids.begin(), ids.end());
  }
  // Everything but the prompt goes the way of a completion's fields.
  Value::Entries entries = {{"prompt", Value::String("")}};
  SetCommon(request, [&entries](const char* name, Value value) {
    entries.emplace_back(name, std::move(value));
  });
  if (request.logprobs()) {
    entries.emplace_back("logprobs", Value::Integer(request.top_logprobs()));
  }
  auto read = ParseCompletionFields(Value::MakeObject(std::move(entries)), LimitsOf(context));
  if (auto* error = std::get_if<ApiError>(&read)) return std::move(*error);
  CompletionFields& fields = std::get<CompletionFields>(read);
  fields.prompts.front() = std::move(prompt);
  return PrepareCompletionFields(std::move(fields), context, std::numeric_limits<uint32_t>::max());
}

void ToProto(const ScoredId& from, v1::TokenLogprob* to) {
  to->set_id(from.id);
  to->set_token(from.bytes);
  to->set_logprob(from.logprob);
}

void ToProto(const ScoredToken& from, v1::TokenLogprob* to) {
  ToProto(static_cast<const ScoredId&>(from), to);
  if (from.first) to->clear_logprob();
  for (const ScoredId& likely : from.top) ToProto(likely, to->add_top());
}

v1::FinishReason ToReason(const ChoiceFinish& finish) {
  if (finish.kind == FinishKind::kLength) return v1::FINISH_REASON_LENGTH;
  return finish.complete_calls > 0 ? v1::FINISH_REASON_TOOL_CALLS : v1::FINISH_REASON_STOP;
}

}  // namespace

std::variant<Prepared, ApiError> PrepareGenerate(const v1::GenerateRequest& request,
                                                 const PrepareContext& context) {
  if (!request.model().empty() && !context.any_model &&
      request.model() != context.served_model_name) {
    return ApiError{
        .status = 404,
        .message = absl::StrCat("the model '", request.model().substr(0, 200), "' does not exist"),
        .param = "model",
        .code = "model_not_found"};
  }
  if (request.top_logprobs() > 20 || (request.top_logprobs() > 0 && !request.logprobs())) {
    return *Refuse("top_logprobs", "must be at most 20 and needs logprobs");
  }
  std::variant<Prepared, ApiError> result;
  switch (request.prompt_case()) {
    case v1::GenerateRequest::PROMPT_NOT_SET:
      return *Refuse("prompt", "one of text, token_ids, chat and chat_request_json must be set");
    case v1::GenerateRequest::kText:
    case v1::GenerateRequest::kTokenIds:
      result = PreparePlain(request, context);
      break;
    case v1::GenerateRequest::kChatRequestJson:
      result = PrepareChatJson(request, context);
      break;
    case v1::GenerateRequest::kChat:
      result = PrepareTypedChat(request, context);
      break;
  }
  if (const auto* error = std::get_if<ApiError>(&result)) {
    if (!request.has_form() || request.has_chat()) return result;
    TranslatedChat words;
    NameForm(&words);
    return words.InItsWords(*error);
  }
  auto* prepared = &std::get<Prepared>(result);
  if (!request.has_sampling()) return result;
  const int32_t vocab_size = context.model->defaults.end.vocab_size;
  if (auto error = TakeSampling(request.sampling(), vocab_size, prepared)) return *std::move(error);
  return result;
}

v1::GenerateResponse PromptIds(uint32_t choice, const std::vector<int32_t>& ids) {
  v1::GenerateResponse response;
  response.set_choice(choice);
  response.mutable_prompt_token_ids()->Add(ids.begin(), ids.end());
  return response;
}

std::vector<v1::GenerateResponse> ToResponses(const ChoiceUpdate& update,
                                              const AnswerStyle& style) {
  std::vector<v1::GenerateResponse> responses;
  for (const text::TextPiece& piece : update.pieces) {
    switch (piece.kind) {
      case text::TextKind::kReasoning:
        if (style.include_reasoning) responses.emplace_back().set_reasoning(piece.text);
        break;
      case text::TextKind::kContent:
        responses.emplace_back().set_text(piece.text);
        break;
      case text::TextKind::kCallName: {
        v1::ToolCallDelta* call = responses.emplace_back().mutable_tool_call();
        call->set_index(piece.call);
        call->set_id(NewCallId());
        call->set_name(piece.text);
        break;
      }
      case text::TextKind::kCallArguments: {
        v1::ToolCallDelta* call = responses.emplace_back().mutable_tool_call();
        call->set_index(piece.call);
        call->set_arguments(piece.text);
        break;
      }
      case text::TextKind::kCallEnd:
        break;
    }
  }
  if (style.return_token_ids && !update.ids.empty()) {
    if (responses.empty()) responses.emplace_back();
    responses.front().mutable_token_ids()->Add(update.ids.begin(), update.ids.end());
  }
  if (!update.scored.empty() || !update.scored_prompt.empty()) {
    if (responses.empty()) responses.emplace_back();
    for (const ScoredToken& token : update.scored) {
      ToProto(token, responses.front().add_logprobs());
    }
    for (const ScoredToken& token : update.scored_prompt) {
      ToProto(token, responses.front().add_prompt_logprobs());
    }
  }
  if (update.finish) {
    if (responses.empty()) responses.emplace_back();
    v1::GenerateResponse::Finish* finish = responses.back().mutable_finish();
    finish->set_reason(ToReason(*update.finish));
    finish->set_prompt_tokens(update.usage.prompt_tokens);
    finish->set_completion_tokens(update.usage.completion_tokens);
    finish->set_cached_tokens(update.usage.cached_tokens);
    finish->set_reasoning_tokens(update.usage.reasoning_tokens);
    finish->set_stop_string(update.finish->stop_string);
    if (update.finish->kind == FinishKind::kStopId) {
      finish->set_stop_token_id(update.finish->stop_id);
    }
  }
  for (v1::GenerateResponse& response : responses) response.set_choice(update.choice);
  return responses;
}

}  // namespace quartet::gateway
