#include "services/cli/sse_reader.h"

namespace quartet::cli {

void SseReader::Feed(std::string_view bytes, const std::function<void(const SseEvent&)>& on_event) {
  for (const char c : bytes) {
    const bool second_half_of_crlf = c == '\n' && last_was_cr_;
    last_was_cr_ = c == '\r';
    if (second_half_of_crlf) continue;
    if (c == '\n' || c == '\r') {
      TakeLine(on_event);
      line_.clear();
    } else {
      line_.push_back(c);
    }
  }
}

void SseReader::TakeLine(const std::function<void(const SseEvent&)>& on_event) {
  if (line_.empty()) {
    if (has_data_) on_event(event_);
    event_ = SseEvent();
    has_data_ = false;
    return;
  }
  const std::string_view line = line_;
  const size_t colon = line.find(':');
  const std::string_view field = line.substr(0, colon);
  std::string_view value = colon == std::string_view::npos ? "" : line.substr(colon + 1);
  if (!value.empty() && value.front() == ' ') value.remove_prefix(1);
  if (field == "data") {
    if (has_data_) event_.data.push_back('\n');
    event_.data.append(value);
    has_data_ = true;
  } else if (field == "event") {
    event_.type = value;
  }
}

}  // namespace quartet::cli
