#include "services/gateway/routing/output_pipeline.h"

#include <algorithm>
#include <utility>

namespace quartet::gateway {
namespace {

bool Holds(const std::vector<int32_t>& ids, int32_t id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

}  // namespace

OutputPipeline::OutputPipeline(const text::Tokenizer* tokenizer, OutputOptions options)
    : options_(std::move(options)),
      tokenizer_(tokenizer),
      detokenizer_(tokenizer, {.skip_special_tokens = options_.skip_special_tokens}),
      text_(options_.text) {}

bool OutputPipeline::IsShown(int32_t id) const {
  if (Holds(options_.end_ids, id) || Holds(options_.stop_ids, id)) return false;
  return !(options_.skip_special_tokens && tokenizer_->IsSpecial(id));
}

void OutputPipeline::Append(std::span<const int32_t> ids, Output* out) {
  for (int32_t id : ids) {
    if (stopped()) return;
    ++completion_tokens_;
    if (text_.in_reasoning()) ++reasoning_tokens_;
    const bool in_content = text_.in_content();
    out->ids.push_back(id);
    text_.set_stops_active(completion_tokens_ > options_.min_tokens);
    if (!Holds(options_.end_ids, id) && !Holds(options_.stop_ids, id))
      text_.Append(detokenizer_.Append(id), &out->pieces);
    out->in_content.push_back(in_content && text_.in_content());
    if (!options_.text.stop.empty()) marks_.push_back({text_.searched_bytes(), reasoning_tokens_});
    if (text_.stopped_by_string()) NoteStop(out);
  }
}

void OutputPipeline::Finish(text::OutputEnd end, Output* out) {
  if (stopped()) return;
  text_.Append(detokenizer_.Flush(), &out->pieces);
  text_.Finish(end, &out->pieces);
  if (text_.stopped_by_string()) NoteStop(out);
}

// The match may have ended some tokens ago, if it waited for a longer one; what came after it does
// not count.
void OutputPipeline::NoteStop(Output* out) {
  const auto last = std::find_if(marks_.begin(), marks_.end(), [this](const Mark& mark) {
    return mark.searched_bytes >= text_.stop_end();
  });
  if (last == marks_.end()) return;  // the rest of the text was released by the end of the sequence
  const auto counted = static_cast<uint32_t>(last - marks_.begin()) + 1;
  const uint32_t void_tokens = static_cast<uint32_t>(marks_.size()) - counted;
  completion_tokens_ -= std::min(completion_tokens_, void_tokens);
  reasoning_tokens_ = last->reasoning_tokens;
  out->ids.resize(out->ids.size() - std::min<size_t>(out->ids.size(), void_tokens));
  out->in_content.resize(out->ids.size());
}

}  // namespace quartet::gateway
