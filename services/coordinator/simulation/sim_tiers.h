#ifndef QUARTET_SERVICES_COORDINATOR_SIMULATION_SIM_TIERS_H_
#define QUARTET_SERVICES_COORDINATOR_SIMULATION_SIM_TIERS_H_

#include <cstdint>
#include <deque>
#include <vector>

#include "services/coordinator/core/types.h"
#include "services/coordinator/simulation/random.h"

// What one simulated rank keeps of the prefix cache below its device. Names and checksums are
// compared as a shard worker does (shard_worker/memory), and what it keeps can go bad.

namespace quartet::simulation {

using coordinator::TierCopy;
using coordinator::TimeUs;
using coordinator::UnitKey;

// What happens to one copy at one rank.
enum class TierFault : uint8_t {
  kNone,
  kSlow,       // it comes, but the step waits long for it
  kDamaged,    // in the lower of its two tiers a bit falls over
  kRefused,    // it is not made, and the rank says so
  kLostWrite,  // to the disk: the rank says that it is made, and it never is
};
inline constexpr int kTierFaultKinds = 5;
const char* Name(TierFault fault);

// A page or a snapshot under its name. All that the hash model has of either is one number: the sum
// of a full page's entries, or a state.
struct StoredObject {
  UnitKey key;
  uint32_t n_tokens = 0;  // 0 = the place is empty
  uint64_t data = 0;
  uint64_t checksum = 0;
  coordinator::UnitOrigin origin;  // on the disk

  static uint64_t ChecksumOf(uint64_t data) { return Mix(data ^ 0x5175617274657421u); }
  bool intact() const { return checksum == ChecksumOf(data); }
  bool Is(const TierCopy& copy) const {
    return n_tokens != 0 && n_tokens == copy.n_tokens && key == copy.key;
  }
};

// Places of one tier.
class SimTier {
 public:
  SimTier(uint32_t pages, uint32_t snapshots) : pages_(pages), snapshots_(snapshots) {}

  std::vector<StoredObject>& Of(TierCopy::Kind kind) {
    return kind == TierCopy::Kind::kPage ? pages_ : snapshots_;
  }
  const std::vector<StoredObject>& Of(TierCopy::Kind kind) const {
    return kind == TierCopy::Kind::kPage ? pages_ : snapshots_;
  }

 private:
  std::vector<StoredObject> pages_;
  std::vector<StoredObject> snapshots_;
};

// The disk, which outlives the rank, behind a writer that takes its time. The rank itself reads
// what is queued, since it waits for it; the next one finds what was written.
class SimDisk {
 public:
  SimDisk() : SimDisk(0, 0, 0) {}
  SimDisk(uint32_t pages, uint32_t snapshots, TimeUs write_us)
      : records_(pages, snapshots), write_us_(write_us) {}

  static constexpr TimeUs kQueue = 64;  // records that wait, at most

  // False: too much is waiting already.
  bool Write(TierCopy::Kind kind, uint32_t place, StoredObject record, TimeUs now);
  // The record after all that is queued for its place; `ready` becomes when that is written, if it
  // is later.
  StoredObject& Read(TierCopy::Kind kind, uint32_t place, TimeUs& ready);
  // The rank ends: what is waiting is written first, or the end comes without warning.
  void Flush() { Settle(queue_.empty() ? 0 : queue_.back().due); }
  void Crash(TimeUs now);

  // What is written, as the next rank reports it.
  std::vector<coordinator::CacheEntry> Inventory() const;
  const SimTier& records() const { return records_; }

 private:
  struct Waiting {
    TierCopy::Kind kind;
    uint32_t place;
    StoredObject record;
    TimeUs due;
  };
  void Settle(TimeUs until);

  SimTier records_;
  TimeUs write_us_;
  std::deque<Waiting> queue_;  // in the order of `due`
};

}  // namespace quartet::simulation

#endif  // QUARTET_SERVICES_COORDINATOR_SIMULATION_SIM_TIERS_H_
