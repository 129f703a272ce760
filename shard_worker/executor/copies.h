#ifndef QUARTET_SHARD_WORKER_EXECUTOR_COPIES_H_
#define QUARTET_SHARD_WORKER_EXECUTOR_COPIES_H_

#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/quartet/v1/worker.pb.h"
#include "shard_worker/executor/sequence_table.h"
#include "shard_worker/memory/disk_tier.h"
#include "shard_worker/memory/host_tier.h"
#include "shard_worker/memory/pools.h"

namespace quartet {

// Since the start.
struct CopyStats {
  uint64_t down_bytes = 0;  // away from the device
  uint64_t up_bytes = 0;
  uint64_t checksum_failures = 0;
  uint64_t missing = 0;
  uint64_t disk_writes_failed = 0;  // after they were queued
};

// The tiers of a rank below its device; null = there is none. A disk tier needs a host tier.
struct LowerTiers {
  HostTier* host = nullptr;
  DiskTier* disk = nullptr;
};

// Executes the copies of plans between the tiers of the prefix cache. One thread.
class TierCopies {
 public:
  // Keeps references; all must outlive it. snapshot_tokens: of each snapshot of the device, how
  // many tokens its state has absorbed; a copy that comes in sets it.
  TierCopies(Pools& pools, const LowerTiers& tiers, std::span<int64_t> snapshot_tokens)
      : pools_(pools), tiers_(tiers), snapshot_tokens_(snapshot_tokens) {}

  // Whether all copies of a plan can be tried, beside its rows: places exist, nothing that somebody
  // uses is written, and nothing twice. Changes nothing. The message names the copy.
  absl::Status Check(const v1::StepPlan& plan, const SequenceTable& table) const;

  // Makes the copies of a plan that was checked and adds a result for each. An error is the
  // device's.
  absl::Status Run(const v1::StepPlan& plan, v1::StepResult& result);

  CopyStats stats() const;

 private:
  uint32_t Places(v1::Copy::Tier tier, CacheObject object) const;
  absl::StatusOr<CopyOutcome> Move(const v1::Copy& copy);
  absl::StatusOr<CopyOutcome> DeviceToHost(const v1::Copy& copy);
  absl::StatusOr<CopyOutcome> HostToDevice(const v1::Copy& copy);
  absl::StatusOr<CopyOutcome> Compare(const v1::Copy& copy);
  CopyOutcome HostToDisk(const v1::Copy& copy);
  CopyOutcome DiskToHost(const v1::Copy& copy);

  Pools& pools_;
  const LowerTiers tiers_;
  const std::span<int64_t> snapshot_tokens_;
  CopyStats stats_;
};

}  // namespace quartet

#endif  // QUARTET_SHARD_WORKER_EXECUTOR_COPIES_H_
