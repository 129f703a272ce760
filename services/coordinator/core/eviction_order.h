#ifndef QUARTET_SERVICES_COORDINATOR_CORE_EVICTION_ORDER_H_
#define QUARTET_SERVICES_COORDINATOR_CORE_EVICTION_ORDER_H_

#include <compare>
#include <cstdint>
#include <vector>

namespace quartet::coordinator {

// The candidates for eviction, the least worth keeping at the front: a binary heap that knows where
// each item stands, so that an item can be moved or taken out in logarithmic time. Items are the
// numbers below the capacity. Nothing is allocated after construction. Not thread safe.
class EvictionOrder {
 public:
  // Low goes first: by value, then whoever was used longest ago.
  struct Rank {
    double value = 0;
    uint64_t last_use = 0;  // serial number of the use; no two uses share one

    friend auto operator<=>(const Rank&, const Rank&) = default;
  };

  explicit EvictionOrder(uint32_t capacity);

  // Adds the item, or moves it to where this rank belongs.
  void Set(uint32_t item, Rank rank);
  // Nothing happens if it is not there.
  void Erase(uint32_t item);

  bool Contains(uint32_t item) const { return place_[item] != kNowhere; }
  // `item` must be there.
  const Rank& rank(uint32_t item) const { return heap_[place_[item]].rank; }
  bool empty() const { return heap_.empty(); }
  uint32_t size() const { return static_cast<uint32_t>(heap_.size()); }
  // Must not be empty.
  uint32_t Front() const { return heap_.front().item; }

 private:
  static constexpr uint32_t kNowhere = UINT32_MAX;
  struct Entry {
    Rank rank;
    uint32_t item = 0;
  };

  void Put(uint32_t place, Entry entry);
  void Settle(uint32_t place, Entry entry);

  std::vector<Entry> heap_;
  std::vector<uint32_t> place_;  // of each item in heap_
};

}  // namespace quartet::coordinator

#endif  // QUARTET_SERVICES_COORDINATOR_CORE_EVICTION_ORDER_H_
