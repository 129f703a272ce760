#include <algorithm>
#include <utility>

#include "services/coordinator/simulation/simulation.h"

// What happens to the cache's tiers: copies that fail, and disks that outlive their engines.

namespace quartet::simulation {

using coordinator::CacheEntry;
using coordinator::StepPlan;
using Kind = TraceEvent::Kind;

namespace {

bool IsSame(const CacheEntry& a, const CacheEntry& b) {
  return a.kind == b.kind && a.place == b.place && a.key == b.key && a.n_tokens == b.n_tokens &&
         a.origin.root == b.origin.root && a.origin.parent == b.origin.parent &&
         a.origin.tokens == b.origin.tokens;
}

}  // namespace

std::vector<TierFault> Simulation::DrawTierFaults(const StepPlan& plan, uint32_t rank) {
  std::vector<TierFault> faults;
  if (!scenario_.tier_fault) return faults;
  for (const TierCopy& copy : plan.copies) {
    const TierFault fault = scenario_.tier_fault(rank, copy);
    faults.push_back(fault);
    if (fault == TierFault::kNone) continue;
    ++tier_faults_[static_cast<int>(fault)];
    Note({.kind = Kind::kFault, .step = plan.step_id, .a = rank, .note = Name(fault)});
  }
  return faults;
}

void Simulation::LeaveDisks() {
  disks_.clear();
  for (uint32_t rank = 0; rank < scenario_.ranks; ++rank) {
    SimDisk& disk = disks_.emplace_back(std::move(workers_[rank]).TakeDisk());
    if (!scenario_.clean_end || scenario_.clean_end(rank)) {
      disk.Flush();
    } else {
      disk.Crash(now_);
    }
  }
}

// As in production, what all ranks have at the same place.
void Simulation::Adopt() {
  if (scenario_.config.disk_pages == 0) return;
  std::vector<CacheEntry> common = workers_[0].disk().Inventory();
  for (uint32_t rank = 1; rank < scenario_.ranks; ++rank) {
    // Both are in order of kind and place.
    const std::vector<CacheEntry> other = workers_[rank].disk().Inventory();
    auto at = other.begin();
    std::erase_if(common, [&](const CacheEntry& entry) {
      const auto before = [&](const CacheEntry& o) {
        return std::pair(o.kind, o.place) < std::pair(entry.kind, entry.place);
      };
      while (at != other.end() && before(*at)) ++at;
      return at == other.end() || !IsSame(*at, entry);
    });
  }
  const size_t found = common.size();
  auditor_.OnAdopt(common);
  if (scenario_.bugs.adopted) scenario_.bugs.adopted(common);
  const uint32_t adopted = core_->AdoptCached(std::move(common));
  Note({.kind = Kind::kAdopt, .a = found, .b = adopted});
}

}  // namespace quartet::simulation
