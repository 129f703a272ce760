#ifndef QUARTET_SERVICES_COORDINATOR_CORE_TIERS_H_
#define QUARTET_SERVICES_COORDINATOR_CORE_TIERS_H_

#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "services/coordinator/core/free_pool.h"
#include "services/coordinator/core/path_copy.h"
#include "services/coordinator/core/prefix_index.h"
#include "services/coordinator/core/types.h"

namespace quartet::coordinator {

// The tiers of the prefix cache below the device, and what moves between them.
//
//   down: what is published on the device is written through in the background, in the step after
//         it. So the device gives up what it likes, and it is seldom the last copy.
//   up:   a prompt that begins with more than the device holds waits until it is copied back: the
//         pages that are lacking and one snapshot, however long the prefix. Then it begins as if
//         it had never been away.
//
// From host memory it goes on to the disk in the same way, if there is one, and from the disk it
// comes back through host memory. The disk outlives the engine: Adopt.
//
// A copy that fails costs the object that could not be read, and what comes after it; the prompt is
// computed from what is left. Not thread safe; the core owns it.
class CacheTiers {
 public:
  // Of the device: its pools and its index, which must outlive this.
  CacheTiers(const CoreConfig& config, FreePool* pages, FreePool* snapshots, PrefixIndex* index);

  // What the disk holds from the life before, the same on all ranks. Before anything else. Says how
  // many objects have a place in the index now; the places of all others are free.
  uint32_t Adopt(std::vector<CacheEntry> entries);

  // How many tokens of the prompt a lower tier would bring back, as PrefixMatch::cached_tokens.
  uint32_t Match(const PrefixPath& path) const;
  // Starts to bring them back. One prefix at a time.
  void Restore(const PrefixPath& path, TimeUs now);
  bool restoring() const { return up_.has_value(); }
  // The last one ended at something that could not be read; that is gone now.
  bool restore_was_damaged() const { return restore_was_damaged_; }
  // What was brought back is held until somebody had the chance to take it.
  void ReleaseRestored() { restored_ = {}; }

  // The path up to `offset` has been published on the device.
  void WriteThrough(const PrefixLease& lease, uint32_t offset);

  // The same for a sequence that loses its place: this copy comes before others and is not given up
  // for those who need its pages.
  void Save(const PrefixLease& lease, uint32_t offset);
  // Such copies are still to come.
  bool saving() const { return n_saving_ > 0; }
  // Ends those of them that cannot go on; false if there was none. Not while a step is in flight
  // that copies.
  bool EndSaves();

  // What is known to be wrong, from this unit on, in all tiers below the device.
  void Discard(const UnitKey& unit);

  // Gives up all copies that are still to come, but for those, and what they hold on the device;
  // false if there was nothing. For whoever needs its pages. Not while a step is in flight.
  bool GiveUp();

  // The copies of the next step: up first; down only while nobody waits for a copy up. True if
  // something that was held was let go instead of being copied.
  bool Plan(std::vector<TierCopy>& copies);
  // Of the copies that were planned last.
  void OnStepResult(std::span<const CopyOutcome> outcomes, TimeUs now);
  // The step in flight will never be answered.
  void Abandon();

  // Places of the device that copies in flight write to.
  uint32_t device_pages_in_flight() const;
  uint32_t device_snapshots_in_flight() const;

  TierLedger host_ledger() const { return host_.GetLedger(); }
  TierLedger disk_ledger() const { return disk_ ? disk_->GetLedger() : TierLedger(); }
  // Paths on their way.
  uint32_t waiting() const {
    return static_cast<uint32_t>(down_.size()) + (up_.has_value() ? 1 : 0);
  }
  uint64_t given_up() const { return given_up_; }
  // As PrefixIndex::CheckInvariants, with the pools.
  std::string CheckInvariants() const;

 private:
  // Paths that wait to be written; more are given up.
  static constexpr size_t kMaxWaiting = 256;

  // A tier with its pools, its index and its books.
  struct Lower {
    Lower(CacheTier tier, uint32_t n_pages, uint32_t n_snapshots, const CoreConfig& config);
    TierLedger GetLedger() const;

    FreePool pages;
    FreePool snapshots;
    PrefixIndex index;
    TierStore store;
    TierLedger counts;                  // its counters only
    uint64_t discarded_with_pages = 0;  // snapshots, which the index counts as evicted
  };

  Lower& LowerOf(CacheTier tier) { return tier == CacheTier::kDisk ? *disk_ : host_; }
  // `ends`: the paths that are entered already, by their last units.
  bool AdoptPage(const CacheEntry& entry, absl::flat_hash_map<UnitKey, PrefixLease>& ends);
  void Apply(PathCopy& copy, std::span<const CopyOutcome>& outcomes, TimeUs now);
  void EndUp();
  void EndDown(size_t which);
  void DiscardDamaged();
  void DiscardFrom(Lower& lower, const UnitKey& unit);
  std::string CheckTier(const Lower& lower) const;

  const uint64_t bytes_per_step_;
  const uint32_t unit_tokens_;
  const TierStore device_;
  Lower host_;
  std::optional<Lower> disk_;

  // Below the indices, since they hold leases.
  std::deque<PathCopy> down_;  // of Save, then oldest first
  size_t n_saving_ = 0;        // so many of Save
  std::optional<PathCopy> up_;
  PrefixLease restored_;
  bool restore_was_damaged_ = false;

  // Found damaged; given up when nobody holds them any more.
  struct Damage {
    CacheTier tier = CacheTier::kHost;
    UnitKey unit;
    bool snapshot = false;
  };
  std::vector<Damage> damaged_;
  uint64_t given_up_ = 0;
};

}  // namespace quartet::coordinator

#endif  // QUARTET_SERVICES_COORDINATOR_CORE_TIERS_H_
