#include "services/gateway/openai/request.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "services/gateway/openai/fields.h"

namespace quartet::gateway {
namespace {

using text::Value;

constexpr int64_t kInt32Max = std::numeric_limits<int32_t>::max();
constexpr size_t kUserBytesMax = 512;
constexpr size_t kLogitBiasMax = 1024;
constexpr double kRepetitionPenaltyMax = 1e6;
constexpr int64_t kTopLogprobsMax = 20;
constexpr std::string_view kUnsupported = "unsupported_parameter";

// Fields that other servers draw tokens by.
constexpr std::string_view kForeignSamplers[] = {
    "mirostat", "smoothing_factor", "tfs", "tfs_z", "top_a", "top_n_sigma", "typical", "typical_p"};
constexpr std::string_view kForeignSamplerPrefixes[] = {"dry_", "dynatemp_", "mirostat_", "xtc_"};

// Fields that have no effect here, and need none.
constexpr std::string_view kWithoutEffect[] = {
    "add_special_tokens",     "metadata",          "prediction", "prompt_cache_key",
    "prompt_cache_retention", "safety_identifier", "store",      "verbosity"};

}  // namespace

void CheckModel(Fields& fields, const RequestLimits& limits, std::optional<ApiError>* error) {
  const std::optional<std::string> model = fields.String("model");
  if (!model || limits.any_model || *model == limits.served_model_name || fields.failed()) return;
  *error = ApiError{.status = 404,
                    .message = absl::StrCat("the model '", model->substr(0, 200),
                                            "' does not exist; this server serves '",
                                            limits.served_model_name, "'"),
                    .param = "model",
                    .code = "model_not_found"};
}

namespace {

void RefuseBool(Fields& fields, std::string_view name, bool neutral) {
  const std::optional<bool> value = fields.Bool(name);
  if (value && *value != neutral) {
    fields.Fail(name, absl::StrCat("only ", neutral ? "true" : "false", " is supported"),
                kUnsupported);
  }
}

bool IsEmpty(const Value& value) {
  return (value.is_list() && value.list().empty()) ||
         (value.is_object() && value.entries().empty()) ||
         (value.is_string() && value.string().empty()) || (value.is_bool() && !value.boolean());
}

// Fields that ask for something as soon as they hold something.
void RefuseContent(Fields& fields, std::initializer_list<std::string_view> names) {
  for (std::string_view name : names) {
    const Value* value = fields.Get(name);
    if (value && !IsEmpty(*value)) fields.Fail(name, "is not supported", kUnsupported);
  }
}

void ParseLogitBias(Fields& fields, const RequestLimits& limits, CommonFields* out) {
  const Value* bias = fields.Object("logit_bias");
  if (!bias) return;
  if (bias->entries().size() > kLogitBiasMax) {
    fields.Fail("logit_bias", absl::StrCat("must hold at most ", kLogitBiasMax, " token ids, not ",
                                           bias->entries().size()));
    return;
  }
  for (const auto& [key, value] : bias->entries()) {
    int64_t id = -1;
    if (key.empty() || key.size() > 10 ||
        !std::all_of(key.begin(), key.end(), [](char c) { return c >= '0' && c <= '9'; }) ||
        (id = std::stoll(key)) >= limits.vocab_size) {
      fields.Fail("logit_bias",
                  absl::StrCat("the key '", key.substr(0, 40), "' is not a token id from 0 to ",
                               limits.vocab_size - 1));
      return;
    }
    if (!value.is_number() || !(value.number() >= -100 && value.number() <= 100)) {
      fields.Fail("logit_bias",
                  absl::StrCat("the value of '", key, "' must be a number from -100 to 100"));
      return;
    }
    out->logit_bias.emplace_back(static_cast<int32_t>(id), static_cast<float>(value.number()));
  }
}

void ParsePenalties(Fields& fields, CommonFields* out) {
  out->presence_penalty = fields.Number("presence_penalty", -2, 2).value_or(0);
  out->frequency_penalty = fields.Number("frequency_penalty", -2, 2).value_or(0);
  for (std::string_view name : {"repeat_penalty", "repetition_penalty"}) {
    const std::optional<double> penalty = fields.Number(name, 0, kRepetitionPenaltyMax);
    if (!penalty) continue;
    if (*penalty == 0) fields.Fail(name, "must be above 0");
    out->repetition_penalty = penalty;
  }
}

// What `n` choices of a prompt are; best_of would generate more than are sent.
void ParseChoices(Fields& fields, CommonFields* out) {
  out->n = static_cast<uint32_t>(fields.Integer("n", 1, kChoicesMax).value_or(1));
  const std::optional<int64_t> best_of = fields.Integer("best_of", 1, kChoicesMax);
  if (best_of && *best_of != out->n) {
    fields.Fail("best_of", absl::StrCat("must be equal to n, ", out->n), kUnsupported);
  }
}

void ParsePromptLogprobs(Fields& fields, CommonFields* out) {
  const Value* value = fields.Get("prompt_logprobs");
  if (!value || (value->is_bool() && !value->boolean())) return;
  const std::optional<int64_t> top = fields.Integer("prompt_logprobs", 0, kTopLogprobsMax);
  if (!top) return;
  if (out->stream) fields.Fail("prompt_logprobs", "is not allowed with \"stream\": true");
  out->prompt_logprobs = true;
  out->logprobs.prompt = true;
  out->logprobs.prompt_top = static_cast<uint32_t>(*top);
}

// One budget under many names.
void ParseThinkingBudget(Fields& fields, std::optional<ApiError>* error, ChatFields* out) {
  const auto take = [out](const std::optional<int64_t>& budget) {
    if (budget) out->thinking_token_budget = static_cast<uint32_t>(*budget);
  };
  if (const Value* thinking = fields.Object("thinking")) {
    Fields inner(*thinking, "thinking.", error);
    const std::optional<int64_t> budget = inner.Integer("budget_tokens", 0, kInt32Max);
    if (inner.String("type") != "disabled") take(budget);
  }
  if (const Value* reasoning = fields.Object("reasoning")) {
    Fields inner(*reasoning, "reasoning.", error);
    take(inner.Integer("max_tokens", 0, kInt32Max));
    inner.Bool("enabled");
  }
  for (std::string_view name :
       {"thinking_budget", "reasoning_budget_tokens", "thinking_token_budget"}) {
    take(fields.Integer(name, 0, kInt32Max));
  }
}

void ParseStop(Fields& fields, CommonFields* out) {
  const Value* stop = fields.Get("stop");
  if (!stop || fields.failed()) return;
  std::vector<Value> items;
  if (stop->is_string()) {
    items.push_back(*stop);
  } else if (stop->is_list()) {
    items = stop->list();
  } else {
    fields.Fail("stop", absl::StrCat("must be a string or a list of strings, not ",
                                     std::string(stop->TypeName())));
    return;
  }
  if (items.size() > kStopStringsMax) {
    fields.Fail("stop", absl::StrCat("must hold at most ", kStopStringsMax, " strings, not ",
                                     items.size()));
    return;
  }
  for (size_t i = 0; i < items.size(); ++i) {
    const std::string name = stop->is_string() ? "stop" : absl::StrCat("stop[", i, "]");
    if (!items[i].is_string()) {
      fields.Fail(name, absl::StrCat("must be a string, not ", std::string(items[i].TypeName())));
    } else if (items[i].string().empty()) {
      fields.Fail(name, "must not be empty");
    } else if (items[i].string().size() > kStopStringBytesMax) {
      fields.Fail(name, absl::StrCat("must be at most ", kStopStringBytesMax, " bytes long, not ",
                                     items[i].string().size()));
    } else {
      out->stop.push_back(items[i].string());
    }
  }
}

void ParseStream(Fields& fields, std::optional<ApiError>* error, CommonFields* out) {
  out->stream = fields.Bool("stream").value_or(false);
  const Value* options = fields.Object("stream_options");
  if (!options) return;
  if (!out->stream) {
    fields.Fail("stream_options", "is allowed only with \"stream\": true");
    return;
  }
  Fields inner(*options, "stream_options.", error);
  out->include_usage = inner.Bool("include_usage").value_or(false);
  out->continuous_usage_stats = inner.Bool("continuous_usage_stats").value_or(false);
  if (out->continuous_usage_stats && !out->include_usage) {
    inner.Fail("continuous_usage_stats", "needs \"include_usage\": true");
  }
}

// Lower priorities are served first, as elsewhere; there are two classes, and 0 is the upper one.
void ParseScheduling(Fields& fields, CommonFields* out) {
  out->user = fields.String("user").value_or("");
  if (out->user.size() > kUserBytesMax) {
    fields.Fail("user", absl::StrCat("must be at most ", kUserBytesMax, " bytes long"));
  }
  const std::string tier = fields.String("service_tier").value_or("auto");
  if (tier != "auto" && tier != "default" && tier != "scale" && tier != "priority" &&
      tier != "flex") {
    fields.Fail("service_tier",
                "must be \"auto\", \"default\", \"scale\", \"priority\" or \"flex\"");
  }
  const int64_t priority = fields.Integer("priority", -kInt32Max, kInt32Max).value_or(0);
  out->batch = tier == "flex" || priority > 0;
  out->ttft_deadline_ms = fields.Integer("ttft_deadline_ms", 1, kInt32Max);
}

// To be called when everything else has been asked for.
void NoteIgnored(const Fields& fields, IgnoredFields* out) {
  for (std::string& name : fields.Unread()) {
    const bool sampler = std::ranges::find(kForeignSamplers, name) != std::end(kForeignSamplers) ||
                         std::ranges::any_of(kForeignSamplerPrefixes, [&](std::string_view prefix) {
                           return name.starts_with(prefix);
                         });
    if (sampler) {
      out->samplers.push_back(std::move(name));
    } else if (std::ranges::find(kWithoutEffect, name) == std::end(kWithoutEffect)) {
      out->unknown.push_back(std::move(name));
    }
  }
}

void ParseCommon(Fields& fields, const RequestLimits& limits, int64_t max_tokens_min,
                 std::optional<ApiError>* error, CommonFields* out) {
  ParseStream(fields, error, out);
  out->max_tokens = fields.Integer("max_tokens", max_tokens_min, kInt32Max);
  if (const auto wins = fields.Integer("max_completion_tokens", max_tokens_min, kInt32Max))
    out->max_tokens = wins;
  out->temperature = fields.Number("temperature", 0, 2);
  out->top_p = fields.Number("top_p", 0, 1);
  if (out->top_p && *out->top_p == 0) fields.Fail("top_p", "must be above 0 and at most 1");
  out->top_k = fields.Integer("top_k", -1, kInt32Max);
  out->min_p = fields.Number("min_p", 0, 1);
  out->seed = fields.Integer("seed", std::numeric_limits<int64_t>::min(),
                             std::numeric_limits<int64_t>::max());
  ParseStop(fields, out);
  if (auto ids = fields.Ids("stop_token_ids", limits.vocab_size, 1024))
    out->stop_token_ids = std::move(*ids);
  out->include_stop_str_in_output = fields.Bool("include_stop_str_in_output").value_or(false);
  out->ignore_eos = fields.Bool("ignore_eos").value_or(false);
  out->skip_special_tokens = fields.Bool("skip_special_tokens").value_or(true);
  out->return_token_ids = fields.Bool("return_token_ids").value_or(false);
  out->request_id = fields.String("request_id").value_or("");
  if (out->request_id.size() > 128) fields.Fail("request_id", "must be at most 128 bytes long");
  out->cache_salt = fields.String("cache_salt").value_or("");
  out->cache_read_only = fields.Bool("cache_read_only").value_or(false);
  if (out->cache_salt.size() > 256) fields.Fail("cache_salt", "must be at most 256 bytes long");

  ParseChoices(fields, out);
  ParsePenalties(fields, out);
  out->min_tokens = static_cast<uint32_t>(fields.Integer("min_tokens", 0, kInt32Max).value_or(0));
  if (out->max_tokens && out->min_tokens > *out->max_tokens) {
    fields.Fail("min_tokens", absl::StrCat("must be at most max_tokens, ", *out->max_tokens));
  }
  ParseLogitBias(fields, limits, out);
  ParsePromptLogprobs(fields, out);
  ParseContentForm(fields, error, &out->form);
  RefuseContent(fields, {"return_tokens_as_token_ids", "truncate_prompt_tokens", "use_beam_search",
                         "logits_processors", "bad_words", "allowed_token_ids"});
  ParseScheduling(fields, out);
}

// What could go on after an answer that its form has ended.
void RefuseBesidesForm(Fields& fields, const CommonFields& out) {
  if (!out.form.constrained()) return;
  const std::string other = out.form.tools ? "this tool_choice" : out.form.content_param;
  if (out.min_tokens > 0) {
    fields.Fail("min_tokens", absl::StrCat("cannot be combined with ", other), kUnsupported);
  }
  if (out.ignore_eos) {
    fields.Fail("ignore_eos", absl::StrCat("cannot be combined with ", other), kUnsupported);
  }
}

}  // namespace

std::variant<ChatFields, ApiError> ParseChatFields(const Value& body, const RequestLimits& limits) {
  if (!body.is_object()) {
    return ApiError{.message = absl::StrCat("the body must be a JSON object, not ",
                                            std::string(body.TypeName()))};
  }
  std::optional<ApiError> error;
  Fields fields(body, "", &error);
  ChatFields out;
  CheckModel(fields, limits, &error);
  const Value* messages = fields.Get("messages");
  if (!messages) {
    fields.Fail("messages", "is missing");
  } else if (!messages->is_list()) {
    fields.Fail("messages",
                absl::StrCat("must be a list, not ", std::string(messages->TypeName())));
  } else if (messages->list().empty()) {
    fields.Fail("messages", "must hold at least one message");
  }
  ParseCommon(fields, limits, 1, &error, &out);
  out.logprobs.output = fields.Bool("logprobs").value_or(false);
  const int64_t top = fields.Integer("top_logprobs", 0, kTopLogprobsMax).value_or(0);
  if (top > 0 && !out.logprobs.output) fields.Fail("top_logprobs", "needs \"logprobs\": true");
  out.logprobs.output_top = static_cast<uint32_t>(top);
  ParseToolForm(fields, &error, &out.no_tool_calls, &out.parallel_tool_calls, &out.form);
  RefuseBesidesForm(fields, out);
  if (fields.Get("functions"))
    fields.Fail("functions", "is not supported; use tools", kUnsupported);
  if (fields.Get("function_call"))
    fields.Fail("function_call", "is not supported; use tool_choice", kUnsupported);
  fields.String("reasoning_effort");
  out.include_reasoning = fields.Bool("include_reasoning").value_or(true);
  RefuseBool(fields, "separate_reasoning", true);
  RefuseBool(fields, "echo", false);
  fields.Bool("add_generation_prompt");
  fields.Bool("continue_final_message");
  fields.Object("chat_template_kwargs");
  if (fields.Get("chat_template"))
    fields.Fail("chat_template", "a template of one's own is not allowed", kUnsupported);
  ParseThinkingBudget(fields, &error, &out);
  RefuseContent(fields, {"audio", "web_search_options"});
  if (const Value* modalities = fields.Get("modalities")) {
    const bool text_only =
        modalities->is_list() && std::ranges::all_of(modalities->list(), [](const Value& one) {
          return one.is_string() && one.string() == "text";
        });
    if (!text_only) fields.Fail("modalities", "only [\"text\"] is supported", kUnsupported);
  }
  NoteIgnored(fields, &out.ignored);
  if (error) return *std::move(error);
  return out;
}

std::variant<CompletionFields, ApiError> ParseCompletionFields(const Value& body,
                                                               const RequestLimits& limits) {
  if (!body.is_object()) {
    return ApiError{.message = absl::StrCat("the body must be a JSON object, not ",
                                            std::string(body.TypeName()))};
  }
  std::optional<ApiError> error;
  Fields fields(body, "", &error);
  CompletionFields out;
  CheckModel(fields, limits, &error);
  out.echo = fields.Bool("echo").value_or(false);
  ParseCommon(fields, limits, out.echo ? 0 : 1, &error, &out);
  if (const auto top = fields.Integer("logprobs", 0, kTopLogprobsMax)) {
    // Zero asks for the log-probability of the sampled tokens.
    out.logprobs.output = true;
    out.logprobs.output_top = static_cast<uint32_t>(*top);
    if (out.echo && out.stream) {
      fields.Fail("logprobs", "is not allowed together with echo and \"stream\": true");
    }
    if (out.echo) {
      out.logprobs.prompt = true;
      out.logprobs.prompt_top = std::max(out.logprobs.prompt_top, out.logprobs.output_top);
    }
  }
  RefuseContent(fields, {"suffix"});
  RefuseBesidesForm(fields, out);

  const Value* prompt = fields.Get("prompt");
  if (!prompt) {
    fields.Fail("prompt", "is missing");
  } else if (prompt->is_string()) {
    out.prompts.emplace_back(prompt->string());
  } else if (!prompt->is_list()) {
    fields.Fail("prompt", absl::StrCat("must be a string, a list of strings, a list of token ids "
                                       "or a list of such lists, not ",
                                       std::string(prompt->TypeName())));
  } else if (prompt->list().empty()) {
    fields.Fail("prompt", "must not be empty");
  } else if (prompt->list()[0].is_number()) {
    if (auto ids = fields.Ids("prompt", limits.vocab_size, static_cast<size_t>(kInt32Max))) {
      out.prompts.emplace_back(*std::move(ids));
    }
  } else if (prompt->list().size() > kPromptsMax) {
    fields.Fail("prompt", absl::StrCat("must hold at most ", kPromptsMax, " prompts, not ",
                                       prompt->list().size()));
  } else {
    const bool strings = prompt->list()[0].is_string();
    for (size_t i = 0; i < prompt->list().size() && !fields.failed(); ++i) {
      const Value& item = prompt->list()[i];
      const std::string name = absl::StrCat("prompt[", i, "]");
      if (strings ? !item.is_string() : !item.is_list()) {
        fields.Fail(name, absl::StrCat("prompts must all be of one kind; this one is of type ",
                                       std::string(item.TypeName())));
      } else if (strings) {
        out.prompts.emplace_back(item.string());
      } else {
        const Value holder = Value::MakeObject({{name, item}});
        Fields inner(holder, "", &error);
        if (item.list().empty()) inner.Fail(name, "must not be empty");
        if (auto ids = inner.Ids(name, limits.vocab_size, static_cast<size_t>(kInt32Max))) {
          out.prompts.emplace_back(*std::move(ids));
        }
      }
    }
  }
  NoteIgnored(fields, &out.ignored);
  if (out.prompts.size() * out.n > kChoicesMax) {
    fields.Fail("n", absl::StrCat("asks for ", out.prompts.size() * out.n,
                                  " choices of all prompts; at most ", kChoicesMax));
  }
  if (error) return *std::move(error);
  return out;
}

Sampling ResolveSampling(const CommonFields& fields, const text::SamplingDefaults& defaults,
                         uint64_t random_seed) {
  Sampling sampling;
  const bool asks = fields.temperature || fields.top_p || fields.top_k || fields.min_p;
  double temperature = fields.temperature.value_or(defaults.temperature);
  if (defaults.greedy && !fields.temperature) temperature = asks ? 1.0 : 0.0;
  // Below this the logits would overflow before the draw.
  if (temperature > 0 && temperature < 0.01) temperature = 0.01;
  sampling.temperature = static_cast<float>(temperature);
  sampling.top_p = static_cast<float>(fields.top_p.value_or(defaults.top_p));
  sampling.min_p = static_cast<float>(fields.min_p.value_or(defaults.min_p));
  sampling.top_k =
      static_cast<int32_t>(std::max<int64_t>(0, fields.top_k.value_or(defaults.top_k)));
  sampling.seed = fields.seed ? static_cast<uint64_t>(*fields.seed) : random_seed;
  sampling.seeded = fields.seed.has_value();
  sampling.presence_penalty = static_cast<float>(fields.presence_penalty);
  sampling.frequency_penalty = static_cast<float>(fields.frequency_penalty);
  sampling.repetition_penalty =
      static_cast<float>(fields.repetition_penalty.value_or(defaults.repetition_penalty));
  sampling.logit_bias = fields.logit_bias;
  sampling.min_tokens = fields.min_tokens;
  return sampling;
}

}  // namespace quartet::gateway
