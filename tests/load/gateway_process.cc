#include "tests/load/gateway_process.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"

namespace quartet::load {
namespace {

constexpr absl::Duration kLook = absl::Milliseconds(20);
constexpr size_t kLogLinesShown = 10;

// "VmRSS:     1234 kB" in megabytes; nothing if the field is not there.
double StatusFieldMb(const std::string& status, const std::string& field) {
  std::istringstream lines(status);
  for (std::string line; std::getline(lines, line);) {
    if (!absl::StartsWith(line, field)) continue;
    std::istringstream rest(line.substr(field.size()));
    double kib = 0;
    rest >> kib;
    return kib * 1024 / 1e6;
  }
  return 0;
}

std::string FileText(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

}  // namespace

CoreWaits WaitsForCores(const std::string& process) {
  CoreWaits waits;
  std::error_code error;
  for (const auto& thread :
       std::filesystem::directory_iterator(absl::StrCat("/proc/", process, "/task"), error)) {
    // Nanoseconds on a processor, nanoseconds of waiting for one, turns.
    std::istringstream fields(FileText(thread.path() / "schedstat"));
    double ran_ns = 0;
    double waited_ns = 0;
    uint64_t turns = 0;
    if (!(fields >> ran_ns >> waited_ns >> turns)) continue;
    waits.seconds += waited_ns / 1e9;
    waits.turns += turns;
  }
  return waits;
}

absl::StatusOr<std::unique_ptr<GatewayProcess>> GatewayProcess::Start(const Options& options,
                                                                      absl::Duration patience) {
  auto child =
      cli::Child::Spawn({.title = "the gateway",
                         .argv = {options.program, "--coordinator", options.coordinator, "--model",
                                  options.model_dir, "--listen-http", "127.0.0.1:0"},
                         .log_file = options.log_file});
  if (!child.ok()) return child.status();
  std::unique_ptr<GatewayProcess> gateway(new GatewayProcess(*std::move(child)));
  const absl::Time deadline = absl::Now() + patience;
  while (absl::Now() < deadline) {
    gateway->ReadLog(kLook);
    for (const StatusEvent& event : gateway->child_->ReadEvents()) {
      if (event.kind == StatusEvent::Kind::kListening && event.name == "http") {
        gateway->http_address_ = event.address;
      }
      if (event.kind == StatusEvent::Kind::kReady) return gateway;
    }
    if (!gateway->running()) return gateway->Ended();
  }
  return absl::DeadlineExceededError(
      absl::StrCat("the gateway was not ready within ", absl::FormatDuration(patience)));
}

void GatewayProcess::ReadLog(absl::Duration limit) {
  pollfd output{.fd = child_->output_fd(), .events = POLLIN, .revents = 0};
  poll(&output, 1, static_cast<int>(absl::ToInt64Milliseconds(limit)));
  child_->ReadOutput();
  child_->Reap();
}

absl::StatusOr<ProcessUsage> GatewayProcess::Usage() const {
  const std::string folder = absl::StrCat("/proc/", child_->pid());
  const std::string status = FileText(folder + "/status");
  ProcessUsage usage{.resident_mb = StatusFieldMb(status, "VmRSS:"),
                     .resident_peak_mb = StatusFieldMb(status, "VmHWM:")};
  // The name in parentheses may hold spaces; utime and stime are the 12th and 13th field behind it.
  const std::string stat = FileText(folder + "/stat");
  const std::vector<std::string> fields =
      absl::StrSplit(stat.substr(std::min(stat.size(), stat.rfind(')') + 1)), ' ');
  int64_t user = 0;
  int64_t system = 0;
  if (usage.resident_peak_mb == 0 || fields.size() < 14 || !absl::SimpleAtoi(fields[12], &user) ||
      !absl::SimpleAtoi(fields[13], &system)) {
    return absl::UnavailableError(absl::StrCat(folder, " does not tell what the gateway uses"));
  }
  usage.cpu_s = static_cast<double>(user + system) / static_cast<double>(sysconf(_SC_CLK_TCK));
  return usage;
}

CoreWaits GatewayProcess::Waits() const {
  return WaitsForCores(absl::StrCat(child_->pid()));
}

absl::Status GatewayProcess::Stop(absl::Duration patience) {
  child_->Signal(SIGTERM);
  const absl::Time deadline = absl::Now() + patience;
  while (child_->running() && absl::Now() < deadline) ReadLog(kLook);
  if (child_->running()) {
    return absl::DeadlineExceededError(
        absl::StrCat("the gateway did not end within ", absl::FormatDuration(patience)));
  }
  return child_->exit_code() == 0 ? absl::OkStatus() : Ended();
}

absl::Status GatewayProcess::Ended() const {
  return absl::UnavailableError(
      absl::StrCat("the gateway ", child_->HowItEnded(), "; its last lines:\n",
                   absl::StrJoin(child_->LastLines(kLogLinesShown), "\n")));
}

}  // namespace quartet::load
