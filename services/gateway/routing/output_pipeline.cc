#include "services/gateway/routing/output_pipeline.h"

#include <algorithm>
#include <utility>

namespace quartet::gateway {
namespace {

void Emit(text::TextKind kind, std::string text, OutputPipeline::Output* out) {
  if (text.empty()) return;
  if (!out->pieces.empty() && out->pieces.back().kind == kind) {
    out->pieces.back().text += text;
  } else {
    out->pieces.push_back({kind, std::move(text)});
  }
}

bool Holds(const std::vector<int32_t>& ids, int32_t id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

}  // namespace

OutputPipeline::OutputPipeline(const text::Tokenizer* tokenizer, OutputOptions options)
    : options_(std::move(options)),
      detokenizer_(tokenizer, {.skip_special_tokens = options_.skip_special_tokens}),
      matcher_(options_.stop, {.include_stop_string = options_.include_stop_string}) {
  if (options_.split_reasoning) splitter_.emplace(options_.opens_think, options_.tools_active);
}

void OutputPipeline::Append(std::span<const int32_t> ids, Output* out) {
  for (int32_t id : ids) {
    if (stopped_) return;
    ++completion_tokens_;
    if (splitter_ && splitter_->in_reasoning()) ++reasoning_tokens_;
    out->ids.push_back(id);
    if (!Holds(options_.end_ids, id) && !Holds(options_.stop_ids, id))
      Feed(detokenizer_.Append(id), false, out);
    if (!options_.stop.empty()) marks_.push_back({content_bytes_, reasoning_tokens_});
    if (matcher_.stopped()) NoteStop(out);
  }
}

void OutputPipeline::Finish(Output* out) {
  if (stopped_) return;
  Feed(detokenizer_.Flush(), true, out);
  if (!matcher_.stopped()) Emit(text::TextKind::kContent, matcher_.Finish(), out);
  if (matcher_.stopped()) NoteStop(out);
}

void OutputPipeline::Feed(std::string_view text, bool at_end, Output* out) {
  split_.clear();
  if (splitter_) {
    splitter_->Append(text, &split_);
    if (at_end) splitter_->Finish(&split_);
  } else if (!text.empty()) {
    split_.push_back({text::TextKind::kContent, std::string(text)});
  }
  for (text::TextPiece& piece : split_) {
    if (piece.kind == text::TextKind::kReasoning) {
      if (!matcher_.stopped()) Emit(piece.kind, std::move(piece.text), out);
      continue;
    }
    content_bytes_ += piece.text.size();
    Emit(text::TextKind::kContent,
         options_.stop.empty() ? std::move(piece.text) : matcher_.Append(piece.text), out);
  }
}

// The match may have ended some tokens ago, if it waited for a longer one; what came after it does
// not count.
void OutputPipeline::NoteStop(Output* out) {
  stopped_ = true;
  const auto last = std::find_if(marks_.begin(), marks_.end(), [this](const Mark& mark) {
    return mark.content_bytes >= matcher_.match_end();
  });
  if (last == marks_.end()) return;  // the rest of the text was released by the end of the sequence
  const auto counted = static_cast<uint32_t>(last - marks_.begin()) + 1;
  const uint32_t void_tokens = static_cast<uint32_t>(marks_.size()) - counted;
  completion_tokens_ -= std::min(completion_tokens_, void_tokens);
  reasoning_tokens_ = last->reasoning_tokens;
  out->ids.resize(out->ids.size() - std::min<size_t>(out->ids.size(), void_tokens));
}

}  // namespace quartet::gateway
