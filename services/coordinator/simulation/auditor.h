#ifndef QUARTET_SERVICES_COORDINATOR_SIMULATION_AUDITOR_H_
#define QUARTET_SERVICES_COORDINATOR_SIMULATION_AUDITOR_H_

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
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
  uint64_t refused_late = 0;  // of refused: for their deadline
  uint64_t expired = 0;
  uint64_t pauses = 0;
  uint64_t finished[4] = {};  // by coordinator::FinishReason
  uint64_t cancelled_queued = 0;
  uint64_t cancelled_prefill = 0;
  uint64_t cancelled_decode = 0;
  uint64_t failed_rows = 0;    // requests whose logits had no finite value
  uint64_t failed_engine = 0;  // requests that were open when an engine ended
  uint64_t preemptions = 0;
  uint64_t comparisons = 0;          // of states that were computed again with cached ones
  uint64_t recomputed_tokens = 0;    // of what was absorbed before them
  uint64_t void_rows = 0;            // in flight when their request ended
  uint64_t steps_behind_others = 0;  // planned while another was in flight
  uint64_t tokens = 0;               // told
  uint64_t windows[coordinator::kMaxDraftTokens + 1] = {};  // by accepted drafts
  uint64_t cut_windows = 0;                                 // an answer ended inside of them
  uint64_t resumed = 0;                                     // sequences that began behind a prefix
  uint64_t resumed_tokens = 0;
  uint64_t resumed_in_answers = 0;  // of these, behind what somebody was told
  uint64_t exports = 0;             // snapshots of prompts
  uint64_t inner_exports = 0;       // of them, inside of a row
  uint64_t answer_exports = 0;
  uint64_t last_exports = 0;  // after the end of a request
  // Copies between tiers, by the tier that they went to.
  uint64_t copies_to[4] = {};
  uint64_t copies_missing = 0;    // not made, or found nothing of that name
  uint64_t copies_checksum = 0;   // found other bytes
  uint64_t adopted = 0;           // objects on disk when an engine began
  uint64_t resumed_restored = 0;  // sequences that began behind what had been in a lower tier
  uint64_t resumed_adopted = 0;   // of these, from the life before

  void Add(const Tally& other);
};

// Watches everything that goes into the core and comes out of it, keeps its own books, and says
// when one of the engine's invariants (I1, I3, ... as the names of the checks below) does not hold.
// It knows nothing that a request, a plan, an answer or an output does not say.
//
//   I1  every rank's state of every sequence is that of its committed tokens
//   I2  a snapshot is of as many tokens as its place says, and of the text whose name it has
//   I3  a page has one writer or does not change, and is free only when no step can touch it
//   I4  nothing leaves before all ranks have answered with one hash
//   I5  pools add up, and are empty when nothing is open
//   I7  nothing behind the token that ended an answer: not told, not counted, not cached
//   I8  one terminal output a request, and none is lost
//   I9  who is admitted goes on, unless its client does not read
//   I10 a plan fits: budget, slots, pages, context
//   I11 epochs and step ids are monotone
//   I12 a request says what it says alone
//   I13 who has gone has no row in a later step
//   I14 the core's counters are those of these books
//   I15 a tier that fails changes time, never text: what a name brings back is what it was given to
class Auditor {
 public:
  explicit Auditor(const HashModel& model);

  void OnEngine(const coordinator::CoreConfig& config, uint32_t ranks);
  // What all ranks have found on their disks; right behind OnEngine.
  void OnAdopt(const std::vector<coordinator::CacheEntry>& entries);
  void OnSubmit(coordinator::Request request, const coordinator::SubmitOutcome& outcome);
  void OnCancel(uint64_t id);
  void OnTruncate(uint64_t id, uint32_t n_tokens, coordinator::Core::TruncateOutcome outcome);
  // Names of the units that its answer has filled, as the core is told them.
  void OnUnitKeys(uint64_t id, const std::vector<UnitKey>& keys);
  // Its client reads again, or does not.
  void OnPause(uint64_t id, bool paused);
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
  // The same, of all that the cache holds in all tiers. Costs as much as they are large.
  void CheckTiers(const std::vector<SimWorker>& workers);
  // When the last closes are through and nothing is open.
  void CheckIdle(const coordinator::Ledger& ledger, const std::vector<SimWorker>& workers);

  size_t open_requests() const { return lives_.size(); }
  // The first thing that was wrong; empty if nothing was.
  const std::string& violation() const { return violation_; }
  void Violate(std::string what);
  const Tally& tally() const { return tally_; }

 private:
  // A request that was accepted and has not ended, or whose place is not closed yet.
  struct Life {
    Life(const HashModel& model, uint64_t id, coordinator::Request request);
    uint32_t known() { return alone.prompt_tokens() + told; }  // committed tokens
    bool over() const { return cancelled || truncated.has_value() || failing || ends_at_due; }
    bool caches() const { return request.has_keys() && !request.prompt_logprobs; }

    const uint64_t id;
    LoneRun alone;
    const coordinator::Request request;  // without the prompt
    std::vector<UnitKey> names;          // of its units, as far as somebody has said them
    uint32_t told = 0;
    uint32_t due = 0;  // tokens that it should have been told by now
    bool ends_at_due = false;
    uint32_t prompt_logprobs_told = 0;
    TimeUs last_token = 0;
    bool admitted = false;
    bool cancelled = false;
    bool paused = false;
    bool prompt_counted = false;
    std::optional<uint32_t> truncated;
    std::optional<coordinator::FinishReason> ending;  // what the last token means
    bool failing = false;                             // its next token is none
    int slot = -1;
    uint32_t absorbed_before = 0;  // a preemption
    uint32_t text_tokens = 0;      // once it has ended: its final text, prompt and answer
  };
  // What a page or a snapshot holds: the last of a text's first so many tokens, or the state after
  // them. Others may have it unless that text may still be cut before its end.
  struct Content {
    UnitKey domain;
    uint32_t tokens = 0;  // 0 = nothing that anybody may have
    uint64_t state = 0;
    uint64_t entries = 0;    // of the last unit
    UnitKey name;            // of that, when it has one
    uint64_t pending = 0;    // the request whose answer this is and which has not ended; 0 = final
    bool of_answer = false;  // this and the next two: for the tally
    bool restored = false;
    bool adopted = false;

    bool IsText(const Content& other) const {
      return domain == other.domain && tokens == other.tokens && state == other.state;
    }
  };
  // The objects of a tier, by place.
  struct TierContent {
    std::vector<Content> pages;
    std::vector<Content> snapshots;
  };
  struct CopyInFlight {
    TierCopy copy;
    Content content;
    coordinator::CopyOutcome worst = coordinator::CopyOutcome::kDone;
  };
  // A snapshot that a step in flight takes.
  struct Export {
    uint32_t snapshot = 0;
    uint32_t tokens = 0;
  };
  // What a step in flight does with a sequence.
  struct Row {
    uint64_t step = 0;
    uint32_t tokens = 0;  // 0: no row, a commit alone
    bool samples = false;
    bool verifies = false;
    uint32_t chain = 0;
    std::vector<Export> inner;  // before the end of a prompt's row
    std::optional<Export> exported;
  };
  // A step that is planned and not applied.
  struct Step {
    uint64_t id = 0;
    std::vector<std::optional<uint64_t>> hashes;  // answered, by rank
    std::vector<coordinator::RowOutcome> rows;    // of rank 0
  };
  // A slot. It stays with its sequence until the close, the life may end before.
  struct Place {
    uint64_t uid = 0;  // 0 = free
    Life* life = nullptr;
    std::unique_ptr<Life> ended;  // the life, when it has
    std::vector<uint32_t> pages;
    uint32_t absorbed = 0;
    uint32_t committed = 0;  // of these, in the live state
    uint32_t drafts = 0;     // made for the next row
    bool decodes = false;
    uint32_t idle_plans = 0;  // with rows of other prompts, but none of this one
    std::vector<Row> rows;    // of the steps in flight, oldest first
    bool commits = false;     // in the plan that is looked at

    // The row behind which a plan is made.
    const Row* Ahead(uint64_t plan) const {
      for (auto row = rows.rbegin(); row != rows.rend(); ++row) {
        if (row->step != plan && row->tokens != 0) return &*row;
      }
      return nullptr;
    }
    // What is known of it for a plan behind that row: where it stands at most, how many tokens are
    // committed then at least, and whether it decodes.
    uint32_t AbsorbedBehind(const Row* ahead) const {
      return absorbed + (ahead != nullptr ? ahead->tokens : 0);
    }
    bool DecodesBehind(const Row* ahead) const {
      return decodes || (ahead != nullptr && ahead->samples);
    }
  };

  uint64_t FirstOfAll() const;
  void OnClose(uint64_t uid, uint64_t first);
  void OnOpen(const coordinator::SequenceOpen& open);
  void OnResume(const coordinator::Resume& resume, Place& place);
  void OnCommit(const coordinator::Commit& commit);
  bool MayExport(uint32_t snapshot, uint32_t tokens, const Place& place);
  void OnExport(uint32_t snapshot, uint32_t tokens, Place& place);
  void OnRow(const coordinator::PlanRow& row);
  std::string RowError(const coordinator::PlanRow& row, Place& place);
  std::string RowTokensError(const coordinator::PlanRow& row, Place& place);
  std::string DraftsError(const coordinator::PlanRow& row, Place& place);
  bool Holds(const Content& content, Life& life, uint32_t tokens) const;
  Content ContentOf(Life& life, uint32_t tokens) const;
  Row& RowOfPlan(Place& place);
  void ApplyRow(Place& place, const Row& row, const Step& step);
  void ApplyTokens(Place& place, Life& life, const Row& row, const Step& step);
  bool MayRest(const Place& place) const;
  // With a step before the plan that is looked at: they may hold the pages that it lacks.
  bool CopiesRun() const { return copies_step_ != 0 && copies_step_ != plan_; }
  void FillPages(Place& place, Life& life, uint32_t from);
  void Settle(uint64_t life, uint32_t text_tokens);
  void TakePages(const coordinator::PlanRow& row, Place& place);
  void CheckProgress(bool has_prompt_rows);

  void OnCopies(const coordinator::StepPlan& plan);
  void OnComparison(const TierCopy& copy);
  std::string CopyError(const TierCopy& copy) const;
  std::string OriginError(const TierCopy& copy, const Content& content) const;
  bool IsCopied(TierCopy::Kind kind, uint32_t device_place) const;
  void ApplyCopies();
  std::vector<Content>* ContentsOf(coordinator::CacheTier tier, TierCopy::Kind kind) {
    return const_cast<std::vector<Content>*>(std::as_const(*this).ContentsOf(tier, kind));
  }
  // Null: no such tier.
  const std::vector<Content>* ContentsOf(coordinator::CacheTier tier, TierCopy::Kind kind) const;
  void CheckRestores(const coordinator::StepPlan& plan);
  void CheckArrived(const std::vector<SimWorker>& workers);
  void CheckDevice(const SimWorker& worker, size_t rank, TierCopy::Kind kind, uint32_t place);
  void CheckLower(const SimTier& held, size_t rank, const char* tier);
  void CheckTierLedger(const char* tier, const coordinator::TierLedger& says,
                       const coordinator::TierLedger& books, const TierContent& content);

  void OnTokens(const coordinator::Output& output, Life& life, TimeUs now);
  void OnEnd(const coordinator::Output& output, Life& life, TimeUs now);
  void OnFinished(const coordinator::Output& output, Life& life);
  std::optional<coordinator::FinishReason> Ending(Life& life, int32_t token, uint32_t told) const;
  void CheckPools(const coordinator::Ledger& ledger);

  Place* FindPlace(uint64_t uid);

  const HashModel model_;
  coordinator::CoreConfig config_;
  uint32_t ranks_ = 0;
  bool saving_ = false;  // the pages of somebody who has lost its place, perhaps
  std::map<uint64_t, std::unique_ptr<Life>> lives_;  // by request
  std::vector<Place> places_;                        // by slot
  std::vector<uint32_t> page_users_;                 // places that have it
  TierContent device_;
  TierContent host_;
  TierContent disk_;
  // What each name was first given to, in all engines of the run.
  absl::flat_hash_map<UnitKey, Content> named_;
  std::vector<CopyInFlight> copies_;
  uint32_t restore_only_steps_ = 0;     // in a row, while somebody waits
  std::vector<uint32_t> resumed_from_;  // snapshots, in the plan that is looked at
  uint32_t decode_only_steps_ = 0;      // in a row, while an admitted prompt waits
  uint64_t last_uid_ = 0;
  uint64_t last_epoch_ = 0;
  uint64_t plan_ = 0;           // the last step that was planned
  std::deque<Step> in_flight_;  // oldest first
  uint64_t copies_step_ = 0;    // in flight, with copies_; 0 = none
  std::string engine_end_;
  coordinator::Ledger books_;  // of this engine: what its ledger should say
  Tally tally_;
  std::string violation_;
};

}  // namespace quartet::simulation

#endif  // QUARTET_SERVICES_COORDINATOR_SIMULATION_AUDITOR_H_
