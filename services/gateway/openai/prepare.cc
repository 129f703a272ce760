#include "services/gateway/openai/prepare.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/gateway/access/fair_key.h"
#include "services/gateway/routing/gateway_core.h"
#include "services/gateway/text/chat_prompt.h"
#include "services/gateway/text/detokenizer.h"
#include "services/gateway/text/json.h"
#include "services/gateway/text/tags.h"
#include "services/gateway/text/tool_schema.h"

namespace quartet::gateway {
namespace {

using text::Value;

constexpr uint32_t kCompletionTokensDefault = 16;

}  // namespace

RequestLimits LimitsOf(const PrepareContext& context) {
  return {.served_model_name = context.served_model_name,
          .any_model = context.any_model,
          .vocab_size = context.model->defaults.end.vocab_size};
}

std::optional<ApiError> RefuseMedia(const Value& messages) {
  if (!messages.is_list()) return std::nullopt;
  for (size_t i = 0; i < messages.list().size(); ++i) {
    const Value content = messages.list()[i].Get("content");
    if (!content.is_list()) continue;
    for (size_t j = 0; j < content.list().size(); ++j) {
      const Value type = content.list()[j].Get("type");
      if (!type.is_string()) continue;
      std::string_view field;
      std::string_view what = "images";
      if (type.string() == "image_url" || type.string() == "input_image" ||
          type.string() == "image") {
        field = type.string() == "image" ? "image" : "image_url";
      } else if (type.string() == "video_url" || type.string() == "video") {
        field = type.string() == "video" ? "video" : "video_url";
        what = "videos";
      }
      if (field.empty()) continue;
      return ApiError{
          .message =
              absl::StrCat(std::string(what), " are not supported by this server; send text only"),
          .param = absl::StrCat("messages[", i, "].content[", j, "].", std::string(field)),
          .code = "unsupported_parameter"};
    }
  }
  return std::nullopt;
}

namespace {

void FillCommon(const CommonFields& fields, const PrepareContext& context, Prepared* out) {
  GenerationPlan& plan = out->plan;
  plan.request_id = fields.request_id;
  plan.ignored = fields.ignored;
  plan.sampling = ResolveSampling(fields, context.model->defaults.sampling, RandomSeed());
  plan.output.skip_special_tokens = fields.skip_special_tokens;
  plan.output.text = {.stop = fields.stop,
                      .include_stop_string = fields.include_stop_str_in_output};
  plan.output.stop_ids = fields.stop_token_ids;
  plan.output.min_tokens = fields.min_tokens;
  if (!fields.ignore_eos) plan.output.end_ids = context.model->defaults.end.ids;
  plan.stop_ids = fields.stop_token_ids;
  plan.ignore_eos = fields.ignore_eos;
  plan.logprobs = fields.logprobs;
  plan.cache_salt = fields.cache_salt;
  plan.cache_read_only = fields.cache_read_only;
  if (plan.cache_salt.empty() && !context.share_cache_between_keys) {
    plan.cache_salt = SaltOfKey(context.authorization);
  }
  plan.scheduling = {
      .fair_key = FairKey(context.authorization, fields.user),
      .batch = fields.batch,
      .first_token_deadline = absl::Milliseconds(fields.ttft_deadline_ms.value_or(0)),
      .total_deadline = context.total_deadline};
  out->style.stream = fields.stream;
  out->style.include_usage = fields.include_usage;
  out->style.continuous_usage_stats = fields.continuous_usage_stats;
  out->style.return_token_ids = fields.return_token_ids;
  out->style.logprobs = fields.logprobs.output;
  out->style.prompt_logprobs = fields.prompt_logprobs;
  out->style.choices_per_prompt = fields.n;
}

// The id of a tag that is a token of its own.
std::optional<int32_t> TagId(const text::Tokenizer& tokenizer, std::string_view tag) {
  const std::optional<int32_t> id = tokenizer.TokenId(tag);
  return id && tokenizer.IsAdded(*id) ? id : std::nullopt;
}

std::optional<ApiError> SetThinkingBudget(uint32_t max_tokens, const text::Tokenizer& tokenizer,
                                          GenerationPlan* plan) {
  const std::optional<int32_t> close = TagId(tokenizer, text::kThinkClose);
  if (!close) {
    return ApiError{.message = "thinking_token_budget: the model has no token that ends reasoning",
                    .param = "thinking_token_budget",
                    .code = "unsupported_parameter"};
  }
  ThinkingBudget& budget = plan->thinking.emplace();
  budget.max_tokens = max_tokens;
  budget.begin_id = TagId(tokenizer, text::kThinkOpen).value_or(-1);
  budget.end_ids.push_back(*close);
  const std::optional<int32_t> call = TagId(tokenizer, text::kCallOpen);
  if (plan->output.text.tools && call) budget.end_ids.push_back(*call);
  return std::nullopt;
}

std::optional<ApiError> SetGrammar(const AnswerFormFields& form, bool opens_think,
                                   const text::Tokenizer& tokenizer, GenerationPlan* plan) {
  auto compiled = CompileAnswerForm(form, opens_think, tokenizer);
  if (auto* error = std::get_if<ApiError>(&compiled)) return std::move(*error);
  plan->grammar = std::get<std::string>(std::move(compiled));
  return std::nullopt;
}

// One more choice for each of a prompt's n.
void AddChoices(ChoicePlan choice, uint32_t n, GenerationPlan* plan) {
  for (uint32_t i = 0; i < n; ++i) {
    choice.choice = i;
    plan->choices.push_back(choice);
  }
}

}  // namespace

std::variant<Value, ApiError> ParseBody(std::string_view body) {
  if (body.empty()) return ApiError{.message = "the body is empty; a JSON object is expected"};
  auto value = text::ParseJson(body);
  if (!value.ok()) {
    return ApiError{.message = absl::StrCat("the body is not valid JSON: ",
                                            std::string(value.status().message()))};
  }
  return *std::move(value);
}

ApiError ContextLengthError(std::string_view param, uint64_t prompt_tokens, uint64_t requested,
                            uint32_t max_model_len) {
  std::string message = absl::StrCat("this model's context length is ", max_model_len,
                                     " tokens, but the prompt has ", prompt_tokens, " tokens");
  if (requested > 0) {
    absl::StrAppend(&message, " and ", requested, " tokens of output are requested (",
                    prompt_tokens + requested, " in total)");
  } else {
    message += " and the output needs at least 1";
  }
  message += "; shorten the prompt or lower max_tokens";
  return {.message = std::move(message),
          .param = std::string(param),
          .code = "context_length_exceeded"};
}

text::AnswerTextOptions ChatTextOptions(const Value& body, const ChatFields& fields,
                                        bool opens_think) {
  return {.split = true,
          .opens_think = opens_think,
          .tools = text::ActiveTools(body),
          .one_call = !fields.parallel_tool_calls,
          .stop = fields.stop,
          .include_stop_string = fields.include_stop_str_in_output};
}

std::variant<Prepared, ApiError> PrepareChat(std::string_view body, const PrepareContext& context) {
  auto parsed = ParseBody(body);
  if (auto* error = std::get_if<ApiError>(&parsed)) return std::move(*error);
  return PrepareChatValue(std::get<Value>(parsed), context);
}

std::variant<Prepared, ApiError> PrepareChatValue(const Value& value,
                                                  const PrepareContext& context) {
  auto checked = ParseChatFields(value, LimitsOf(context));
  if (auto* error = std::get_if<ApiError>(&checked)) return std::move(*error);
  const ChatFields& fields = std::get<ChatFields>(checked);
  if (auto error = RefuseMedia(value.Get("messages"))) return *std::move(error);

  text::ChatPromptOptions options;
  options.trust_content_tokens = context.trust_content_tokens;
  options.context_tokens = context.max_model_len;
  options.output_tokens_min = std::max<int64_t>(1, fields.max_tokens.value_or(1));
  auto built = text::BuildChatPrompt(*context.model, value, options);
  if (auto* error = std::get_if<text::RequestError>(&built)) {
    return ApiError{.message = std::move(error->message),
                    .param = std::move(error->param),
                    .code = std::move(error->code)};
  }
  text::ChatPrompt& prompt = std::get<text::ChatPrompt>(built);
  const uint64_t wanted = static_cast<uint64_t>(fields.max_tokens.value_or(0));
  if (prompt.ids.size() + std::max<uint64_t>(1, wanted) > context.max_model_len) {
    return ContextLengthError("messages", prompt.ids.size(), wanted, context.max_model_len);
  }
  Prepared out;
  FillCommon(fields, context, &out);
  out.style.chat = true;
  out.style.include_reasoning = fields.include_reasoning;
  out.plan.output.text = ChatTextOptions(value, fields, prompt.opens_think);
  out.plan.output.text.stop_in_reasoning = context.stop_in_reasoning;
  out.plan.output.text.nonempty_content = context.nonempty_content;
  if (fields.no_tool_calls) {
    const std::optional<int32_t> call = TagId(*context.model->tokenizer, text::kCallOpen);
    if (call) out.plan.sampling.banned_ids.push_back(*call);
  }
  if (fields.thinking_token_budget) {
    auto error =
        SetThinkingBudget(*fields.thinking_token_budget, *context.model->tokenizer, &out.plan);
    if (error) return *std::move(error);
  }
  if (auto error =
          SetGrammar(fields.form, prompt.opens_think, *context.model->tokenizer, &out.plan)) {
    return *std::move(error);
  }
  if (fields.return_token_ids) out.prompt_ids.assign(fields.n, prompt.ids);
  const auto room = static_cast<uint32_t>(context.max_model_len - prompt.ids.size());
  AddChoices({.prompt_ids = std::move(prompt.ids),
              .max_tokens = wanted > 0 ? static_cast<uint32_t>(wanted) : room,
              .opens_think = prompt.opens_think,
              .system_tokens = prompt.system_tokens},
             fields.n, &out.plan);
  return out;
}

std::variant<Prepared, ApiError> PrepareCompletion(std::string_view body,
                                                   const PrepareContext& context) {
  auto parsed = ParseBody(body);
  if (auto* error = std::get_if<ApiError>(&parsed)) return std::move(*error);
  auto checked = ParseCompletionFields(std::get<Value>(parsed), LimitsOf(context));
  if (auto* error = std::get_if<ApiError>(&checked)) return std::move(*error);
  return PrepareCompletionFields(std::move(std::get<CompletionFields>(checked)), context,
                                 kCompletionTokensDefault);
}

std::variant<Prepared, ApiError> PrepareCompletionFields(CompletionFields fields,
                                                         const PrepareContext& context,
                                                         uint32_t tokens_default) {
  Prepared out;
  FillCommon(fields, context, &out);
  out.style.echo = fields.echo;
  const text::Tokenizer& tokenizer = *context.model->tokenizer;
  if (auto error = SetGrammar(fields.form, false, tokenizer, &out.plan)) return *std::move(error);
  for (size_t i = 0; i < fields.prompts.size(); ++i) {
    const std::string name =
        fields.prompts.size() == 1 ? "prompt" : absl::StrCat("prompt[", i, "]");
    std::vector<int32_t> ids;
    if (auto* text = std::get_if<std::string>(&fields.prompts[i])) {
      // A token stands for at least a byte and seldom for more than a few: this much text cannot
      // fit, and encoding it would cost for nothing.
      if (text->size() > size_t{8} * context.max_model_len + (64 << 10)) {
        return ApiError{.message = absl::StrCat(name, ": ", text->size(),
                                                " bytes of text are too long for the context of ",
                                                context.max_model_len, " tokens"),
                        .param = name,
                        .code = "context_length_exceeded"};
      }
      auto encoded = tokenizer.Encode(*text);
      if (!encoded.ok()) {
        return ApiError{
            .message = absl::StrCat(name, ": ", std::string(encoded.status().message())),
            .param = name};
      }
      ids = *std::move(encoded);
      if (fields.echo) out.echo_texts.insert(out.echo_texts.end(), fields.n, *text);
    } else {
      ids = std::move(std::get<std::vector<int32_t>>(fields.prompts[i]));
      if (fields.echo) {
        out.echo_texts.insert(
            out.echo_texts.end(), fields.n,
            text::Decode(tokenizer, ids, {.skip_special_tokens = fields.skip_special_tokens}));
      }
    }
    if (ids.empty())
      return ApiError{.message = absl::StrCat(name, ": must not be empty"), .param = name};
    const auto wanted = static_cast<uint64_t>(fields.max_tokens.value_or(0));
    // A token is drawn, and dropped, where only the prompt is looked at.
    const uint64_t needed =
        fields.max_tokens && !fields.logprobs.prompt ? wanted : std::max<uint64_t>(1, wanted);
    if (ids.size() + needed > context.max_model_len) {
      return ContextLengthError(name, ids.size(), wanted, context.max_model_len);
    }
    const uint64_t room = context.max_model_len - ids.size();
    const uint64_t tokens = fields.max_tokens ? wanted : std::min<uint64_t>(room, tokens_default);
    if (fields.return_token_ids) out.prompt_ids.insert(out.prompt_ids.end(), fields.n, ids);
    AddChoices({.prompt_ids = std::move(ids), .max_tokens = static_cast<uint32_t>(tokens)},
               fields.n, &out.plan);
  }
  return out;
}

}  // namespace quartet::gateway
