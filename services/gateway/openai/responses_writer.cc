#include "services/gateway/openai/responses_writer.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/gateway/openai/answer.h"
#include "services/gateway/openai/logprobs.h"
#include "services/gateway/routing/gateway_core.h"
#include "services/gateway/text/json.h"

namespace quartet::gateway {
namespace {

using text::AppendJsonString;

std::string Quoted(std::string_view text) {
  std::string out;
  AppendJsonString(text, &out);
  return out;
}

// A field that holds text, with the comma before it.
std::string Field(std::string_view name, std::string_view value) {
  return absl::StrCat(",\"", std::string(name), "\":", Quoted(value));
}

}  // namespace

std::string ResponsesWriter::Event(std::string_view type, std::string_view rest) {
  const std::string name(type);
  return absl::StrCat("event: ", name, "\ndata: {\"type\":\"", name,
                      "\",\"sequence_number\":", sequence_number_++, std::string(rest), "}\n\n");
}

std::string ResponsesWriter::ItemEvent(std::string_view type, std::string_view rest) {
  const size_t index = items_.size() - 1;
  return Event(type, absl::StrCat(Field("item_id", items_.back().id), ",\"output_index\":", index,
                                  std::string(rest)));
}

std::string ResponsesWriter::ResponseEvent(std::string_view type, std::string_view status) {
  return Event(type, ",\"response\":" + Response(status, nullptr));
}

std::string ResponsesWriter::Start(const ChoiceUsage& usage) {
  usage_ = usage;
  if (!stream_) return "";
  std::string events = ResponseEvent("response.created", "in_progress");
  events += ResponseEvent("response.in_progress", "in_progress");
  return events;
}

std::string ResponsesWriter::Take(const ChoiceUpdate& update) {
  usage_ = update.usage;
  std::ranges::copy_if(update.scored, std::back_inserter(waiting_), &ScoredToken::content);
  std::string events;
  for (const text::TextPiece& piece : update.pieces) {
    switch (piece.kind) {
      case text::TextKind::kReasoning:
        OpenItem(ItemKind::kReasoning, "", &events);
        AddText(piece.text, &events);
        break;
      case text::TextKind::kContent:
        OpenItem(ItemKind::kMessage, "", &events);
        AddText(piece.text, &events);
        break;
      case text::TextKind::kCallName:
        CloseItem(Status::kCompleted, &events);
        OpenItem(ItemKind::kCall, piece.text, &events);
        break;
      case text::TextKind::kCallArguments:
        AddText(piece.text, &events);
        break;
      case text::TextKind::kCallEnd:
        CloseItem(Status::kCompleted, &events);
        break;
    }
  }
  if (update.finish) {
    finish_ = *update.finish;
    // A call that is still open has no end; other items have one unless they were cut off.
    const bool cut =
        finish_.kind == FinishKind::kLength || (open_ && items_.back().kind == ItemKind::kCall);
    CloseItem(cut ? Status::kIncomplete : Status::kCompleted, &events);
  }
  return events;
}

std::string ResponsesWriter::End() {
  if (!stream_) return "";
  const std::string status(FinalStatus());
  return ResponseEvent("response." + status, status);
}

std::string ResponsesWriter::Whole() const {
  return Response(FinalStatus(), nullptr);
}

std::string ResponsesWriter::Failed(const ApiError& error) {
  if (std::exchange(open_, false)) items_.back().status = Status::kIncomplete;
  return Event("response.failed", ",\"response\":" + Response("failed", &error));
}

// Goes on with the open item if it is of this kind.
void ResponsesWriter::OpenItem(ItemKind kind, std::string_view name, std::string* events) {
  if (open_ && items_.back().kind == kind) return;
  CloseItem(Status::kCompleted, events);
  // White space before a call is no text of any message.
  if (kind == ItemKind::kCall) waiting_.clear();
  open_ = true;
  Item& item = items_.emplace_back(Item{.kind = kind, .name = std::string(name)});
  item.id = RandomId(kind == ItemKind::kReasoning ? "rs_"
                     : kind == ItemKind::kMessage ? "msg_"
                                                  : "fc_");
  if (kind == ItemKind::kCall) item.call_id = NewCallId();
  if (!stream_) return;
  *events +=
      Event("response.output_item.added",
            absl::StrCat(",\"output_index\":", items_.size() - 1, ",\"item\":", ItemJson(item)));
  if (kind != ItemKind::kCall) {
    *events +=
        ItemEvent("response.content_part.added", ",\"content_index\":0,\"part\":" + Part(item));
  }
}

void ResponsesWriter::AddText(std::string_view text, std::string* events) {
  Item& item = items_.back();
  item.text += text;
  const std::string logprobs = item.kind == ItemKind::kMessage ? TakeLogprobs() : "";
  if (!stream_) return;
  switch (item.kind) {
    case ItemKind::kReasoning:
      *events +=
          ItemEvent("response.reasoning_text.delta", ",\"content_index\":0" + Field("delta", text));
      break;
    case ItemKind::kMessage:
      *events += ItemEvent(
          "response.output_text.delta",
          absl::StrCat(",\"content_index\":0,\"logprobs\":[", logprobs, "]", Field("delta", text)));
      break;
    case ItemKind::kCall:
      *events += ItemEvent("response.function_call_arguments.delta", Field("delta", text));
      break;
  }
}

std::string ResponsesWriter::TakeLogprobs() {
  Item& item = items_.back();
  std::string entries;
  while (!waiting_.empty() && item.scored_bytes < item.text.size()) {
    if (!entries.empty()) entries += ',';
    AppendLogprobEntries({&waiting_.front(), 1}, &entries);
    item.scored_bytes += waiting_.front().bytes.size();
    waiting_.pop_front();
  }
  absl::StrAppend(&item.logprobs, item.logprobs.empty() || entries.empty() ? "" : ",", entries);
  return entries;
}

void ResponsesWriter::CloseItem(Status status, std::string* events) {
  if (!std::exchange(open_, false)) return;
  Item& item = items_.back();
  item.status = status;
  if (!stream_) return;
  switch (item.kind) {
    case ItemKind::kReasoning:
      *events += ItemEvent("response.reasoning_text.done",
                           ",\"content_index\":0" + Field("text", item.text));
      break;
    case ItemKind::kMessage:
      *events += ItemEvent("response.output_text.done",
                           absl::StrCat(",\"content_index\":0,\"logprobs\":[", item.logprobs, "]",
                                        Field("text", item.text)));
      break;
    case ItemKind::kCall:
      // Clients act on this event, and arguments that were cut off are nothing to act on.
      if (status == Status::kCompleted) {
        *events += ItemEvent("response.function_call_arguments.done",
                             Field("name", item.name) + Field("arguments", item.text));
      }
      break;
  }
  if (item.kind != ItemKind::kCall) {
    *events +=
        ItemEvent("response.content_part.done", ",\"content_index\":0,\"part\":" + Part(item));
  }
  *events +=
      Event("response.output_item.done",
            absl::StrCat(",\"output_index\":", items_.size() - 1, ",\"item\":", ItemJson(item)));
}

std::string ResponsesWriter::Part(const Item& item) {
  const bool message = item.kind == ItemKind::kMessage;
  return absl::StrCat("{\"type\":\"", message ? "output_text" : "reasoning_text", "\"",
                      Field("text", item.text),
                      message ? ",\"annotations\":[],\"logprobs\":[" + item.logprobs + "]}" : "}");
}

std::string ResponsesWriter::ItemJson(const Item& item) {
  const std::string status = item.status == Status::kInProgress  ? "in_progress"
                             : item.status == Status::kCompleted ? "completed"
                                                                 : "incomplete";
  const std::string id = Field("id", item.id) + Field("status", status);
  // An item that was just opened has no part yet.
  const std::string content =
      absl::StrCat(",\"content\":[", item.status == Status::kInProgress ? "" : Part(item), "]}");
  switch (item.kind) {
    case ItemKind::kReasoning:
      return absl::StrCat("{\"type\":\"reasoning\"", id, ",\"summary\":[]", content);
    case ItemKind::kMessage:
      return absl::StrCat("{\"type\":\"message\"", id, ",\"role\":\"assistant\"", content);
    case ItemKind::kCall:
      break;
  }
  return absl::StrCat("{\"type\":\"function_call\"", id, Field("call_id", item.call_id),
                      Field("name", item.name), Field("arguments", item.text), "}");
}

std::string_view ResponsesWriter::FinalStatus() const {
  return finish_.kind == FinishKind::kLength ? "incomplete" : "completed";
}

std::string ResponsesWriter::Response(std::string_view status, const ApiError* error) const {
  std::string out = absl::StrCat("{\"id\":", Quoted(head_.id), ",\"object\":\"response\"",
                                 ",\"created_at\":", head_.created_unix_s,
                                 Field("model", head_.model), Field("status", status));
  out += ",\"error\":";
  if (error) {
    absl::StrAppend(&out, "{\"code\":\"",
                    error->status == 429 ? "rate_limit_exceeded" : "server_error", "\"",
                    Field("message", ClientMessage(*error)), "}");
  } else {
    out += "null";
  }
  out += ",\"incomplete_details\":";
  out += status == "incomplete" ? "{\"reason\":\"max_output_tokens\"}" : "null";
  absl::StrAppend(&out, head_.repeated,
                  ",\"background\":false,\"previous_response_id\":null,\"store\":false,"
                  "\"truncation\":\"disabled\",\"output\":[");
  for (size_t i = 0; i < items_.size(); ++i) {
    absl::StrAppend(&out, i ? "," : "", ItemJson(items_[i]));
  }
  out += "],\"usage\":";
  if (status == "in_progress") {
    out += "null}";
    return out;
  }
  absl::StrAppend(&out, "{\"input_tokens\":", usage_.prompt_tokens,
                  ",\"input_tokens_details\":{\"cached_tokens\":", usage_.cached_tokens,
                  ",\"cache_write_tokens\":0},\"output_tokens\":", usage_.completion_tokens,
                  ",\"output_tokens_details\":{\"reasoning_tokens\":", usage_.reasoning_tokens,
                  "},\"total_tokens\":", uint64_t{usage_.prompt_tokens} + usage_.completion_tokens,
                  "}}");
  return out;
}

}  // namespace quartet::gateway
