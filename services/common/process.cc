#include "services/common/process.h"

#include <sys/prctl.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <string_view>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace quartet {
namespace {

sigset_t ShutdownSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  return signals;
}

absl::Status BadAddress(const std::string& address, std::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat(
      "'", address, "' is not an address: ", std::string(why),
      "; right would be host:port, such as 127.0.0.1:8000 or [::1]:8000 (port 0 takes a free "
      "one)"));
}

}  // namespace

void DieWithParent() {
  // SIGKILL, not SIGTERM: a process that hangs must go too, and nothing here needs cleaning up.
  prctl(PR_SET_PDEATHSIG, SIGKILL);
}

void BlockShutdownSignals() {
  sigset_t signals = ShutdownSignals();
  sigaddset(&signals, SIGUSR1);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
}

int WaitForShutdown(const std::function<void()>& on_user_signal) {
  sigset_t signals = ShutdownSignals();
  if (on_user_signal) sigaddset(&signals, SIGUSR1);
  siginfo_t info{};
  while (true) {
    const int number = sigwaitinfo(&signals, &info);
    if (number < 0) {
      if (errno == EINTR) continue;
      return SIGTERM;  // Cannot happen with a valid set; ending is the safe answer.
    }
    if (number == SIGUSR1) {
      on_user_signal();
      continue;
    }
    const bool own_request = info.si_code == SI_QUEUE && info.si_pid == getpid();
    return own_request ? 0 : number;
  }
}

void RequestShutdown() {
  // A queued signal to itself needs no global flag, and a real signal that is pending already does
  // as well.
  sigqueue(getpid(), SIGTERM, sigval{});
}

absl::StatusOr<HostPort> ParseHostPort(const std::string& address) {
  if (absl::StartsWith(address, "unix:")) {
    return BadAddress(address, "a Unix socket cannot be used here");
  }
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos) return BadAddress(address, "the port is missing");
  std::string host = address.substr(0, colon);
  const std::string port_text = address.substr(colon + 1);
  if (host.size() >= 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  } else if (host.find(':') != std::string::npos) {
    return BadAddress(address, "an IPv6 address needs brackets");
  }
  if (host.empty()) return BadAddress(address, "the host is missing");
  if (host.find_first_of(" \t\r\n[]/") != std::string::npos) {
    return BadAddress(address, "the host has a character that no host name has");
  }
  int port = 0;
  const bool digits_only =
      !port_text.empty() && port_text.find_first_not_of("0123456789") == std::string::npos;
  if (!digits_only || !absl::SimpleAtoi(port_text, &port) || port > 65535) {
    return BadAddress(address, absl::StrCat("the port '", port_text, "' is not 0 to 65535"));
  }
  return HostPort{host, static_cast<uint16_t>(port)};
}

}  // namespace quartet
