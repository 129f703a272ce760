#ifndef QUARTET_SERVICES_COORDINATOR_RPC_EVENT_QUEUE_H_
#define QUARTET_SERVICES_COORDINATOR_RPC_EVENT_QUEUE_H_

#include <cstddef>
#include <deque>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "services/coordinator/rpc/links.h"

namespace quartet::coordinator {

// Many producers, one consumer, a fixed limit. The limit is sized so that streams cannot reach it
// (each has a bounded number of events open); Push still checks.
class EventQueue {
 public:
  explicit EventQueue(size_t limit) : limit_(limit) {}

  // False if the queue is full or closed. Never blocks.
  bool Push(Event event) {
    absl::MutexLock lock(&mutex_);
    if (closed_ || events_.size() >= limit_) return false;
    events_.push_back(std::move(event));
    return true;
  }

  // Waits until an event comes or the time is over.
  std::optional<Event> Pop(absl::Time deadline) {
    absl::MutexLock lock(&mutex_);
    mutex_.AwaitWithDeadline(absl::Condition(this, &EventQueue::HasEvent), deadline);
    if (events_.empty()) return std::nullopt;
    Event event = std::move(events_.front());
    events_.pop_front();
    return event;
  }

  // Later pushes fail; what is inside is returned to the consumer.
  std::deque<Event> Close() {
    absl::MutexLock lock(&mutex_);
    closed_ = true;
    return std::exchange(events_, {});
  }

  size_t limit() const { return limit_; }

 private:
  bool HasEvent() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !events_.empty(); }

  const size_t limit_;
  absl::Mutex mutex_;
  std::deque<Event> events_ ABSL_GUARDED_BY(mutex_);
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace quartet::coordinator

#endif  // QUARTET_SERVICES_COORDINATOR_RPC_EVENT_QUEUE_H_
