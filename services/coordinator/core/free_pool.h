#ifndef QUARTET_SERVICES_COORDINATOR_CORE_FREE_POOL_H_
#define QUARTET_SERVICES_COORDINATOR_CORE_FREE_POOL_H_

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace quartet::coordinator {

// A fixed number of equal places (slots or pages), handed out by number. Nothing is allocated after
// construction. Not thread safe.
class FreePool {
 public:
  explicit FreePool(uint32_t size);

  // Nothing if all are taken. Low numbers first in a fresh pool.
  std::optional<uint32_t> Take();
  // Takes these places, each of which must be free.
  void TakePlaces(std::span<const uint32_t> places);
  // `place` must be taken.
  void Return(uint32_t place);

  bool IsTaken(uint32_t place) const { return taken_[place]; }
  uint32_t size() const { return static_cast<uint32_t>(taken_.size()); }
  uint32_t free() const { return static_cast<uint32_t>(free_.size()); }
  uint32_t used() const { return size() - free(); }

 private:
  std::vector<uint32_t> free_;
  std::vector<bool> taken_;
};

}  // namespace quartet::coordinator

#endif  // QUARTET_SERVICES_COORDINATOR_CORE_FREE_POOL_H_
