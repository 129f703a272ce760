#ifndef QUARTET_SHARD_WORKER_COLLECTIVES_FUTEX_H_
#define QUARTET_SHARD_WORKER_COLLECTIVES_FUTEX_H_

#include <atomic>
#include <cstdint>

#include "absl/time/time.h"

namespace quartet {

static_assert(std::atomic<uint32_t>::is_always_lock_free &&
              sizeof(std::atomic<uint32_t>) == sizeof(uint32_t));

// Sleeps while `word` holds `value`, at most `limit`; may return early. Works between processes
// that map the same memory.
void FutexWait(const std::atomic<uint32_t>& word, uint32_t value, absl::Duration limit);
// Wakes everybody who sleeps on `word`.
void FutexWakeAll(const std::atomic<uint32_t>& word);

}  // namespace quartet

#endif  // QUARTET_SHARD_WORKER_COLLECTIVES_FUTEX_H_
