#include "services/coordinator/rpc/inventory.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/hash/hash.h"
#include "services/coordinator/rpc/convert.h"

namespace quartet::coordinator {

bool Inventory::Add(uint64_t worker, const v1::CacheInventory& message) {
  absl::flat_hash_set<uint64_t>& said = said_[worker];
  for (const v1::CacheEntry& entry : message.entries()) {
    if (said.size() >= kMaxEntries) return false;
    const uint64_t hash = absl::HashOf(entry.SerializeAsString());
    said.insert(hash);
    entries_.try_emplace(hash, entry);
  }
  return true;
}

std::vector<CacheEntry> Inventory::TakeCommon(std::span<const uint64_t> workers) {
  std::vector<CacheEntry> common;
  for (const auto& [hash, entry] : std::exchange(entries_, {})) {
    const bool everywhere = std::ranges::all_of(workers, [&, hash = hash](uint64_t worker) {
      const auto said = said_.find(worker);
      return said != said_.end() && said->second.contains(hash);
    });
    if (everywhere) common.push_back(ToCacheEntry(entry));
  }
  said_.clear();
  return common;
}

}  // namespace quartet::coordinator
