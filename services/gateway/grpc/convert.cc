#include "services/gateway/grpc/convert.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/gateway/openai/answer.h"
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

std::optional<ApiError> CheckStops(const v1::GenerateRequest& request) {
  if (static_cast<size_t>(request.stop_size()) > kStopStringsMax) {
    return Refuse("stop", absl::StrCat("must hold at most ", kStopStringsMax, " strings"));
  }
  for (int i = 0; i < request.stop_size(); ++i) {
    if (request.stop(i).empty() || request.stop(i).size() > kStopStringBytesMax) {
      return Refuse(absl::StrCat("stop[", i, "]"),
                    absl::StrCat("must be 1 to ", kStopStringBytesMax, " bytes long"));
    }
  }
  return std::nullopt;
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
  if (request.max_tokens() > 0) {
    entries.emplace_back("max_tokens", Value::Integer(request.max_tokens()));
    entries.emplace_back("max_completion_tokens", Value::None());
  }
  if (request.stop_size() > 0) {
    Value::List stops;
    for (const std::string& stop : request.stop()) stops.push_back(Value::String(stop));
    entries.emplace_back("stop", Value::MakeList(std::move(stops)));
  }
  if (request.ignore_eos()) entries.emplace_back("ignore_eos", Value::Bool(true));
  if (request.n() > 0) entries.emplace_back("n", Value::Integer(request.n()));
  if (request.logprobs()) {
    entries.emplace_back("logprobs", Value::Bool(true));
    entries.emplace_back("top_logprobs", Value::Integer(request.top_logprobs()));
  }
  if (request.has_thinking_token_budget()) {
    entries.emplace_back("thinking_token_budget", Value::Integer(request.thinking_token_budget()));
  }
  return PrepareChatValue(Value::MakeObject(std::move(entries)), context);
}

std::variant<Prepared, ApiError> PreparePlain(const v1::GenerateRequest& request,
                                              const PrepareContext& context) {
  CompletionFields fields;
  if (request.prompt_case() == v1::GenerateRequest::kText) {
    fields.prompts.emplace_back(request.text());
  } else {
    const auto& ids = request.token_ids().ids();
    const int32_t vocab_size = context.model->defaults.end.vocab_size;
    for (int i = 0; i < ids.size(); ++i) {
      if (ids[i] < 0 || ids[i] >= vocab_size) {
        return *Refuse(
            absl::StrCat("token_ids.ids[", i, "]"),
            absl::StrCat("must be a token id from 0 to ", vocab_size - 1, ", not ", ids[i]));
      }
    }
    fields.prompts.emplace_back(std::vector<int32_t>(ids.begin(), ids.end()));
  }
  if (request.max_tokens() > 0) fields.max_tokens = request.max_tokens();
  fields.stop.assign(request.stop().begin(), request.stop().end());
  fields.ignore_eos = request.ignore_eos();
  if (request.has_thinking_token_budget()) {
    return *Refuse("thinking_token_budget", "needs chat_request_json");
  }
  fields.n = std::max(1u, request.n());
  fields.logprobs.output = request.logprobs();
  fields.logprobs.output_top = request.top_logprobs();
  return PrepareCompletionFields(std::move(fields), context, std::numeric_limits<uint32_t>::max());
}

void ToProto(const ScoredId& from, v1::TokenLogprob* to) {
  to->set_id(from.id);
  to->set_token(from.bytes);
  to->set_logprob(from.logprob);
}

v1::FinishReason ToReason(const ChoiceFinish& finish) {
  if (finish.kind == FinishKind::kLength) return v1::FINISH_REASON_LENGTH;
  return finish.complete_calls > 0 ? v1::FINISH_REASON_TOOL_CALLS : v1::FINISH_REASON_STOP;
}

}  // namespace

std::variant<Prepared, ApiError> PrepareGenerate(const v1::GenerateRequest& request,
                                                 const PrepareContext& context) {
  if (!request.model().empty() && request.model() != context.served_model_name) {
    return ApiError{
        .status = 404,
        .message = absl::StrCat("the model '", request.model().substr(0, 200), "' does not exist"),
        .param = "model",
        .code = "model_not_found"};
  }
  if (request.prompt_case() == v1::GenerateRequest::PROMPT_NOT_SET) {
    return *Refuse("prompt", "one of text, token_ids and chat_request_json must be set");
  }
  if (auto error = CheckStops(request)) return *std::move(error);
  if (request.n() > kChoicesMax) {
    return *Refuse("n", absl::StrCat("must be at most ", kChoicesMax));
  }
  if (request.top_logprobs() > 20 || (request.top_logprobs() > 0 && !request.logprobs())) {
    return *Refuse("top_logprobs", "must be at most 20 and needs logprobs");
  }
  auto result = request.prompt_case() == v1::GenerateRequest::kChatRequestJson
                    ? PrepareChatJson(request, context)
                    : PreparePlain(request, context);
  if (auto* prepared = std::get_if<Prepared>(&result)) {
    prepared->style.return_token_ids = request.return_token_ids();
    if (request.has_sampling()) {
      const int32_t vocab_size = context.model->defaults.end.vocab_size;
      auto error = TakeSampling(request.sampling(), vocab_size, prepared);
      if (error) return *std::move(error);
    }
  }
  return result;
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
  if (!update.scored.empty()) {
    if (responses.empty()) responses.emplace_back();
    for (const ScoredToken& token : update.scored) {
      v1::TokenLogprob* out = responses.front().add_logprobs();
      ToProto(token, out);
      for (const ScoredId& likely : token.top) ToProto(likely, out->add_top());
    }
  }
  if (update.finish) {
    if (responses.empty()) responses.emplace_back();
    v1::GenerateResponse::Finish* finish = responses.back().mutable_finish();
    finish->set_reason(ToReason(*update.finish));
    finish->set_prompt_tokens(update.usage.prompt_tokens);
    finish->set_completion_tokens(update.usage.completion_tokens);
    finish->set_cached_tokens(update.usage.cached_tokens);
    finish->set_stop_string(update.finish->stop_string);
  }
  for (v1::GenerateResponse& response : responses) response.set_choice(update.choice);
  return responses;
}

}  // namespace quartet::gateway
