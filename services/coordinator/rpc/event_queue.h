#ifndef QUARTET_SERVICES_COORDINATOR_RPC_EVENT_QUEUE_H_
#define QUARTET_SERVICES_COORDINATOR_RPC_EVENT_QUEUE_H_

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <mutex>
#include <optional>
#include <utility>

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
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (closed_ || events_.size() >= limit_) return false;
      events_.push_back(std::move(event));
    }
    changed_.notify_one();
    return true;
  }

  // Waits until an event comes or the time is over.
  std::optional<Event> Pop(absl::Time deadline) {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait_until(lock, absl::ToChronoTime(deadline), [this] { return !events_.empty(); });
    return TakeFront();
  }
  // The next event if there is one.
  std::optional<Event> TryPop() {
    std::lock_guard<std::mutex> lock(mutex_);
    return TakeFront();
  }

  // Later pushes fail; what is inside is returned to the consumer.
  std::deque<Event> Close() {
    std::lock_guard<std::mutex> lock(mutex_);
    closed_ = true;
    return std::exchange(events_, {});
  }

  size_t limit() const { return limit_; }

 private:
  // With mutex_ held.
  std::optional<Event> TakeFront() {
    if (events_.empty()) return std::nullopt;
    Event event = std::move(events_.front());
    events_.pop_front();
    return event;
  }

  const size_t limit_;
  std::mutex mutex_;  // guards all below
  std::condition_variable changed_;
  std::deque<Event> events_;
  bool closed_ = false;
};

}  // namespace quartet::coordinator

#endif  // QUARTET_SERVICES_COORDINATOR_RPC_EVENT_QUEUE_H_
