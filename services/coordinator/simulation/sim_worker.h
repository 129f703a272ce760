#ifndef QUARTET_SERVICES_COORDINATOR_SIMULATION_SIM_WORKER_H_
#define QUARTET_SERVICES_COORDINATOR_SIMULATION_SIM_WORKER_H_

#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "services/coordinator/core/step_collector.h"
#include "services/coordinator/core/types.h"
#include "services/coordinator/simulation/hash_model.h"
#include "services/coordinator/simulation/sim_tiers.h"

namespace quartet::simulation {

// One rank with the hash model in it, which keeps states in slots and entries in pages as a shard
// worker does, and both under their names in host memory and on its disk; follows the same
// protocol, and refuses what a shard worker could not do. What it refuses comes back as the error
// of the step; what it could not even answer is a breach.
class SimWorker {
 public:
  // `disk`: what the rank before it has left.
  SimWorker(const HashModel& model, const coordinator::CoreConfig& config, uint32_t rank,
            SimDisk disk = {});

  void Open(const coordinator::SequenceOpen& open);
  void Close(uint64_t seq_uid);
  // The last step id again returns the stored answer and changes nothing.
  // `faults`: of the plan's copies; those behind its end go well.
  coordinator::StepCollector::Answer Execute(const coordinator::StepPlan& plan, TimeUs now = 0,
                                             std::span<const TierFault> faults = {});
  // When the last step's copies had all that they waited for.
  TimeUs copies_ready() const { return copies_ready_; }

  // The first open or close that did not fit; empty if all did.
  const std::string& breach() const { return breach_; }

  // What this rank holds for a sequence.
  struct Sequence {
    uint64_t uid = 0;  // 0 = the slot is free
    coordinator::Sampling sampling;
    int32_t first_padding_id = 0;
    std::vector<uint32_t> pages;
    uint32_t absorbed = 0;  // the window included
    uint32_t furthest = 0;  // the same if all of its drafts had been accepted
    uint64_t state = HashModel::kEmptyState;
    std::vector<int32_t> window;  // accepted tokens that are not in the state yet
    std::vector<int32_t> drafts;
    int32_t last_token = HashModel::kNan;
    bool failed = false;  // a draw found no finite logit; its rows fail from then on
  };
  const Sequence& slot(uint32_t slot) const { return slots_[slot]; }
  // Of everything that the sequence's pages hold for it.
  uint64_t Entries(const Sequence& sequence) const {
    return EntriesUpTo(sequence, sequence.absorbed);
  }
  uint32_t slots_used() const;
  uint32_t pages_used() const;

  // What lies at a place of the device: the sum of a page's entries, or a state, and after how many
  // tokens that is. Both 0 where nothing was written.
  uint64_t PageEntries(uint32_t page) const {
    return pages_[page].up_to.empty() ? 0 : pages_[page].up_to.back();
  }
  std::pair<uint64_t, uint32_t> SnapshotState(uint32_t snapshot) const {
    return {snapshots_[snapshot].state, snapshots_[snapshot].tokens};
  }
  const SimTier& host() const { return host_; }
  const SimDisk& disk() const { return disk_; }
  // The rank is no more.
  SimDisk TakeDisk() && { return std::move(disk_); }
  // For tests: what comes back from a lower tier is taken as it is.
  void BelieveEverything() { compares_checksums_ = false; }

 private:
  struct Page {
    uint32_t users = 0;           // sequences that have it in their tables
    std::vector<uint64_t> up_to;  // the sum of its entries up to each place, that included
  };
  struct Snapshot {
    uint64_t state = 0;
    uint32_t tokens = 0;  // 0 = never written
  };

  void Resume(const coordinator::Resume& resume, Sequence& sequence);
  std::string CheckCommit(const coordinator::Commit& commit);
  std::string CheckExport(uint32_t snapshot, uint32_t tokens);
  std::string CheckWindow(const coordinator::PlanRow& row, const Sequence& sequence);
  void Commit(Sequence& sequence, uint32_t export_at, uint32_t snapshot);
  void Verify(const coordinator::PlanRow& row, Sequence& sequence,
              coordinator::RowOutcome& outcome);
  void Draw(const coordinator::PlanRow& row, uint64_t state, uint32_t position, Sequence& sequence,
            coordinator::RowOutcome& outcome);
  void MakeDrafts(uint32_t chain, uint64_t state, Sequence& sequence,
                  coordinator::RowOutcome& outcome);
  uint64_t EntriesUpTo(const Sequence& sequence, uint32_t tokens) const;
  void Write(const Sequence& sequence, uint32_t position, int32_t token);
  Sequence* Find(uint64_t seq_uid);

  uint32_t Places(coordinator::CacheTier tier, TierCopy::Kind kind) const;
  std::string CheckCopies(const std::vector<TierCopy>& copies);
  coordinator::CopyOutcome Copy(const TierCopy& copy, TierFault fault, TimeUs now);
  coordinator::CopyOutcome Down(const TierCopy& copy, TierFault fault, TimeUs now);
  coordinator::CopyOutcome Up(const TierCopy& copy, TierFault fault);
  coordinator::CopyOutcome Compare(const StoredObject& object, const TierCopy& copy) const;

  std::string CheckPlan(const coordinator::StepPlan& plan);
  std::string CheckRow(const coordinator::PlanRow& row);
  std::string CheckPages(const coordinator::PlanRow& row, const Sequence& sequence);
  coordinator::RowOutcome Run(const coordinator::PlanRow& row);
  void Absorb(const coordinator::PlanRow& row, Sequence& sequence,
              coordinator::RowOutcome& outcome);
  void Breach(std::string what);

  const HashModel model_;
  const coordinator::CoreConfig config_;
  const uint32_t rank_;
  std::vector<Sequence> slots_;
  std::vector<Page> pages_;
  std::vector<Snapshot> snapshots_;
  absl::flat_hash_set<uint64_t> used_uids_;
  std::vector<uint64_t> row_uids_;   // of the plan that is checked
  std::vector<uint32_t> new_pages_;  // as well
  std::vector<uint32_t> exports_;    // as well
  std::set<std::tuple<coordinator::CacheTier, TierCopy::Kind, uint32_t>> copied_to_;  // as well
  SimTier host_;
  SimDisk disk_;
  bool compares_checksums_ = true;
  TimeUs copies_ready_ = 0;
  coordinator::StepCollector::Answer last_;
  std::string breach_;
};

}  // namespace quartet::simulation

#endif  // QUARTET_SERVICES_COORDINATOR_SIMULATION_SIM_WORKER_H_
