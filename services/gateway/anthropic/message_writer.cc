#include "services/gateway/anthropic/message_writer.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "services/gateway/routing/gateway_core.h"
#include "services/gateway/text/json.h"

namespace quartet::gateway {
namespace {

using text::AppendJsonString;

// Clients want one and give it back unread: there is nothing to verify, since a client may write
// the model's reasoning as it likes.
constexpr std::string_view kSignature = "quartet";

// A field that holds text, with the comma before it.
void AppendField(std::string_view name, std::string_view value, std::string* out) {
  absl::StrAppend(out, ",\"", std::string(name), "\":");
  AppendJsonString(value, out);
}

std::string BlockEvent(std::string_view type, size_t index, std::string_view rest) {
  return AnthropicEvent(type, absl::StrCat("{\"type\":\"", std::string(type),
                                           "\",\"index\":", index, std::string(rest), "}"));
}

std::string DeltaEvent(size_t index, std::string_view type, std::string_view field,
                       std::string_view text) {
  std::string rest = absl::StrCat(",\"delta\":{\"type\":\"", std::string(type), "\"");
  AppendField(field, text, &rest);
  rest += '}';
  return BlockEvent("content_block_delta", index, rest);
}

}  // namespace

std::string AnthropicEvent(std::string_view type, std::string_view json) {
  return absl::StrCat("event: ", std::string(type), "\ndata: ", std::string(json), "\n\n");
}

std::string_view StopReasonName(const ChoiceFinish& finish) {
  switch (finish.kind) {
    case FinishKind::kLength:
      return "max_tokens";
    case FinishKind::kStopString:
      return "stop_sequence";
    default:
      return finish.complete_calls > 0 ? "tool_use" : "end_turn";
  }
}

std::string MessageWriter::Start(const ChoiceUsage& usage) {
  usage_ = usage;
  if (!stream_) return "";
  std::string json = "{\"type\":\"message_start\",\"message\":{";
  AppendHead(&json);
  json += ",\"content\":[],\"stop_reason\":null,\"stop_sequence\":null,";
  AppendUsage(&json);
  json += "}}";
  return AnthropicEvent("message_start", json);
}

std::string MessageWriter::Take(const ChoiceUpdate& update) {
  usage_ = update.usage;
  std::string events;
  for (const text::TextPiece& piece : update.pieces) {
    switch (piece.kind) {
      case text::TextKind::kReasoning:
        if (head_.thinking == ThinkingDisplay::kHidden) break;
        OpenBlock(BlockKind::kThinking, "", &events);
        if (head_.thinking == ThinkingDisplay::kShown) AddText(piece.text, &events);
        break;
      case text::TextKind::kContent:
        OpenBlock(BlockKind::kText, "", &events);
        AddText(piece.text, &events);
        break;
      case text::TextKind::kCallName:
        CloseBlock(&events);
        OpenBlock(BlockKind::kToolUse, piece.text, &events);
        break;
      case text::TextKind::kCallArguments:
        AddText(piece.text, &events);
        break;
      case text::TextKind::kCallEnd:
        blocks_.back().complete = true;
        CloseBlock(&events);
        break;
    }
  }
  if (update.finish) {
    CloseBlock(&events);
    finish_ = *update.finish;
  }
  return events;
}

std::string MessageWriter::End() {
  if (!stream_) return "";
  std::string json = "{\"type\":\"message_delta\",\"delta\":{";
  AppendStop(&json);
  json += "},";
  AppendUsage(&json);
  json += '}';
  return AnthropicEvent("message_delta", json) +
         AnthropicEvent("message_stop", "{\"type\":\"message_stop\"}");
}

// Goes on with the open block if it is of this kind.
void MessageWriter::OpenBlock(BlockKind kind, std::string_view name, std::string* events) {
  if (open_ && blocks_.back().kind == kind) return;
  CloseBlock(events);
  open_ = true;
  Block& block = blocks_.emplace_back(Block{.kind = kind, .name = std::string(name)});
  if (kind == BlockKind::kToolUse) block.id = RandomId("toolu_");
  if (!stream_) return;
  std::string rest = ",\"content_block\":";
  AppendBlock(block, &rest);
  *events += BlockEvent("content_block_start", blocks_.size() - 1, rest);
}

void MessageWriter::AddText(std::string_view text, std::string* events) {
  if (!stream_) {
    blocks_.back().text += text;
    return;
  }
  const size_t index = blocks_.size() - 1;
  switch (blocks_.back().kind) {
    case BlockKind::kThinking:
      *events += DeltaEvent(index, "thinking_delta", "thinking", text);
      break;
    case BlockKind::kText:
      *events += DeltaEvent(index, "text_delta", "text", text);
      break;
    case BlockKind::kToolUse:
      *events += DeltaEvent(index, "input_json_delta", "partial_json", text);
      break;
  }
}

void MessageWriter::CloseBlock(std::string* events) {
  if (!std::exchange(open_, false) || !stream_) return;
  const size_t index = blocks_.size() - 1;
  if (blocks_.back().kind == BlockKind::kThinking) {
    *events += DeltaEvent(index, "signature_delta", "signature", kSignature);
  }
  *events += BlockEvent("content_block_stop", index, "");
}

std::string MessageWriter::Whole() const {
  std::string out = "{";
  AppendHead(&out);
  out += ",\"content\":[";
  for (size_t i = 0; i < blocks_.size(); ++i) {
    if (i) out += ',';
    AppendBlock(blocks_[i], &out);
  }
  out += "],";
  AppendStop(&out);
  out += ',';
  AppendUsage(&out);
  out += '}';
  return out;
}

void MessageWriter::AppendHead(std::string* out) const {
  *out += "\"type\":\"message\",\"role\":\"assistant\"";
  AppendField("id", head_.id, out);
  AppendField("model", head_.model, out);
}

// In a stream this is the block's beginning: signature and input follow in events.
void MessageWriter::AppendBlock(const Block& block, std::string* out) const {
  switch (block.kind) {
    case BlockKind::kThinking:
      *out += "{\"type\":\"thinking\"";
      AppendField("thinking", block.text, out);
      AppendField("signature", stream_ ? "" : kSignature, out);
      break;
    case BlockKind::kText:
      *out += "{\"type\":\"text\"";
      AppendField("text", block.text, out);
      break;
    case BlockKind::kToolUse:
      *out += "{\"type\":\"tool_use\"";
      AppendField("id", block.id, out);
      AppendField("name", block.name, out);
      // The arguments of a complete call are an object's JSON.
      absl::StrAppend(out, ",\"input\":", block.complete ? block.text : "{}");
      break;
  }
  *out += '}';
}

void MessageWriter::AppendStop(std::string* out) const {
  absl::StrAppend(out, "\"stop_reason\":\"", std::string(StopReasonName(finish_)),
                  "\",\"stop_sequence\":");
  if (finish_.kind == FinishKind::kStopString) {
    AppendJsonString(finish_.stop_string, out);
  } else {
    *out += "null";
  }
}

void MessageWriter::AppendUsage(std::string* out) const {
  absl::StrAppend(
      out, "\"usage\":{\"input_tokens\":", usage_.prompt_tokens - usage_.cached_tokens,
      ",\"cache_creation_input_tokens\":0,\"cache_read_input_tokens\":", usage_.cached_tokens,
      ",\"output_tokens\":", usage_.completion_tokens,
      ",\"output_tokens_details\":{\"thinking_tokens\":", usage_.reasoning_tokens, "}}");
}

}  // namespace quartet::gateway
