#ifndef QUARTET_SERVICES_COORDINATOR_SIMULATION_SIM_WORKER_H_
#define QUARTET_SERVICES_COORDINATOR_SIMULATION_SIM_WORKER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "services/coordinator/core/step_collector.h"
#include "services/coordinator/core/types.h"
#include "services/coordinator/simulation/hash_model.h"

namespace quartet::simulation {

// One rank with the hash model in it, which keeps states in slots and entries in pages as a shard
// worker does, follows the same protocol, and refuses what a shard worker could not do. What it
// refuses comes back as the error of the step; what it could not even answer is a breach.
class SimWorker {
 public:
  SimWorker(const HashModel& model, const coordinator::CoreConfig& config, uint32_t rank);

  void Open(const coordinator::SequenceOpen& open);
  void Close(uint64_t seq_uid);
  // The last step id again returns the stored answer and changes nothing.
  coordinator::StepCollector::Answer Execute(const coordinator::StepPlan& plan);

  // The first open or close that did not fit; empty if all did.
  const std::string& breach() const { return breach_; }

  // What this rank holds for a sequence.
  struct Sequence {
    uint64_t uid = 0;  // 0 = the slot is free
    coordinator::Sampling sampling;
    int32_t first_padding_id = 0;
    std::vector<uint32_t> pages;
    uint32_t absorbed = 0;  // the window included
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
  coordinator::StepCollector::Answer last_;
  std::string breach_;
};

}  // namespace quartet::simulation

#endif  // QUARTET_SERVICES_COORDINATOR_SIMULATION_SIM_WORKER_H_
