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
    uint32_t absorbed = 0;
    uint64_t state = HashModel::kEmptyState;
    int32_t last_token = HashModel::kNan;
    bool failed = false;  // a draw found no finite logit; its rows fail from then on
  };
  const Sequence& slot(uint32_t slot) const { return slots_[slot]; }
  // Of everything that the sequence's pages hold for it.
  uint64_t Entries(const Sequence& sequence) const;
  uint32_t slots_used() const;
  uint32_t pages_used() const;

 private:
  struct Page {
    uint64_t owner = 0;  // seq_uid, 0 = none
    uint64_t entries = 0;
  };

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
  absl::flat_hash_set<uint64_t> used_uids_;
  std::vector<uint64_t> row_uids_;   // of the plan that is checked
  std::vector<uint32_t> new_pages_;  // as well
  coordinator::StepCollector::Answer last_;
  std::string breach_;
};

}  // namespace quartet::simulation

#endif  // QUARTET_SERVICES_COORDINATOR_SIMULATION_SIM_WORKER_H_
