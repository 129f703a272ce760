#ifndef QUARTET_SERVICES_COMMON_STATUS_CHANNEL_H_
#define QUARTET_SERVICES_COMMON_STATUS_CHANNEL_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace quartet {

// How a child tells its supervisor how far it is: one line of JSON per event on a file descriptor
// given by --status-fd.
//   {"event":"listening","name":"http","address":"127.0.0.1:8000"}
//   {"event":"progress","stage":"loading weights","done":123,"total":456}
//   {"event":"ready"}
//   {"event":"error","message":"..."}      the reason of the exit that follows
struct StatusEvent {
  enum class Kind { kListening, kProgress, kReady, kError };
  Kind kind = Kind::kReady;
  std::string name;     // listening
  std::string address;  // listening
  std::string stage;    // progress
  int64_t done = 0;     // progress
  int64_t total = 0;    // progress
  std::string message;  // error
};

// Writes events. With fd -1 it does nothing. Thread safe. A supervisor that is gone is no error.
class StatusChannel {
 public:
  explicit StatusChannel(int fd = -1) : fd_(fd) {}
  void Send(const StatusEvent& event) const;
  void Listening(std::string_view name, std::string_view address) const;
  void Progress(std::string_view stage, int64_t done, int64_t total) const;
  void Ready() const;
  void Error(std::string_view message) const;

 private:
  int fd_;
};

// One line without its line feed; nothing if it is not such an event.
std::optional<StatusEvent> ParseStatusEvent(std::string_view line);

}  // namespace quartet

#endif  // QUARTET_SERVICES_COMMON_STATUS_CHANNEL_H_
