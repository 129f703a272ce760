#ifndef QUARTET_SERVICES_COORDINATOR_MEMBERSHIP_POOL_PLAN_H_
#define QUARTET_SERVICES_COORDINATOR_MEMBERSHIP_POOL_PLAN_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace quartet::coordinator {

// What one worker's memory holds at one tensor-parallel size; bytes of one rank.
struct MemoryOffer {
  uint32_t tensor_parallel_size = 0;
  uint64_t budget_bytes = 0;
  uint64_t weight_bytes = 0;
  uint64_t slot_bytes = 0;
  uint64_t page_bytes = 0;
  uint64_t activation_bytes_per_token = 0;
  uint32_t page_tokens = 0;
  uint64_t snapshot_bytes = 0;  // 0 = this worker keeps none
  uint64_t host_cache_bytes = 0;
  uint64_t disk_cache_bytes = 0;
};

struct PoolLimits {
  uint32_t max_num_seqs = 4;
  uint32_t max_num_batched_tokens = 512;
  uint32_t max_model_len = 0;  // as asked for; 0 = the default
  uint32_t max_position_embeddings = 0;
  bool prefix_caching = false;
};

// Places of a tier of the prefix cache below the device.
struct TierPlaces {
  uint32_t pages = 0;  // 0 = there is no such tier, and then no snapshots either
  uint32_t snapshots = 0;
};

struct PoolPlan {
  uint32_t slots = 0;
  uint32_t pages = 0;
  uint32_t page_tokens = 0;
  uint32_t max_model_len = 0;
  uint32_t snapshots = 0;  // 0 = no prefix caching
  uint64_t page_bytes = 0;
  uint64_t snapshot_bytes = 0;
  TierPlaces host;
  TierPlaces disk;  // only below host memory
};

// Bounds what the index of a tier takes: 1 KiB of tokens a page.
inline constexpr uint32_t kMaxTierPages = 65536;

// Of each object on disk: a header, and what is left of its last block.
inline constexpr uint64_t kDiskRecordBytes = 8192;

// What goes into a tier of so many bytes. Half of them for snapshots, of which there are never more
// than pages; the rest for pages.
TierPlaces PlanTier(uint64_t bytes, uint64_t page_bytes, uint64_t snapshot_bytes);

// With prefix caching there is always room for these.
inline constexpr uint32_t kMinSnapshots = 4;
// And never for more than so many for each sequence that can run at once.
inline constexpr uint32_t kMaxSnapshotsPerSequence = 32;

inline constexpr uint32_t kDefaultMaxModelLen = 131072;

// The context length: what was asked for, or min(131072, max_position_embeddings). More than the
// model has positions is an error.
absl::StatusOr<uint32_t> ResolveMaxModelLen(const PoolLimits& limits);

// The pools that every rank can hold. Of each offer: weights, activations, max_num_seqs slots and
// kMinSnapshots first, pages with the rest, never more than max_num_seqs full contexts; then more
// snapshots, never more than pages or kMaxSnapshotsPerSequence each. Of all that the minimum over
// ranks, because pools are equal everywhere. `offers` has one entry per rank, all of the same
// tensor-parallel size. Of the tiers below the device the minimum as well. If not even one full
// context fits: an error with the figures of the tightest rank and the largest --max-model-len that
// would fit.
absl::StatusOr<PoolPlan> PlanPools(const std::vector<MemoryOffer>& offers,
                                   const PoolLimits& limits);

// OK if a worker with this offer can take a rank in an engine whose pools are already agreed.
absl::Status FitsPools(const MemoryOffer& offer, const PoolPlan& plan, const PoolLimits& limits);

}  // namespace quartet::coordinator

#endif  // QUARTET_SERVICES_COORDINATOR_MEMBERSHIP_POOL_PLAN_H_
