#include "services/gateway/text/answer_text.h"

#include <utility>

namespace quartet::text {

AnswerText::AnswerText(AnswerTextOptions options)
    : options_(std::move(options)),
      matcher_(options_.stop, {.include_stop_string = options_.include_stop_string}) {
  if (options_.split) splitter_.emplace(options_.opens_think, options_.tools);
}

void AnswerText::Append(std::string_view text, std::vector<TextPiece>* out) {
  if (stopped()) return;
  split_.clear();
  if (splitter_) {
    splitter_->Append(text, &split_);
  } else {
    AppendPiece(TextKind::kContent, text, 0, &split_);
  }
  Take(out);
}

void AnswerText::Finish(OutputEnd end, std::vector<TextPiece>* out) {
  if (stopped()) return;
  split_.clear();
  if (splitter_) splitter_->Finish(end, &split_);
  Take(out);
  if (!stopped()) AppendPiece(TextKind::kContent, matcher_.Finish(), 0, out);
}

void AnswerText::Take(std::vector<TextPiece>* out) {
  for (const TextPiece& piece : split_) {
    if (piece.kind == TextKind::kContent) {
      content_bytes_ += piece.text.size();
      const std::string text =
          stops_active_ ? matcher_.Append(piece.text) : matcher_.Skip(piece.text);
      AppendPiece(TextKind::kContent, text, 0, out);
    } else {
      // The run of content is over: a stop string does not go on behind it.
      AppendPiece(TextKind::kContent, matcher_.Finish(), 0, out);
    }
    if (matcher_.stopped()) return;
    if (piece.kind == TextKind::kContent) continue;
    AppendPiece(piece.kind, piece.text, piece.call, out);
    if (piece.kind != TextKind::kCallEnd) continue;
    ++complete_calls_;
    call_done_ = options_.one_call;
    if (call_done_) return;
  }
}

}  // namespace quartet::text
