#include "services/coordinator/core/eviction_order.h"

#include <cassert>

namespace quartet::coordinator {

EvictionOrder::EvictionOrder(uint32_t capacity) : place_(capacity, kNowhere) {
  heap_.reserve(capacity);
}

void EvictionOrder::Set(uint32_t item, Rank rank) {
  assert(item < place_.size());
  if (!Contains(item)) {
    assert(heap_.size() < place_.size());
    place_[item] = size();
    heap_.emplace_back();
  }
  Settle(place_[item], {rank, item});
}

void EvictionOrder::Erase(uint32_t item) {
  const uint32_t place = place_[item];
  if (place == kNowhere) return;
  place_[item] = kNowhere;
  const Entry last = heap_.back();
  heap_.pop_back();
  if (last.item != item) Settle(place, last);
}

void EvictionOrder::Put(uint32_t place, Entry entry) {
  heap_[place] = entry;
  place_[entry.item] = place;
}

// Puts the entry at this free place, or as far up or down from it as its rank wants.
void EvictionOrder::Settle(uint32_t place, Entry entry) {
  while (place > 0) {
    const uint32_t parent = (place - 1) / 2;
    if (heap_[parent].rank <= entry.rank) break;
    Put(place, heap_[parent]);
    place = parent;
  }
  for (;;) {
    uint32_t child = 2 * place + 1;
    if (child >= heap_.size()) break;
    if (child + 1 < heap_.size() && heap_[child + 1].rank < heap_[child].rank) ++child;
    if (entry.rank <= heap_[child].rank) break;
    Put(place, heap_[child]);
    place = child;
  }
  Put(place, entry);
}

}  // namespace quartet::coordinator
