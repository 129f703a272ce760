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
  if (stopped()) return;
  AppendPiece(run_, matcher_.Finish(), 0, out);
  if (end == OutputEnd::kStop && only_reasoning_) {
    AppendPiece(TextKind::kContent, reasoning_, 0, out);
  }
}

void AnswerText::Take(std::vector<TextPiece>* out) {
  for (const TextPiece& piece : split_) {
    const bool reasoning = piece.kind == TextKind::kReasoning;
    only_reasoning_ = only_reasoning_ && reasoning;
    if (reasoning && options_.nonempty_content) reasoning_ += piece.text;
    const bool searched =
        piece.kind == TextKind::kContent || (reasoning && options_.stop_in_reasoning);
    // A run is over when another begins: a stop string does not go on behind it.
    if (!searched || piece.kind != run_) AppendPiece(run_, matcher_.Finish(), 0, out);
    if (searched && !stopped()) Search(piece, out);
    if (stopped()) return;
    if (searched) continue;
    AppendPiece(piece.kind, piece.text, piece.call, out);
    if (piece.kind != TextKind::kCallEnd) continue;
    ++complete_calls_;
    call_done_ = options_.one_call;
    if (call_done_) return;
  }
}

void AnswerText::Search(const TextPiece& piece, std::vector<TextPiece>* out) {
  run_ = piece.kind;
  searched_bytes_ += piece.text.size();
  AppendPiece(run_, stops_active_ ? matcher_.Append(piece.text) : matcher_.Skip(piece.text), 0,
              out);
}

}  // namespace quartet::text
