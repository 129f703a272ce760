#ifndef QUARTET_SHARD_WORKER_EXECUTOR_RANK_TIERS_H_
#define QUARTET_SHARD_WORKER_EXECUTOR_RANK_TIERS_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/ops/backend.h"
#include "proto/quartet/v1/worker.pb.h"
#include "shard_worker/memory/disk_tier.h"
#include "shard_worker/memory/host_tier.h"
#include "shard_worker/memory/pools.h"

namespace quartet {

struct RankTierOptions {
  std::string disk_folder;
  // Everything that the bytes of pages and snapshots depend on besides tokens: what was written
  // under another description is not read.
  std::string numerics;
  int corrupt_copies = 0;  // as HostTierOptions::corrupt_every
};

// The tiers of this rank's part of the prefix cache below the device; null = there is none.
struct RankTiers {
  std::unique_ptr<HostTier> host;
  std::unique_ptr<DiskTier> disk;
};

// Those that the coordinator's welcome asks for, in its sizes. The backend must outlive them.
absl::StatusOr<RankTiers> OpenRankTiers(const RankTierOptions& options, const v1::Welcome& welcome,
                                        const Pools& pools, ops::Backend& backend);

// What the disk holds from the life before, for the coordinator; once.
std::vector<v1::FromWorker> TakeInventory(RankTiers& tiers);

}  // namespace quartet

#endif  // QUARTET_SHARD_WORKER_EXECUTOR_RANK_TIERS_H_
