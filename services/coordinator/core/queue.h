#ifndef QUARTET_SERVICES_COORDINATOR_CORE_QUEUE_H_
#define QUARTET_SERVICES_COORDINATOR_CORE_QUEUE_H_

#include <cstddef>
#include <cstdint>
#include <deque>

namespace quartet::coordinator {

// Who is admitted next: first come, first served. Preempted requests stand before new ones, the
// oldest of them first. The order is decided here alone, so that classes and fair shares have one
// place to come to. Not thread safe.
class RequestQueue {
 public:
  struct Entry {
    uint64_t id = 0;      // in order of arrival
    uint64_t tokens = 0;  // prefill work
  };

  void Push(Entry entry);
  // For a preempted request; keeps the order of arrival at the front.
  void PushPreempted(Entry entry);
  const Entry& Front() const { return entries_.front(); }
  void PopFront();
  // False if it is not in the queue.
  bool Remove(uint64_t id);

  bool empty() const { return entries_.empty(); }
  size_t size() const { return entries_.size(); }
  uint64_t tokens() const { return tokens_; }

 private:
  std::deque<Entry> entries_;
  uint64_t tokens_ = 0;
};

}  // namespace quartet::coordinator

#endif  // QUARTET_SERVICES_COORDINATOR_CORE_QUEUE_H_
