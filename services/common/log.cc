#include "services/common/log.h"

#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "spdlog/formatter.h"
#include "spdlog/logger.h"
#include "spdlog/sinks/stdout_sinks.h"
#include "spdlog/spdlog.h"

namespace quartet {
namespace {

// Length of the UTF-8 sequence at text[i], or 0 if there is none: bytes of a damaged file can reach
// a message, and a log reader must still get valid JSON.
size_t Utf8Length(std::string_view text, size_t i) {
  const auto byte = [&](size_t k) { return static_cast<uint8_t>(text[k]); };
  const uint8_t first = byte(i);
  size_t length = 0;
  uint32_t code = 0;
  if (first >= 0xC2 && first <= 0xDF) {
    length = 2;
    code = first & 0x1Fu;
  } else if (first >= 0xE0 && first <= 0xEF) {
    length = 3;
    code = first & 0x0Fu;
  } else if (first >= 0xF0 && first <= 0xF4) {
    length = 4;
    code = first & 0x07u;
  } else {
    return 0;
  }
  if (i + length > text.size()) return 0;
  for (size_t k = 1; k < length; ++k) {
    if ((byte(i + k) & 0xC0u) != 0x80u) return 0;
    code = (code << 6) | (byte(i + k) & 0x3Fu);
  }
  const bool overlong = (length == 3 && code < 0x800) || (length == 4 && code < 0x10000);
  const bool surrogate = code >= 0xD800 && code <= 0xDFFF;
  return overlong || surrogate || code > 0x10FFFF ? 0 : length;
}

void AppendEscaped(std::string_view text, std::string* out) {
  for (size_t i = 0; i < text.size();) {
    const char c = text[i];
    if (static_cast<uint8_t>(c) >= 0x80) {
      const size_t length = Utf8Length(text, i);
      if (length == 0) {
        out->append("\\ufffd");
        ++i;
      } else {
        out->append(text.substr(i, length));
        i += length;
      }
      continue;
    }
    ++i;
    switch (c) {
      case '"':
        out->append("\\\"");
        break;
      case '\\':
        out->append("\\\\");
        break;
      case '\n':
        out->append("\\n");
        break;
      case '\t':
        out->append("\\t");
        break;
      default:
        if (static_cast<uint8_t>(c) < 0x20) {
          absl::StrAppendFormat(out, "\\u%04x", static_cast<unsigned>(c));
        } else {
          out->push_back(c);
        }
    }
  }
}

class JsonFormatter final : public spdlog::formatter {
 public:
  explicit JsonFormatter(std::string process) : process_(std::move(process)) {}

  void format(const spdlog::details::log_msg& msg, spdlog::memory_buf_t& dest) override {
    std::string line = absl::StrCat(
        "{\"time\":\"",
        absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", absl::FromChrono(msg.time), absl::UTCTimeZone()),
        "\",\"level\":\"", LevelName(msg.level), "\",\"process\":\"");
    AppendEscaped(process_, &line);
    line.append("\",\"message\":\"");
    AppendEscaped(std::string_view(msg.payload.data(), msg.payload.size()), &line);
    line.append("\"}\n");
    dest.append(line.data(), line.data() + line.size());
  }

  std::unique_ptr<spdlog::formatter> clone() const override {
    return std::make_unique<JsonFormatter>(process_);
  }

 private:
  static const char* LevelName(spdlog::level::level_enum level) {
    switch (level) {
      case spdlog::level::debug:
        return "debug";
      case spdlog::level::warn:
        return "warning";
      case spdlog::level::err:
        return "error";
      default:
        return "info";
    }
  }

  std::string process_;
};

std::optional<spdlog::level::level_enum> LevelFromName(std::string_view name) {
  if (name == "debug") return spdlog::level::debug;
  if (name == "info") return spdlog::level::info;
  if (name == "warning") return spdlog::level::warn;
  if (name == "error") return spdlog::level::err;
  return std::nullopt;
}

spdlog::level::level_enum ToSpdlog(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarning:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
  }
  return spdlog::level::err;
}

}  // namespace

bool InitLogging(std::string_view process, std::string_view level) {
  const std::optional<spdlog::level::level_enum> parsed = LevelFromName(level);
  if (!parsed.has_value()) return false;
  auto sink = std::make_shared<spdlog::sinks::stderr_sink_mt>();
  if (isatty(STDERR_FILENO) == 1) {
    sink->set_pattern("%H:%M:%S.%e %-7l %n: %v");
  } else {
    sink->set_formatter(std::make_unique<JsonFormatter>(std::string(process)));
  }
  auto logger = std::make_shared<spdlog::logger>(std::string(process), std::move(sink));
  logger->set_level(*parsed);
  // A supervisor shows the last lines of a process that died: nothing may sit in a buffer.
  logger->flush_on(spdlog::level::trace);
  spdlog::set_default_logger(std::move(logger));
  return true;
}

void Log(LogLevel level, std::string_view message) {
  spdlog::logger* logger = spdlog::default_logger_raw();
  if (logger == nullptr || logger->name().empty()) {
    // Not set up: spdlog's own default writes to standard output, which belongs to the user.
    std::fprintf(stderr, "%.*s\n", static_cast<int>(message.size()), message.data());
    return;
  }
  logger->log(ToSpdlog(level), spdlog::string_view_t(message.data(), message.size()));
}

}  // namespace quartet
