#ifndef QUARTET_SERVICES_COORDINATOR_CORE_PATH_COPY_H_
#define QUARTET_SERVICES_COORDINATOR_CORE_PATH_COPY_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "services/coordinator/core/free_pool.h"
#include "services/coordinator/core/prefix_index.h"
#include "services/coordinator/core/types.h"

namespace quartet::coordinator {

// A tier of the prefix cache: its places and what lies there.
struct TierStore {
  CacheTier tier = CacheTier::kAbsent;
  FreePool* pages = nullptr;
  FreePool* snapshots = nullptr;
  PrefixIndex* index = nullptr;
  uint64_t page_bytes = 0;
  uint64_t snapshot_bytes = 0;
};

// A prefix on its way from one tier to another: the pages that are lacking there, in order from the
// first on, and the snapshot at its end. Holds the path in both tiers until it dies. What has
// arrived on all ranks is published at once, so that a copy that ends early was not in vain. Not
// thread safe.
class PathCopy {
 public:
  // `source` is a lease of from.index. Both stores must outlive the copy.
  PathCopy(const TierStore& from, const TierStore& to, PrefixLease source);

  // The first unit that is lacking there; none if no copy of a page will be planned.
  std::optional<UnitKey> NextUnit();
  // Whether Plan would plan a copy: something is lacking there, and there is room for it. Not while
  // copies are in flight.
  bool CanGoOn();
  // Adds copies for the next step, each of which takes its bytes off the budget; the first one may
  // overdraw it. Stops early where the other tier has no room, even for the least valuable.
  void Plan(uint64_t& budget_bytes, std::vector<TierCopy>& copies);
  uint32_t in_flight() const { return pages_in_flight() + (snapshot_.has_value() ? 1 : 0); }
  uint32_t pages_in_flight() const { return static_cast<uint32_t>(pages_.size()); }

  // How the copies in flight went, in the order in which they were planned.
  struct Applied {
    uint32_t pages = 0;  // published
    bool snapshot = false;
    // The first copy that failed: nothing behind it can be used.
    std::optional<CopyOutcome> failure;
    UnitKey failed_unit;
    bool failed_snapshot = false;
  };
  Applied Apply(std::span<const CopyOutcome> outcomes, TimeUs now);
  // What is in flight will never be answered.
  void Abandon();

  // Nothing more will be planned.
  bool ended() const { return ended_ && in_flight() == 0; }
  // All of it is there.
  bool complete() const { return complete_; }
  const TierStore& from() const { return from_; }
  const TierStore& to() const { return to_; }
  // How far the path reaches in the other tier, as a lease there.
  const PrefixLease& target() const { return target_; }
  PrefixLease TakeTarget() { return std::move(target_); }

 private:
  static std::optional<uint32_t> TakePage(const TierStore& store);
  static std::optional<uint32_t> TakeSnapshot(const TierStore& store);
  uint32_t OffsetOf(uint32_t unit) const { return (unit + 1) * unit_tokens_; }
  TierCopy CopyOf(TierCopy::Kind kind, uint32_t from_place, uint32_t to_place, uint32_t unit) const;

  TierStore from_;
  TierStore to_;
  PrefixLease source_;
  PrefixLease target_;
  std::vector<PathUnit> units_;                    // of the source
  std::optional<FinishedSnapshot> last_snapshot_;  // at their end
  uint32_t unit_tokens_ = 0;
  // In flight: places of the other tier.
  std::vector<uint32_t> pages_;
  std::optional<uint32_t> snapshot_;
  bool ended_ = false;
  bool complete_ = false;
};

}  // namespace quartet::coordinator

#endif  // QUARTET_SERVICES_COORDINATOR_CORE_PATH_COPY_H_
