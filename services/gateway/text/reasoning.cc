#include "services/gateway/text/reasoning.h"

#include <algorithm>
#include <span>

#include "services/gateway/text/unicode.h"

namespace quartet::text {
namespace {

constexpr std::string_view kOpen = "<think>";
constexpr std::string_view kClose = "</think>";
constexpr std::string_view kCall = "<tool_call>";
constexpr std::string_view kCallEnd = "</tool_call>";

struct TagMatch {
  size_t at;
  std::string_view tag;  // empty: none
};

TagMatch FirstTag(std::string_view text, std::span<const std::string_view> tags) {
  TagMatch first{text.size(), {}};
  for (const std::string_view tag : tags) {
    if (const size_t at = text.find(tag); at < first.at) first = {at, tag};
  }
  return first;
}

// Bytes of the longest suffix of `text` that is a proper prefix of one of the tags.
size_t HeldBytes(std::string_view text, std::span<const std::string_view> tags) {
  size_t held = 0;
  for (const std::string_view tag : tags) {
    for (size_t bytes = std::min(tag.size() - 1, text.size()); bytes > held; --bytes) {
      if (text.substr(text.size() - bytes) == tag.substr(0, bytes)) held = bytes;
    }
  }
  return held;
}

}  // namespace

ReasoningSplitter::ReasoningSplitter(bool opens_think, bool tools_active)
    : state_(opens_think ? State::kReasoning : State::kContent), tools_active_(tools_active) {}

void ReasoningSplitter::Append(std::string_view text, std::vector<TextPiece>* out) {
  pending_.append(text);
  Process(false, out);
}

void ReasoningSplitter::Finish(std::vector<TextPiece>* out) {
  Process(true, out);
}

void ReasoningSplitter::Emit(std::string_view text, std::vector<TextPiece>* out) {
  if (text.empty()) return;
  const TextKind kind = state_ == State::kReasoning ? TextKind::kReasoning : TextKind::kContent;
  if (!out->empty() && out->back().kind == kind) {
    out->back().text.append(text);
  } else {
    out->push_back({kind, std::string(text)});
  }
}

void ReasoningSplitter::Process(bool at_end, std::vector<TextPiece>* out) {
  while (!pending_.empty()) {
    std::vector<std::string_view> tags;
    switch (state_) {
      case State::kReasoning:
        // A repeated opening tag counts only as the very first text.
        if (at_start_ && pending_.compare(0, kOpen.size(), kOpen) == 0) {
          pending_.erase(0, kOpen.size());
          at_start_ = false;
          continue;
        }
        if (at_start_ && !at_end && pending_.size() < kOpen.size() &&
            kOpen.substr(0, pending_.size()) == pending_) {
          return;
        }
        tags = {kClose};
        if (tools_active_) tags.push_back(kCall);
        break;
      case State::kContent:
        tags = {kOpen, kClose};
        if (tools_active_) tags.push_back(kCall);
        break;
      case State::kCall:
        tags = {kCallEnd};
        break;
    }
    at_start_ = false;

    const TagMatch match = FirstTag(pending_, tags);
    const size_t held = match.tag.empty() && !at_end ? HeldBytes(pending_, tags) : 0;
    std::string_view text = std::string_view(pending_).substr(0, match.at - held);

    if (state_ == State::kContent && !content_started_) {
      if (StripLeft(text).empty()) {
        // Only white space so far.
        if (match.tag == kCall) {
          text = {};
        } else if (match.tag.empty() && !at_end) {
          return;
        } else if (!match.tag.empty()) {
          // A tag that vanishes; the white space before it waits with what follows.
          const size_t space = text.size();
          pending_.erase(space, match.tag.size());
          if (match.tag == kOpen) {
            Emit(std::string_view(pending_).substr(0, space), out);
            pending_.erase(0, space);
            state_ = State::kReasoning;
          }
          continue;
        }
      } else {
        content_started_ = true;
      }
    }
    Emit(text, out);

    if (match.tag.empty()) {
      pending_.erase(0, pending_.size() - held);
      return;
    }
    pending_.erase(0, match.at + match.tag.size());
    if (state_ == State::kCall) {
      Emit(match.tag, out);
      state_ = State::kContent;
    } else if (match.tag == kCall) {
      state_ = State::kCall;
      content_started_ = true;
      Emit(kCall, out);
    } else if (match.tag == kOpen) {
      state_ = State::kReasoning;
    } else if (state_ == State::kReasoning) {
      state_ = State::kContent;
      content_started_ = false;
    }
  }
}

}  // namespace quartet::text
