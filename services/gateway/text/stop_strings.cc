#include "services/gateway/text/stop_strings.h"

#include <algorithm>
#include <utility>

namespace quartet::text {

StopMatcher::StopMatcher(std::vector<std::string> stops, Options options)
    : stops_(std::move(stops)), options_(options) {
  stops_.erase(std::remove(stops_.begin(), stops_.end(), std::string()), stops_.end());
}

std::string StopMatcher::Append(std::string_view text) {
  if (stopped_) return {};
  if (stops_.empty()) {
    pending_begin_ += text.size();
    return std::string(text);
  }
  pending_.append(text);
  return Process(false);
}

std::string StopMatcher::Skip(std::string_view text) {
  if (stopped_) return {};
  std::string released = std::exchange(pending_, {}).append(text);
  pending_begin_ += released.size();
  return released;
}

std::string StopMatcher::Finish() {
  if (stopped_) return {};
  return Process(true);
}

std::string StopMatcher::Process(bool at_end) {
  const std::string_view text = pending_;
  size_t at = 0;
  bool waiting = false;
  for (; at < text.size(); ++at) {
    const std::string_view rest = text.substr(at);
    size_t longest = stops_.size();
    for (size_t i = 0; i < stops_.size(); ++i) {
      const std::string_view stop = stops_[i];
      if (rest.size() < stop.size()) {
        waiting = waiting || (!at_end && stop.substr(0, rest.size()) == rest);
      } else if (rest.substr(0, stop.size()) == stop &&
                 (longest == stops_.size() || stop.size() > stops_[longest].size())) {
        longest = i;
      }
    }
    // What begins here might still become a match, or a longer one: nothing that begins later can
    // be taken before that is known.
    if (waiting) break;
    if (longest < stops_.size()) {
      stopped_ = true;
      matched_ = longest;
      match_begin_ = pending_begin_ + at;
      const size_t shown = at + (options_.include_stop_string ? stops_[longest].size() : 0);
      std::string released = pending_.substr(0, shown);
      pending_.clear();
      return released;
    }
  }
  std::string released = pending_.substr(0, at);
  pending_.erase(0, at);
  pending_begin_ += at;
  return released;
}

}  // namespace quartet::text
