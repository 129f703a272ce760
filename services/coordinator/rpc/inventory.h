#ifndef QUARTET_SERVICES_COORDINATOR_RPC_INVENTORY_H_
#define QUARTET_SERVICES_COORDINATOR_RPC_INVENTORY_H_

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "proto/quartet/v1/worker.pb.h"
#include "services/coordinator/core/types.h"

namespace quartet::coordinator {

// What the workers' disk tiers hold from the life before, gathered until all ranks are ready. What
// two of them say in the same words is kept once. Not thread safe.
class Inventory {
 public:
  // Of one worker; more is not believed.
  static constexpr size_t kMaxEntries = 131072;

  // False if the worker has said more than kMaxEntries: what is too much is left out.
  bool Add(uint64_t worker, const v1::CacheInventory& message);
  void Forget(uint64_t worker) { said_.erase(worker); }
  // The entries that all of these workers have. Nothing is kept after that.
  std::vector<CacheEntry> TakeCommon(std::span<const uint64_t> workers);

 private:
  absl::flat_hash_map<uint64_t, v1::CacheEntry> entries_;   // by a hash of all of it
  std::map<uint64_t, absl::flat_hash_set<uint64_t>> said_;  // worker -> hashes
};

}  // namespace quartet::coordinator

#endif  // QUARTET_SERVICES_COORDINATOR_RPC_INVENTORY_H_
