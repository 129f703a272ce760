#include "services/common/status_channel.h"

#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <ctime>
#include <string>

#include "boost/json.hpp"

namespace quartet {
namespace {

namespace json = boost::json;

// Writes all of it in one call where the pipe has room: lines up to PIPE_BUF (4 KiB) of several
// threads do not mix.
void WriteLine(int fd, const std::string& line) {
  // A supervisor that has gone closes the pipe; that must not end this process by SIGPIPE, and the
  // process's own setting is not ours to change: block it in this thread, drop what came of it.
  sigset_t pipe_signal;
  sigemptyset(&pipe_signal);
  sigaddset(&pipe_signal, SIGPIPE);
  sigset_t pending;
  sigpending(&pending);
  const bool was_pending = sigismember(&pending, SIGPIPE) == 1;
  sigset_t before;
  pthread_sigmask(SIG_BLOCK, &pipe_signal, &before);
  size_t written = 0;
  bool broken = false;
  while (written < line.size()) {
    const ssize_t n = write(fd, line.data() + written, line.size() - written);
    if (n > 0) {
      written += static_cast<size_t>(n);
      continue;
    }
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) {
      pollfd wait{fd, POLLOUT, 0};
      if (poll(&wait, 1, 1000) > 0) continue;
    }
    broken = n < 0 && errno == EPIPE;
    break;
  }
  if (broken && !was_pending) {
    const timespec now{0, 0};
    while (sigtimedwait(&pipe_signal, nullptr, &now) < 0 && errno == EINTR) {
    }
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

std::optional<std::string> TextField(const json::object& object, std::string_view name) {
  const json::value* value = object.if_contains({name.data(), name.size()});
  if (value == nullptr || !value->is_string()) return std::nullopt;
  return std::string(value->get_string().c_str(), value->get_string().size());
}

std::optional<int64_t> CountField(const json::object& object, std::string_view name) {
  const json::value* value = object.if_contains({name.data(), name.size()});
  if (value == nullptr || !value->is_int64() || value->get_int64() < 0) return std::nullopt;
  return value->get_int64();
}

std::optional<StatusEvent> ParseListening(const json::object& object) {
  const auto name = TextField(object, "name");
  const auto address = TextField(object, "address");
  if (!name || !address) return std::nullopt;
  StatusEvent event;
  event.kind = StatusEvent::Kind::kListening;
  event.name = *name;
  event.address = *address;
  return event;
}

std::optional<StatusEvent> ParseProgress(const json::object& object) {
  const auto stage = TextField(object, "stage");
  const auto done = CountField(object, "done");
  const auto total = CountField(object, "total");
  if (!stage || !done || !total) return std::nullopt;
  StatusEvent event;
  event.kind = StatusEvent::Kind::kProgress;
  event.stage = *stage;
  event.done = *done;
  event.total = *total;
  return event;
}

}  // namespace

void StatusChannel::Send(const StatusEvent& event) const {
  if (fd_ < 0) return;
  json::object object;
  switch (event.kind) {
    case StatusEvent::Kind::kListening:
      object["event"] = "listening";
      object["name"] = event.name;
      object["address"] = event.address;
      break;
    case StatusEvent::Kind::kProgress:
      object["event"] = "progress";
      object["stage"] = event.stage;
      object["done"] = event.done;
      object["total"] = event.total;
      break;
    case StatusEvent::Kind::kReady:
      object["event"] = "ready";
      break;
    case StatusEvent::Kind::kError:
      object["event"] = "error";
      object["message"] = event.message;
      break;
  }
  WriteLine(fd_, json::serialize(object) + "\n");
}

void StatusChannel::Listening(std::string_view name, std::string_view address) const {
  StatusEvent event;
  event.kind = StatusEvent::Kind::kListening;
  event.name = name;
  event.address = address;
  Send(event);
}

void StatusChannel::Progress(std::string_view stage, int64_t done, int64_t total) const {
  StatusEvent event;
  event.kind = StatusEvent::Kind::kProgress;
  event.stage = stage;
  event.done = done;
  event.total = total;
  Send(event);
}

void StatusChannel::Ready() const {
  Send(StatusEvent{});
}

void StatusChannel::Error(std::string_view message) const {
  StatusEvent event;
  event.kind = StatusEvent::Kind::kError;
  event.message = message;
  Send(event);
}

std::optional<StatusEvent> ParseStatusEvent(std::string_view line) {
  json::error_code error;
  const json::value value = json::parse({line.data(), line.size()}, error);
  if (error || !value.is_object()) return std::nullopt;
  const json::object& object = value.get_object();
  const auto kind = TextField(object, "event");
  if (kind == "listening") return ParseListening(object);
  if (kind == "progress") return ParseProgress(object);
  if (kind == "ready") return StatusEvent{};
  if (kind == "error") {
    const auto message = TextField(object, "message");
    if (!message) return std::nullopt;
    StatusEvent event;
    event.kind = StatusEvent::Kind::kError;
    event.message = *message;
    return event;
  }
  return std::nullopt;
}

}  // namespace quartet
