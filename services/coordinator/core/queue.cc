#include "services/coordinator/core/queue.h"

#include <algorithm>

namespace quartet::coordinator {

void RequestQueue::Push(Entry entry) {
  entries_.push_back(entry);
  tokens_ += entry.tokens;
}

void RequestQueue::PushPreempted(Entry entry) {
  // Whoever ran before arrived before everyone who never ran, so arrival order is enough.
  auto place = std::find_if(entries_.begin(), entries_.end(),
                            [&](const Entry& other) { return other.id > entry.id; });
  entries_.insert(place, entry);
  tokens_ += entry.tokens;
}

void RequestQueue::PopFront() {
  tokens_ -= entries_.front().tokens;
  entries_.pop_front();
}

bool RequestQueue::Remove(uint64_t id) {
  auto entry = std::find_if(entries_.begin(), entries_.end(),
                            [&](const Entry& other) { return other.id == id; });
  if (entry == entries_.end()) return false;
  tokens_ -= entry->tokens;
  entries_.erase(entry);
  return true;
}

}  // namespace quartet::coordinator
