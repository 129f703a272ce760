#ifndef QUARTET_SHARD_WORKER_MEMORY_HOST_TIER_H_
#define QUARTET_SHARD_WORKER_MEMORY_HOST_TIER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/ops/backend.h"

namespace quartet {

enum class CacheObject : uint8_t { kPage, kSnapshot };

// Names what an object of the prefix cache is: the unit of tokens that it belongs to, with
// everything before it.
struct UnitName {
  uint64_t key_high = 0;
  uint64_t key_low = 0;
  uint32_t n_tokens = 0;  // up to the end of the unit

  friend bool operator==(const UnitName&, const UnitName&) = default;
};

// How a copy between tiers ended.
enum class CopyOutcome {
  kDone,
  kMissing,   // the place holds something else, or nothing
  kChecksum,  // it holds the object, but not the bytes that were stored
};

struct HostTierOptions {
  int pages = 0;
  int snapshots = 0;
  int64_t page_bytes = 0;
  int64_t snapshot_bytes = 0;
  int corrupt_every = 0;  // for tests: damages each object of this many that come; 0 = none
};

// Pages and snapshots of this rank that have moved out of the device's memory: two arrays of places
// in one block of the host's, taken at start. Each place knows the name of what it holds and a
// checksum of it, made when it came; both are compared before it goes back. (The pages of all ranks
// hold the same; each keeps its own copy all the same, so that ranks need not meet for a restore.)
// Which place belongs to whom is not known here. Belongs to the compute thread.
class HostTier {
 public:
  static absl::StatusOr<std::unique_ptr<HostTier>> Create(const HostTierOptions& options,
                                                          ops::Backend& backend);

  // From the backend's memory into a place. An error is the device's, and the place is empty then.
  absl::Status Store(CacheObject object, int place, const UnitName& name, const std::byte* device);
  // And back; what is not kDone has left `device` as it was.
  absl::StatusOr<CopyOutcome> Load(CacheObject object, int place, const UnitName& name,
                                   std::byte* device) const;

  // For the tier below: the bytes under a name with their checksum, not compared; nothing if the
  // place holds something else.
  struct Stored {
    std::span<const std::byte> bytes;
    uint64_t checksum = 0;
  };
  Stored Find(CacheObject object, int place, const UnitName& name) const;
  // A place to be filled by hand. It is empty until Filled.
  std::span<std::byte> Fill(CacheObject object, int place);
  void Filled(CacheObject object, int place, const UnitName& name, uint64_t checksum);

  const HostTierOptions& options() const { return options_; }
  int places(CacheObject object) const {
    return object == CacheObject::kPage ? options_.pages : options_.snapshots;
  }
  int64_t object_bytes(CacheObject object) const {
    return object == CacheObject::kPage ? options_.page_bytes : options_.snapshot_bytes;
  }

 private:
  struct Label {
    bool filled = false;
    UnitName name;
    uint64_t checksum = 0;
  };

  HostTier(const HostTierOptions& options, ops::Backend& backend)
      : options_(options),
        backend_(backend),
        page_labels_(options.pages),
        snapshot_labels_(options.snapshots) {}

  std::span<std::byte> Bytes(CacheObject object, int place) const;
  Label& LabelOf(CacheObject object, int place) {
    return object == CacheObject::kPage ? page_labels_[place] : snapshot_labels_[place];
  }
  const Label& LabelOf(CacheObject object, int place) const {
    return object == CacheObject::kPage ? page_labels_[place] : snapshot_labels_[place];
  }

  const HostTierOptions options_;
  ops::Backend& backend_;
  ops::Memory memory_;  // pages, then snapshots
  std::vector<Label> page_labels_;
  std::vector<Label> snapshot_labels_;
  uint64_t stored_ = 0;  // objects that came
};

}  // namespace quartet

#endif  // QUARTET_SHARD_WORKER_MEMORY_HOST_TIER_H_
