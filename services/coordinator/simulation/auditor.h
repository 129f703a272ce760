#ifndef QUARTET_SERVICES_COORDINATOR_SIMULATION_AUDITOR_H_
#define QUARTET_SERVICES_COORDINATOR_SIMULATION_AUDITOR_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "services/coordinator/core/core.h"
#include "services/coordinator/core/step_collector.h"
#include "services/coordinator/core/types.h"
#include "services/coordinator/simulation/hash_model.h"
#include "services/coordinator/simulation/sim_worker.h"

namespace quartet::simulation {

// What happened in a run, over all of its engines. Counted by the auditor from what went in and
// out, never read from the core.
struct Tally {
  uint64_t engines = 0;
  uint64_t steps = 0;
  uint64_t rows = 0;
  uint64_t row_tokens = 0;
  uint64_t accepted = 0;
  uint64_t refused = 0;
  uint64_t finished[4] = {};  // by coordinator::FinishReason
  uint64_t cancelled_queued = 0;
  uint64_t cancelled_prefill = 0;
  uint64_t cancelled_decode = 0;
  uint64_t failed_rows = 0;    // requests whose logits had no finite value
  uint64_t failed_engine = 0;  // requests that were open when an engine ended
  uint64_t preemptions = 0;
  uint64_t void_rows = 0;  // in flight when their request ended
  uint64_t tokens = 0;     // told

  void Add(const Tally& other);
};

// Watches everything that goes into the core and comes out of it, keeps its own books, and says
// when one of the engine's invariants (I1, I3, ... as the names of the checks below) does not hold.
// It knows nothing that a request, a plan, an answer or an output does not say.
//
//   I1  every rank's state of every sequence is that of its committed tokens
//   I3  a page has one writer, and is free only when no step can touch it
//   I4  nothing leaves before all ranks have answered with one hash
//   I5  pools add up, and are empty when nothing is open
//   I7  nothing behind the token that ended an answer
//   I8  one terminal output a request, and none is lost
//   I9  who is admitted goes on
//   I10 a plan fits: budget, slots, pages, context
//   I11 epochs and step ids are monotone
//   I12 a request says what it says alone
//   I13 who has gone has no row in a later step
//   I14 the core's counters are those of these books
class Auditor {
 public:
  explicit Auditor(const HashModel& model);

  void OnEngine(const coordinator::CoreConfig& config, uint32_t ranks);
  void OnSubmit(coordinator::Request request, const coordinator::SubmitOutcome& outcome);
  void OnCancel(uint64_t id);
  void OnTruncate(uint64_t id, uint32_t n_tokens, coordinator::Core::TruncateOutcome outcome);
  void OnPlan(const coordinator::StepPlan& plan);
  void OnAnswer(const coordinator::StepCollector::Answer& answer);
  // The result of a step went into the core, which took it or did not.
  void OnApplied(uint64_t epoch, uint64_t step_id, bool taken);
  // Before the outputs that this causes.
  void OnEngineEnd(const std::string& message);
  void OnOutput(const coordinator::Output& output, TimeUs now);

  // When all outputs so far were seen.
  void CheckBooks(const coordinator::Ledger& ledger);
  // When no step is in flight.
  void CheckStates(const std::vector<SimWorker>& workers);
  // When the last closes are through and nothing is open.
  void CheckIdle(const coordinator::Ledger& ledger, const std::vector<SimWorker>& workers);

  size_t open_requests() const { return lives_.size(); }
  // The first thing that was wrong; empty if nothing was.
  const std::string& violation() const { return violation_; }
  void Violate(std::string what);
  const Tally& tally() const { return tally_; }

 private:
  // A request that was accepted and has not ended.
  struct Life {
    Life(const HashModel& model, uint64_t id, coordinator::Request request);
    uint32_t known() { return alone.prompt_tokens() + told; }  // committed tokens

    const uint64_t id;
    LoneRun alone;
    const coordinator::Request request;  // without the prompt
    uint32_t told = 0;
    uint32_t due = 0;  // tokens that it should have been told by now
    uint32_t prompt_logprobs_told = 0;
    TimeUs last_token = 0;
    bool admitted = false;
    bool cancelled = false;
    bool prompt_counted = false;
    std::optional<uint32_t> truncated;
    std::optional<coordinator::FinishReason> ending;  // what the last token means
    bool failing = false;                             // its next token is none
    int slot = -1;
  };
  // A slot. It stays with its sequence until the close, the life may end before.
  struct Place {
    uint64_t uid = 0;  // 0 = free
    Life* life = nullptr;
    std::vector<uint32_t> pages;
    uint32_t absorbed = 0;
    uint64_t last_row_step = 0;
    uint32_t row_tokens = 0;  // of the step in flight; 0 = no row in it
    bool row_samples = false;
  };

  void OnClose(uint64_t uid, uint64_t oldest);
  void OnOpen(const coordinator::SequenceOpen& open);
  void OnRow(const coordinator::PlanRow& row);
  std::string RowError(const coordinator::PlanRow& row, Place& place);
  std::string RowTokensError(const coordinator::PlanRow& row, Place& place);
  void TakePages(const coordinator::PlanRow& row, Place& place);
  void CheckProgress(const coordinator::StepPlan& plan);

  void OnTokens(const coordinator::Output& output, Life& life, TimeUs now);
  void OnEnd(const coordinator::Output& output, Life& life);
  void OnFinished(const coordinator::Output& output, Life& life);
  std::optional<coordinator::FinishReason> Ending(Life& life, int32_t token) const;

  Place* FindPlace(uint64_t uid);

  const HashModel model_;
  coordinator::CoreConfig config_;
  uint32_t ranks_ = 0;
  std::map<uint64_t, std::unique_ptr<Life>> lives_;  // by request
  std::vector<Place> places_;                        // by slot
  std::vector<uint64_t> page_owner_;                 // seq_uid, 0 = none
  uint64_t last_uid_ = 0;
  uint64_t last_epoch_ = 0;
  uint64_t in_flight_ = 0;                              // step, 0 = none
  std::vector<std::optional<uint64_t>> answered_hash_;  // by rank, to the step in flight
  std::string engine_end_;
  coordinator::Ledger books_;  // of this engine: what its ledger should say
  Tally tally_;
  std::string violation_;
};

}  // namespace quartet::simulation

#endif  // QUARTET_SERVICES_COORDINATOR_SIMULATION_AUDITOR_H_
