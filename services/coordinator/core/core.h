#ifndef QUARTET_SERVICES_COORDINATOR_CORE_CORE_H_
#define QUARTET_SERVICES_COORDINATOR_CORE_CORE_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "services/coordinator/core/fair_queue.h"
#include "services/coordinator/core/free_pool.h"
#include "services/coordinator/core/prefill_pacer.h"
#include "services/coordinator/core/prefix_index.h"
#include "services/coordinator/core/sequence.h"
#include "services/coordinator/core/snapshot_plan.h"
#include "services/coordinator/core/speculation.h"
#include "services/coordinator/core/tiers.h"
#include "services/coordinator/core/types.h"

namespace quartet::coordinator {

// Decides what the workers do next and what each request is told. Pure: it has no clock, thread or
// socket, and its memory is bounded by the limits of its configuration. Time comes in as an
// argument. Not thread safe: one thread owns it.
//
//   QUEUED -> PREFILL -> DECODE -> FINISHED | CANCELLED | FAILED | EXPIRED
//     ^----------+---------+ preempted, goes on later
//
// Every accepted request gets exactly one terminal output, and its slot and pages are free again in
// that same transition, or, if its answer goes into the prefix cache, with one of the next two
// plans. They are given out again by a later plan only, which the workers run after everything that
// may still touch them.
//
// With snapshots there is a prefix cache (prefix_index.h): a prompt begins behind the longest
// cached prefix that it shares; what it absorbs of full units goes into the cache, with snapshots
// where SnapshotPolicy wants them, also inside of chunks, and when it has ended its answer as well;
// and the cache gives up pages and snapshots when sequences need them. A unit that two sequences
// absorb at the same time is cached once, by the first of them; the other keeps its own page of it
// until it ends. That is rare: who begins with what a running prompt is just computing waits for
// it.
//
// With num_speculative_tokens the workers draft tokens behind the one that they drew, and the next
// step verifies them: its row says one token more than drafts are accepted. Drafts take what budget
// and pages the others leave.
//
// With host pages the cache has a tier below the device (tiers.h): what is published moves there in
// the background, and a queued prompt that begins with something that only this tier holds waits
// for it to come back, which takes a step or a few.
//
// Each step gives every decoding sequence its row first; what is left of the token budget and of
// the time (prefill_pacer.h) goes to chunks of prompts in fair order (fair_queue.h), and a queued
// request is admitted when it is its turn and there is a slot, room for all of its tokens, and
// budget for its first chunk. While it waits for pages, others pass it only if they are through
// before it could have them.
//
// When a sequence needs a page and none is free, or somebody of a higher class waits for a place,
// another gives up its own: of the lowest class the youngest, and never the oldest of the highest.
// What it has absorbed goes into the prefix cache and from there, before anybody may have its
// pages, to the tier below; later it begins behind that, as any prompt does, and computes the rest,
// less than two units, from its tokens. Without a cache, or where the tier has no room, it computes
// all of it again. Nothing of it is given out twice, and as the draw of a token depends on seed,
// choice and position alone, its text does not change.
class Core {
 public:
  // ConfigError(config) must be empty.
  explicit Core(const CoreConfig& config);

  SubmitOutcome OnSubmit(Request request, TimeUs now);

  // What the disk tier holds from the life before, the same on all ranks. Before the first request.
  // Says how many objects can be found again.
  uint32_t AdoptCached(std::vector<CacheEntry> entries);

  // Nothing happens if the request has ended already.
  void OnCancel(uint64_t id);

  enum class TruncateOutcome {
    kDone,
    kEnded,   // the request had its terminal output before
    kBeyond,  // more tokens than were sampled: nothing happened
  };
  // Of the sampled tokens the first n_tokens count; the request is finished.
  TruncateOutcome OnTruncate(uint64_t id, uint32_t n_tokens);

  // The names of the next units that the request's prompt and the tokens that it was told fill.
  // Right after those tokens were taken out, also if the request ended with them. Nothing happens
  // if it is not known any more.
  void OnUnitKeys(uint64_t id, std::span<const UnitKey> keys);

  // The client reads again, or does not: then its sequence keeps what it has but takes no part in
  // steps behind its first token. Nothing happens if the request has ended already.
  void OnPause(uint64_t id, bool paused);

  // Ends requests whose deadline has passed.
  void ExpireDeadlines(TimeUs now);
  // The next deadline of all open requests.
  std::optional<TimeUs> NextDeadline() const;

  // The next step, or closes alone (see StepPlan), or nothing to do. Nothing while the workers hold
  // as many steps as they may.
  std::optional<StepPlan> PlanStep(TimeUs now);

  // The agreed result of the oldest step in flight. False, and nothing happens, for any other epoch
  // or step.
  bool OnStepResult(const StepOutcome& outcome, TimeUs now);

  // The workers are lost: every open request fails with this message, the steps in flight are
  // forgotten and nothing is admitted any more.
  void FailAll(const std::string& message);

  // From here on OnSubmit answers kUnavailable. What is open goes on.
  void StopAdmissions() { admitting_ = false; }

  // What happened since the last call, in order.
  std::vector<Output> TakeOutputs();

  Ledger GetLedger() const;
  uint32_t steps_in_flight() const { return static_cast<uint32_t>(in_flight_.size()); }
  bool can_plan() const { return steps_in_flight() < config_.steps_in_flight; }
  const CoreConfig& config() const { return config_; }

  // Says what does not add up; empty if all is well. Part of every step (core_check.cc): linear in
  // the pages of open requests.
  std::string CheckInvariants() const;
  // The same for the index of the prefix cache, for tests: linear in all that is cached.
  std::string CheckIndex() const;

 private:
  struct InFlightRow {
    uint64_t id = 0;
    uint64_t seq_uid = 0;
    PlanRow::Kind kind = PlanRow::Kind::kPrefill;
    uint32_t n_tokens = 0;
    bool sample = false;
    uint32_t position = 0;
    uint32_t n_targets = 0;                    // log-probabilities that were asked for
    uint32_t n_prompt_targets = 0;             // of those, the first ones, which the request gets
    uint32_t top = 0;                          // likeliest ids beside each drawn token
    uint32_t target_top = 0;                   // and beside each target
    uint32_t chain = 0;                        // drafts for the next step
    std::vector<FinishedSnapshot> inner;       // of a prompt, before the row's end
    std::optional<FinishedSnapshot> exported;  // as these, belongs to the row until it is published
    bool exports_answer = false;               // it is kept with the answer instead

    uint32_t n_drafts() const { return kind == PlanRow::Kind::kVerify ? n_tokens - 1 : 0; }
  };
  struct InFlightStep {
    uint64_t id = 0;
    TimeUs since = 0;
    StepShape shape;
    bool has_copies = false;
    uint32_t n_tier_copies = 0;  // of them; comparisons are the others
    std::vector<InFlightRow> rows;
  };
  // A state that was computed again and waits to be compared with a cached one.
  struct Comparison {
    uint32_t computed = 0;  // a snapshot
    UnitKey first_unit;     // of the path
    PrefixLease suspect;    // holds the cached one
    bool in_flight = false;
  };
  // By CheckInvariants.
  struct PlacesSeen {
    std::vector<bool> pages;
    std::vector<bool> slots;
    uint32_t n_pages = 0;  // set in pages; counting them would walk the whole pool
  };
  // A row of the plan in the making.
  struct DraftRow {
    Sequence* sequence = nullptr;
    uint32_t n_tokens = 0;
    uint32_t first_new_page = 0;  // index into the sequence's page table
    uint32_t drafts = 0;          // of n_tokens
    uint32_t chain = 0;           // drafts for the next step
  };

  std::string RequestError(const Request& request) const;
  uint32_t PagesFor(uint64_t tokens) const;
  uint32_t ChunkSize(uint32_t remaining, uint32_t position) const;
  uint32_t CutChunk(const Sequence& sequence, uint32_t chunk);

  // Planning.
  void DraftDecodeRows(TimeUs now);
  void DraftPromptRows(TimeUs now, std::vector<SequenceOpen>& opens);
  const FairQueue::Prompt* NextPrompt();
  uint32_t DraftChunk(Sequence& sequence, TimeUs now);
  Sequence* Blocked();
  uint64_t PagesToAdmit(const Sequence& sequence) const;
  uint32_t Admit(Sequence& sequence, TimeUs now, std::vector<SequenceOpen>& opens);
  bool GrowPages(Sequence& sequence, uint64_t tokens, TimeUs now);
  void AddDraft(Sequence& sequence, uint32_t n_tokens, uint32_t first_new_page);
  uint32_t DraftedTokens(const Sequence& sequence) const;
  void AddDrafts();
  uint32_t GrowPagesIfFree(Sequence& sequence, uint64_t tokens);
  InFlightStep BeginStep(StepPlan& plan, TimeUs now);
  PlanRow MakeRow(const DraftRow& draft, InFlightStep& step, std::vector<Commit>& commits);
  bool CopiesInFlight() const;
  bool PagesAreComing() const;

  // Admission and what is expected of the future (core_admission.cc).
  StepShape DecodeShape() const;
  FairQueue::Prompt PromptOf(const Sequence& sequence) const;
  double PrefillUs(uint64_t work, uint64_t prompts) const;
  double WaitUs(const FairQueue::Ahead& ahead) const;
  double AnswerUs(const Sequence& sequence, double token_us) const;
  double ServiceUs(const Sequence& sequence) const;
  double UsUntilFree(uint64_t pages, const Sequence& sequence) const;
  uint32_t RetryAfterMs(const std::string& request_id) const;
  void NoteService(const Sequence& sequence);
  std::string TooLate(const Request& request, const FairQueue::Ahead& ahead,
                      double first_token_us) const;
  SubmitOutcome Refuse(SubmitOutcome::Kind kind, const std::string& request_id,
                       std::string message) const;
  uint32_t DeadlineMs(const Sequence& sequence) const;

  // The prefix cache.
  bool UsesCache(const Sequence& sequence) const;
  PrefixPath PathOf(const Sequence& sequence) const;
  std::optional<Resume> BeginBehindPrefix(Sequence& sequence, uint64_t pages, TimeUs now);
  bool RoomFor(uint64_t pages) const;
  bool MakeRoomFor(uint64_t pages, Sequence& sequence, TimeUs now, std::optional<Resume>& resume);
  std::optional<uint32_t> TakePage();
  void TakeExports(const Sequence& sequence, uint32_t end, InFlightRow& row);
  void Publish(Sequence& sequence, const InFlightRow& row, TimeUs now);
  void PublishUnits(Sequence& sequence, uint32_t final_tokens);
  bool HasRoomForDuplicate(const Sequence& sequence) const;
  void PublishOfPrompt(Sequence& sequence, const FinishedSnapshot& finished, TimeUs now);
  void ReturnInner(const InFlightRow& row);
  void ReturnExport(const InFlightRow& row);
  std::string CheckCache(uint32_t private_pages) const;
  uint32_t SharedWith(const Sequence& sequence, const Sequence& other) const;
  bool AwaitsTwin(const Sequence& sequence);
  bool AwaitsRestore(Sequence& sequence, uint64_t pages, TimeUs now);
  void WriteThrough(const Sequence& sequence, uint32_t offset);
  void PlanCopies(StepPlan& plan, TimeUs now);

  // Doubts about it (core_repetition.cc).
  void LookForLoop(Sequence& sequence, uint32_t grown);
  bool BeginsAfresh(Sequence& sequence, uint64_t pages);
  void CompareWithSuspect(Sequence& sequence, const FinishedSnapshot& computed);
  void PlanComparisons(StepPlan& plan);
  void ApplyComparisons(std::span<const CopyOutcome> outcomes);
  void Condemn(const UnitKey& first_unit);
  void RenameForGeneration(Sequence& sequence) const;

  // Answers in it.
  std::optional<uint32_t> TakeSnapshot();
  std::optional<FinishedSnapshot> TakeAnswerExport(const Sequence& sequence, uint32_t before,
                                                   uint32_t after);
  void AddExports(const Sequence& sequence, PlanRow& row, InFlightRow& in_flight,
                  std::vector<Commit>& commits);
  void KeepAnswerSnapshot(Sequence& sequence, const FinishedSnapshot& taken);
  void BeginClosing(std::unique_ptr<Sequence> sequence, uint32_t text_tokens);
  void CloseTurns(TimeUs now);
  void PublishAnswerSnapshots(Sequence& sequence, uint32_t published, TimeUs now);
  void FinishTurns(uint64_t step_id, TimeUs now);
  void EndTurn(Sequence& sequence, uint32_t end);
  void DropTurns();

  // Transitions.
  Sequence& Victim() const;
  void Preempt(Sequence& sequence, TimeUs now);
  void Park(Sequence& sequence, TimeUs now);
  void MakeWay(TimeUs now);
  void ReleasePlace(Sequence& sequence);
  void Finish(Sequence& sequence, FinishReason reason, uint32_t completion_tokens, int32_t stop_id);
  void Fail(Sequence& sequence, const std::string& message);
  void End(Sequence& sequence, Output output, uint32_t text_tokens);

  std::string RowError(const Sequence& sequence, const InFlightRow& row,
                       const RowOutcome* outcome) const;
  void ObserveStep(const InFlightStep& step, TimeUs now);
  void ApplyRow(uint64_t step_id, InFlightRow& row, const RowOutcome* outcome, TimeUs now);
  void ApplyVoidRow(uint64_t step_id, const InFlightRow& row);
  void CountDrafts(Sequence& sequence, uint32_t drafted, uint32_t accepted, uint32_t told);
  std::string CheckPlace(const Sequence& sequence, PlacesSeen& seen) const;
  std::optional<FinishReason> StopReason(const Sequence& sequence, int32_t token) const;

  const CoreConfig config_;
  bool admitting_ = true;
  std::vector<Sequence*> running_;  // in order of arrival; the last one is the youngest
  FairQueue queue_;
  PrefillPacer pacer_;
  FreePool slots_;
  FreePool pages_;
  FreePool snapshots_;
  std::optional<PrefixIndex> index_;
  std::optional<CacheTiers> tiers_;
  absl::flat_hash_map<uint64_t, std::unique_ptr<Sequence>> sequences_;  // their leases need index_
  std::vector<std::unique_ptr<Sequence>> closing_;                      // theirs too
  std::vector<Comparison> comparisons_;                                 // and theirs
  std::deque<UnitKey> suspects_;  // last units of prefixes behind which an answer ended in a loop
  uint64_t cache_generation_ = 0;

  uint64_t next_id_ = 1;
  uint64_t next_seq_uid_ = 1;
  uint64_t next_step_ = 1;
  std::deque<InFlightStep> in_flight_;  // oldest first
  TimeUs answered_ = 0;                 // when the last result came in
  DecodeCost decode_cost_;

  std::vector<DraftRow> draft_;
  uint32_t budget_ = 0;
  uint32_t inner_exports_ = 0;   // that its rows may still take
  bool preempted_ = false;       // in the plan in the making
  uint32_t open_prompts_ = 0;    // admitted, and not at their end with the plan in the making
  uint64_t blocked_ = 0;         // the request that waits for pages, if it still does (Blocked)
  double blocked_until_us_ = 0;  // as of the plan in the making: when it would have them

  TimeUs clock_ = 0;       // the last time that came in
  double service_us_ = 0;  // mean time from admission to the last token, of late

  std::vector<uint64_t> closes_;
  std::vector<Output> outputs_;
  Ledger counts_;  // its counters only; the gauges are read from the tables
};

}  // namespace quartet::coordinator

#endif  // QUARTET_SERVICES_COORDINATOR_CORE_CORE_H_
