#ifndef QUARTET_SERVICES_COMMON_LOG_H_
#define QUARTET_SERVICES_COMMON_LOG_H_

#include <string_view>

namespace quartet {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

// Sets up this process's log: lines to standard error, JSON objects ({"time", "level", "process",
// "message"}) or, on a terminal, plain text. Call once, before threads are started. `level` is
// debug, info, warning or error; anything else returns false and changes nothing.
bool InitLogging(std::string_view process, std::string_view level);

// Thread safe. Messages carry no prompt text.
void Log(LogLevel level, std::string_view message);
inline void LogDebug(std::string_view message) {
  Log(LogLevel::kDebug, message);
}
inline void LogInfo(std::string_view message) {
  Log(LogLevel::kInfo, message);
}
inline void LogWarning(std::string_view message) {
  Log(LogLevel::kWarning, message);
}
inline void LogError(std::string_view message) {
  Log(LogLevel::kError, message);
}

}  // namespace quartet

#endif  // QUARTET_SERVICES_COMMON_LOG_H_
