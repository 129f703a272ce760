#include "shard_worker/collectives/futex.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>

namespace quartet {

// Without FUTEX_PRIVATE_FLAG: sleeper and waker may be different processes.

void FutexWait(const std::atomic<uint32_t>& word, uint32_t value, absl::Duration limit) {
  const timespec timeout = absl::ToTimespec(limit);
  syscall(SYS_futex, reinterpret_cast<const uint32_t*>(&word), FUTEX_WAIT, value, &timeout, nullptr,
          0);
}

void FutexWakeAll(const std::atomic<uint32_t>& word) {
  syscall(SYS_futex, reinterpret_cast<const uint32_t*>(&word), FUTEX_WAKE, INT_MAX, nullptr,
          nullptr, 0);
}

}  // namespace quartet
