#include "services/gateway/text/output_splitter.h"

#include <array>
#include <span>
#include <utility>

#include "services/gateway/text/tags.h"
#include "services/gateway/text/unicode.h"

namespace quartet::text {
namespace {

// Those of calls come last: they count only where tools are active.
constexpr std::array kReasoningTags = {kThinkClose, kCallOpen};
constexpr std::array kContentTags = {kThinkOpen, kThinkClose, kCallOpen, kCallClose};

}  // namespace

OutputSplitter::OutputSplitter(bool opens_think, std::shared_ptr<const Tools> tools)
    : tools_(std::move(tools)), state_(opens_think ? State::kStart : State::kContent) {}

void OutputSplitter::Append(std::string_view text, std::vector<TextPiece>* out) {
  characters_.Append(text, &pending_);
  Process(out);
}

void OutputSplitter::Finish(OutputEnd end, std::vector<TextPiece>* out) {
  characters_.Flush(&pending_);
  Process(out);
  if (in_reasoning()) {
    AppendPiece(TextKind::kReasoning, pending_, 0, out);
  } else if (state_ == State::kContent) {
    EmitContent(pending_, out);
    EndRun(out);
  } else {
    std::vector<TextPiece> pieces;
    call_->Finish(end, pending_, &pieces);
    TakeFromCall(std::move(pieces), out);
  }
  pending_.clear();
}

void OutputSplitter::Process(std::vector<TextPiece>* out) {
  std::string_view text = pending_;
  bool more = true;
  while (more && !text.empty()) {
    switch (state_) {
      case State::kStart:
        more = !MayBecome(text, kThinkOpen);
        if (!more) break;
        if (text.starts_with(kThinkOpen)) text.remove_prefix(kThinkOpen.size());
        state_ = State::kReasoning;
        break;
      case State::kReasoning:
        more = PassReasoning(&text, out);
        break;
      case State::kContent:
        more = PassContent(&text, out);
        break;
      case State::kCall:
        more = PassCall(&text, out);
        break;
    }
  }
  pending_.erase(0, pending_.size() - text.size());
}

bool OutputSplitter::PassReasoning(std::string_view* text, std::vector<TextPiece>* out) {
  const TagMatch match = FirstTag(*text, std::span(kReasoningTags).first(tools_ ? 2 : 1));
  AppendPiece(TextKind::kReasoning, text->substr(0, match.at), 0, out);
  text->remove_prefix(match.at + match.tag.size());
  if (match.tag.empty()) return false;
  BeginRun(false);
  state_ = State::kContent;
  if (match.tag == kCallOpen) BeginCall();
  return true;
}

bool OutputSplitter::PassContent(std::string_view* text, std::vector<TextPiece>* out) {
  const TagMatch match = FirstTag(*text, std::span(kContentTags).first(tools_ ? 4 : 2));
  EmitContent(text->substr(0, match.at), out);
  text->remove_prefix(match.at + match.tag.size());
  if (match.tag == kThinkOpen) {
    EndRun(out);
    state_ = State::kReasoning;
  } else if (match.tag == kCallOpen) {
    BeginCall();
  }
  return !match.tag.empty();
}

void OutputSplitter::BeginCall() {
  state_ = State::kCall;
  call_.emplace(tools_.get(), calls_);
}

bool OutputSplitter::PassCall(std::string_view* text, std::vector<TextPiece>* out) {
  std::vector<TextPiece> pieces;
  const bool ended = call_->Feed(text, &pieces);
  TakeFromCall(std::move(pieces), out);
  if (!ended) return false;
  call_.reset();
  state_ = State::kContent;
  return true;
}

void OutputSplitter::TakeFromCall(std::vector<TextPiece> pieces, std::vector<TextPiece>* out) {
  for (const TextPiece& piece : pieces) {
    if (piece.kind == TextKind::kContent) {
      EmitContent(piece.text, out);
      continue;
    }
    if (piece.kind == TextKind::kCallName) {
      ++calls_;
      BeginRun(true);
    }
    AppendPiece(piece.kind, piece.text, piece.call, out);
  }
}

void OutputSplitter::EmitContent(std::string_view text, std::vector<TextPiece>* out) {
  if (at_run_start_) {
    const std::string_view rest = StripLeft(text);
    space_ += text.substr(0, text.size() - rest.size());
    if (rest.empty()) return;
    AppendPiece(TextKind::kContent, std::exchange(space_, {}), 0, out);
    at_run_start_ = false;
    text = rest;
  }
  AppendPiece(TextKind::kContent, text, 0, out);
}

void OutputSplitter::BeginRun(bool after_call) {
  at_run_start_ = true;
  after_call_ = after_call;
  space_.clear();
}

void OutputSplitter::EndRun(std::vector<TextPiece>* out) {
  if (!after_call_) AppendPiece(TextKind::kContent, space_, 0, out);
  space_.clear();
}

}  // namespace quartet::text
