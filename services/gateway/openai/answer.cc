#include "services/gateway/openai/answer.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "services/gateway/routing/gateway_core.h"
#include "services/gateway/text/json.h"

namespace quartet::gateway {
namespace {

using text::AppendJsonString;

void AppendIds(std::string_view name, const std::vector<int32_t>& ids, std::string* out) {
  absl::StrAppend(out, ",\"", std::string(name), "\":[", absl::StrJoin(ids, ","), "]");
}

void AppendFinish(const ChoiceFinish* finish, std::string* out) {
  if (!finish) {
    *out += ",\"finish_reason\":null";
    return;
  }
  absl::StrAppend(out, ",\"finish_reason\":\"", std::string(FinishReasonName(*finish)),
                  "\",\"stop_reason\":");
  if (finish->kind == FinishKind::kStopString) {
    AppendJsonString(finish->stop_string, out);
  } else if (finish->kind == FinishKind::kStopId) {
    absl::StrAppend(out, finish->stop_id);
  } else {
    *out += "null";
  }
}

// Two names are in use for the same thing; clients read one or the other.
void AppendReasoning(const std::string& text, std::string* out) {
  *out += "\"reasoning_content\":";
  AppendJsonString(text, out);
  *out += ",\"reasoning\":";
  AppendJsonString(text, out);
}

}  // namespace

std::string_view FinishReasonName(const ChoiceFinish& finish) {
  if (finish.kind == FinishKind::kLength) return "length";
  return finish.complete_calls > 0 ? "tool_calls" : "stop";
}

std::string NewCallId() {
  return RandomId("call_");
}

std::string UsageJson(const ChoiceUsage& usage) {
  return absl::StrCat(
      "{\"prompt_tokens\":", usage.prompt_tokens,
      ",\"completion_tokens\":", usage.completion_tokens,
      ",\"total_tokens\":", uint64_t{usage.prompt_tokens} + usage.completion_tokens,
      ",\"prompt_tokens_details\":{\"cached_tokens\":", usage.cached_tokens,
      "},\"completion_tokens_details\":{\"reasoning_tokens\":", usage.reasoning_tokens, "}}");
}

AnswerWriter::AnswerWriter(AnswerHead head, AnswerStyle style, size_t choices)
    : head_(std::move(head)),
      style_(style),
      usage_(choices),
      completion_logprobs_(choices),
      collected_(choices) {}

ChoiceUsage AnswerWriter::TotalUsage() const {
  ChoiceUsage total;
  for (size_t i = 0; i < usage_.size(); ++i) {
    total.completion_tokens += usage_[i].completion_tokens;
    total.reasoning_tokens += usage_[i].reasoning_tokens;
    if (i % style_.choices_per_prompt != 0) continue;
    total.prompt_tokens += usage_[i].prompt_tokens;
    total.cached_tokens += usage_[i].cached_tokens;
  }
  return total;
}

std::string AnswerWriter::Open(std::string_view object) const {
  std::string out = "{\"id\":";
  AppendJsonString(head_.id, &out);
  absl::StrAppend(&out, ",\"object\":\"", std::string(object),
                  "\",\"created\":", head_.created_unix_s, ",\"model\":");
  AppendJsonString(head_.model, &out);
  out += ",\"system_fingerprint\":";
  AppendJsonString(head_.system_fingerprint, &out);
  return out;
}

std::string AnswerWriter::Chunk(uint32_t choice, std::string_view delta, const Tokens& tokens,
                                const ChoiceFinish* finish) const {
  std::string out = Open(style_.chat ? "chat.completion.chunk" : "text_completion");
  absl::StrAppend(&out, ",\"choices\":[{\"index\":", choice, ",",
                  style_.chat ? "\"delta\":" : "\"text\":", std::string(delta),
                  ",\"logprobs\":", tokens.logprobs.empty() ? "null" : tokens.logprobs);
  AppendFinish(finish, &out);
  if (style_.return_token_ids) {
    if (tokens.prompt_ids) AppendIds("prompt_token_ids", *tokens.prompt_ids, &out);
    if (tokens.ids) AppendIds("token_ids", *tokens.ids, &out);
  }
  out += "}]";
  if (style_.continuous_usage_stats) {
    absl::StrAppend(&out, ",\"usage\":", UsageJson(TotalUsage()));
  } else if (style_.include_usage) {
    out += ",\"usage\":null";
  }
  out += '}';
  return out;
}

std::string AnswerWriter::FirstChunk(uint32_t choice, const std::string* echo_text,
                                     const std::vector<int32_t>* prompt_ids) const {
  const Tokens tokens{.prompt_ids = prompt_ids};
  if (style_.chat) return Chunk(choice, R"({"role":"assistant","content":""})", tokens, nullptr);
  std::string text;
  AppendJsonString(echo_text ? *echo_text : std::string(), &text);
  return Chunk(choice, text, tokens, nullptr);
}

std::string AnswerWriter::Delta(const text::TextPiece& piece) const {
  std::string out;
  switch (piece.kind) {
    case text::TextKind::kReasoning:
      if (!style_.include_reasoning) break;
      out += '{';
      AppendReasoning(piece.text, &out);
      out += '}';
      break;
    case text::TextKind::kContent:
      if (style_.chat) out += "{\"content\":";
      AppendJsonString(piece.text, &out);
      if (style_.chat) out += '}';
      break;
    case text::TextKind::kCallName:
      absl::StrAppend(&out, "{\"tool_calls\":[{\"index\":", piece.call, ",\"id\":\"", NewCallId(),
                      "\",\"type\":\"function\",\"function\":{\"name\":");
      AppendJsonString(piece.text, &out);
      out += ",\"arguments\":\"\"}}]}";
      break;
    case text::TextKind::kCallArguments:
      absl::StrAppend(&out, "{\"tool_calls\":[{\"index\":", piece.call,
                      ",\"function\":{\"arguments\":");
      AppendJsonString(piece.text, &out);
      out += "}}]}";
      break;
    case text::TextKind::kCallEnd:
      break;
  }
  return out;
}

std::vector<std::string> AnswerWriter::Chunks(const ChoiceUpdate& update) {
  NoteUsage(update.choice, update.usage);
  std::vector<std::string> chunks;
  Tokens tokens;
  if (style_.return_token_ids && !update.ids.empty()) tokens.ids = &update.ids;
  if (style_.logprobs && !update.scored.empty()) {
    if (style_.chat) {
      AppendChatLogprobs(update.scored, &tokens.logprobs);
    } else {
      completion_logprobs_[update.choice].Append(update.scored, &tokens.logprobs);
    }
  }
  for (const text::TextPiece& piece : update.pieces) {
    const std::string delta = Delta(piece);
    if (delta.empty()) continue;
    // What is told of the tokens goes with the first piece of the text that was made from them.
    chunks.push_back(Chunk(update.choice, delta, std::exchange(tokens, {}), nullptr));
  }
  const std::string_view nothing = style_.chat ? "{}" : "\"\"";
  if (update.finish) {
    chunks.push_back(Chunk(update.choice, nothing, std::exchange(tokens, {}), &*update.finish));
  }
  if (tokens.ids || !tokens.logprobs.empty()) {
    chunks.push_back(Chunk(update.choice, nothing, tokens, nullptr));
  }
  return chunks;
}

std::string AnswerWriter::UsageChunk() const {
  return absl::StrCat(Open(style_.chat ? "chat.completion.chunk" : "text_completion"),
                      ",\"choices\":[],\"usage\":", UsageJson(TotalUsage()), "}");
}

void AnswerWriter::Collect(const ChoiceUpdate& update) {
  NoteUsage(update.choice, update.usage);
  Collected& collected = collected_[update.choice];
  for (const text::TextPiece& piece : update.pieces) {
    switch (piece.kind) {
      case text::TextKind::kReasoning:
        collected.reasoning += piece.text;
        break;
      case text::TextKind::kContent:
        collected.content += piece.text;
        break;
      case text::TextKind::kCallName:
        collected.calls.push_back({.id = NewCallId(), .name = piece.text});
        break;
      case text::TextKind::kCallArguments:
        collected.calls.back().arguments += piece.text;
        break;
      case text::TextKind::kCallEnd:
        break;
    }
  }
  if (style_.return_token_ids)
    collected.ids.insert(collected.ids.end(), update.ids.begin(), update.ids.end());
  const auto keep = [](const std::vector<ScoredToken>& from, std::vector<ScoredToken>& to) {
    to.insert(to.end(), from.begin(), from.end());
  };
  keep(update.scored_prompt, collected.prompt);
  keep(update.scored, collected.output);
  if (update.finish) collected.finish = *update.finish;
}

void AnswerWriter::AppendLogprobs(const Collected& collected, std::string* out) const {
  *out += ",\"logprobs\":";
  if (!style_.logprobs) {
    *out += "null";
  } else if (style_.chat) {
    AppendChatLogprobs(collected.output, out);
  } else {
    std::vector<ScoredToken> tokens;
    if (style_.echo) tokens = collected.prompt;
    tokens.insert(tokens.end(), collected.output.begin(), collected.output.end());
    CompletionLogprobs().Append(tokens, out);
  }
}

void AnswerWriter::AppendMessage(const Collected& collected, std::string* out) const {
  *out += "{\"role\":\"assistant\",\"content\":";
  if (collected.content.empty() && !(collected.reasoning.empty() && collected.calls.empty())) {
    *out += "null";
  } else {
    AppendJsonString(collected.content, out);
  }
  if (!collected.reasoning.empty() && style_.include_reasoning) {
    *out += ',';
    AppendReasoning(collected.reasoning, out);
  }
  // Clients wait for results even of an empty list of calls.
  for (size_t i = 0; i < collected.calls.size(); ++i) {
    const Call& call = collected.calls[i];
    absl::StrAppend(out, i ? "," : ",\"tool_calls\":[", "{\"id\":\"", call.id,
                    "\",\"type\":\"function\",\"function\":{\"name\":");
    AppendJsonString(call.name, out);
    *out += ",\"arguments\":";
    AppendJsonString(call.arguments, out);
    *out += "}}";
  }
  if (!collected.calls.empty()) *out += ']';
  *out += ",\"refusal\":null}";
}

std::string AnswerWriter::Whole(const std::vector<std::string>& echo_texts,
                                const std::vector<std::vector<int32_t>>& prompt_ids) const {
  std::string out = Open(style_.chat ? "chat.completion" : "text_completion");
  out += ",\"choices\":[";
  for (size_t i = 0; i < collected_.size(); ++i) {
    const Collected& collected = collected_[i];
    absl::StrAppend(&out, i ? "," : "", "{\"index\":", i);
    if (style_.chat) {
      out += ",\"message\":";
      AppendMessage(collected, &out);
    } else {
      out += ",\"text\":";
      AppendJsonString(
          i < echo_texts.size() ? echo_texts[i] + collected.content : collected.content, &out);
    }
    AppendLogprobs(collected, &out);
    AppendFinish(&collected.finish, &out);
    if (style_.prompt_logprobs && !style_.chat) {
      out += ",\"prompt_logprobs\":";
      AppendPromptLogprobs(collected.prompt, &out);
    }
    if (style_.return_token_ids) {
      if (i < prompt_ids.size()) AppendIds("prompt_token_ids", prompt_ids[i], &out);
      AppendIds("token_ids", collected.ids, &out);
    }
    out += '}';
  }
  out += ']';
  if (style_.prompt_logprobs && style_.chat) {
    out += ",\"prompt_logprobs\":";
    AppendPromptLogprobs(collected_[0].prompt, &out);
  }
  absl::StrAppend(&out, ",\"usage\":", UsageJson(TotalUsage()), "}");
  return out;
}

}  // namespace quartet::gateway
