#ifndef QUARTET_SERVICES_COMMON_PROCESS_H_
#define QUARTET_SERVICES_COMMON_PROCESS_H_

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace quartet {

// Asks the kernel to kill this process when its parent dies (PR_SET_PDEATHSIG), so that no child of
// `quartet serve` outlives it. Call first thing in main when started with --die-with-parent.
void DieWithParent();

// Blocks SIGINT, SIGTERM and SIGUSR1 in the calling thread and all threads started later. Call in
// main before any thread starts.
void BlockShutdownSignals();

// Waits until SIGINT or SIGTERM arrives (returns its number) or until RequestShutdown() is called
// in this process (returns 0). Each SIGUSR1 meanwhile calls `on_user_signal` in this thread, if it
// is given. Only with the signals blocked as above.
int WaitForShutdown(const std::function<void()>& on_user_signal = nullptr);

// Ends WaitForShutdown from any thread.
void RequestShutdown();

// "host:port" -> parts; IPv6 in brackets. "unix:/path" is refused here: it is for gRPC addresses
// only.
struct HostPort {
  std::string host;
  uint16_t port = 0;
};
absl::StatusOr<HostPort> ParseHostPort(const std::string& address);

}  // namespace quartet

#endif  // QUARTET_SERVICES_COMMON_PROCESS_H_
