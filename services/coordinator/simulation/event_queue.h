#ifndef QUARTET_SERVICES_COORDINATOR_SIMULATION_EVENT_QUEUE_H_
#define QUARTET_SERVICES_COORDINATOR_SIMULATION_EVENT_QUEUE_H_

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "services/coordinator/core/types.h"

namespace quartet::simulation {

// What is to come, in order of virtual time; what comes at the same time comes in the order in
// which it was put in, so that a run repeats.
template <typename Event>
class EventQueue {
 public:
  void Push(coordinator::TimeUs time, Event event) {
    heap_.push_back({time, next_order_++, std::move(event)});
    std::push_heap(heap_.begin(), heap_.end(), Later);
  }
  Event Pop() {
    std::pop_heap(heap_.begin(), heap_.end(), Later);
    Event event = std::move(heap_.back().event);
    heap_.pop_back();
    return event;
  }
  coordinator::TimeUs next_time() const { return heap_.front().time; }
  bool empty() const { return heap_.empty(); }

 private:
  struct Entry {
    coordinator::TimeUs time;
    uint64_t order;
    Event event;
  };
  static bool Later(const Entry& a, const Entry& b) {
    return a.time != b.time ? a.time > b.time : a.order > b.order;
  }
  std::vector<Entry> heap_;
  uint64_t next_order_ = 0;
};

}  // namespace quartet::simulation

#endif  // QUARTET_SERVICES_COORDINATOR_SIMULATION_EVENT_QUEUE_H_
