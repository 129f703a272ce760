#ifndef QUARTET_SERVICES_CLI_SSE_READER_H_
#define QUARTET_SERVICES_CLI_SSE_READER_H_

#include <functional>
#include <string>
#include <string_view>

namespace quartet::cli {

// One server-sent event.
struct SseEvent {
  std::string type;  // "event:"; empty when there is none
  std::string data;  // "data:" lines, joined by line feeds
};

// Cuts a byte stream into server-sent events, however it arrives in pieces. Line ends may be LF, CR
// or CR LF. Comments, "id:" and "retry:" are left out, and events without data, as the HTML
// standard says. Not thread safe.
class SseReader {
 public:
  // `on_event` is called for each event that `bytes` completes.
  void Feed(std::string_view bytes, const std::function<void(const SseEvent&)>& on_event);

 private:
  void TakeLine(const std::function<void(const SseEvent&)>& on_event);

  std::string line_;
  SseEvent event_;
  bool has_data_ = false;
  bool last_was_cr_ = false;
};

}  // namespace quartet::cli

#endif  // QUARTET_SERVICES_CLI_SSE_READER_H_
