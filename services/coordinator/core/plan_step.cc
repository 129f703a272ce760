#include <algorithm>
#include <cassert>
#include <utility>

#include "services/coordinator/core/core.h"
#include "services/coordinator/core/plan_hash.h"

// The planning half of the core: who gets a row in the next step.

namespace quartet::coordinator {

uint32_t Core::PagesFor(uint64_t tokens) const {
  return static_cast<uint32_t>((tokens + config_.page_tokens - 1) / config_.page_tokens);
}

uint32_t Core::ChunkSize(uint32_t remaining, uint32_t budget) const {
  uint32_t limit = budget;
  if (config_.prefill_chunk != 0) limit = std::min(limit, config_.prefill_chunk);
  if (remaining <= limit) return remaining;
  return limit / kChunkMultiple * kChunkMultiple;
}

// How much of the chunk of so many tokens that comes next is computed now: workers export at the
// end of a row, so it ends where a snapshot is due.
uint32_t Core::CutChunk(const Sequence& sequence, uint32_t chunk) const {
  if (!sequence.publishes) return chunk;
  const std::vector<SnapshotMark> due = PrefillSnapshots(
      config_.snapshot_policy, sequence.marks, sequence.absorbed, sequence.absorbed + chunk);
  return due.empty() ? chunk : due.front().offset - sequence.absorbed;
}

std::optional<StepPlan> Core::PlanStep(TimeUs now) {
  if (in_flight_step_ != 0) return std::nullopt;
  StepPlan plan;
  plan.epoch = config_.epoch;
  plan.deadline_ms = config_.step_deadline_ms;

  budget_ = config_.max_num_batched_tokens;
  draft_.clear();
  preempted_ = false;
  CloseTurns(now);
  DraftDecodeRows();
  DraftPrefillRows();
  AdmitQueued(now, plan.opens);
  AddDrafts();

  for (const auto& closing : closing_) {
    plan.commits.push_back(
        {closing->seq_uid, closing->last_snapshot->offset, closing->last_snapshot->snapshot});
  }
  plan.closes = std::exchange(closes_, {});
  if (draft_.empty() && plan.commits.empty()) {
    if (plan.closes.empty()) return std::nullopt;
    return plan;
  }
  plan.step_id = next_step_++;
  in_flight_step_ = plan.step_id;
  step_planned_ = now;
  in_flight_.clear();
  for (const DraftRow& draft : draft_) plan.rows.push_back(MakeRow(draft, plan.commits));
  plan.plan_hash = PlanHash(plan);
  assert(CheckInvariants().empty());
  return plan;
}

void Core::DraftDecodeRows() {
  // Growing may remove sequences from the end of the list, never the ones before this one.
  for (size_t i = 0; i < running_.size(); ++i) {
    Sequence& sequence = *running_[i];
    if (sequence.state != SequenceState::kDecode) continue;
    const auto first_new_page = static_cast<uint32_t>(sequence.pages.size());
    if (!GrowPages(sequence, sequence.absorbed + 1)) break;  // it was the youngest itself
    AddDraft(sequence, 1, 1, first_new_page);
  }
}

void Core::DraftPrefillRows() {
  // Oldest first. Nobody in the middle of a prompt goes without: a prompt is admitted only with
  // budget for a chunk beside a full one of everybody before it, and a prompt that is done needs
  // less from then on. Growing may remove sequences from the end of the list.
  for (size_t i = 0; i < running_.size(); ++i) {
    Sequence& sequence = *running_[i];
    if (sequence.state != SequenceState::kPrefill) continue;
    const auto remaining = static_cast<uint32_t>(sequence.tokens.size()) - sequence.absorbed;
    const uint32_t whole = ChunkSize(remaining, budget_);
    if (whole == 0) continue;
    const uint32_t chunk = CutChunk(sequence, whole);
    const auto first_new_page = static_cast<uint32_t>(sequence.pages.size());
    if (!GrowPages(sequence, sequence.absorbed + chunk)) break;  // it was the youngest itself
    AddDraft(sequence, chunk, whole, first_new_page);
  }
}

void Core::AdmitQueued(TimeUs now, std::vector<SequenceOpen>& opens) {
  if (preempted_) return;  // pages are short: let the older ones use what was freed for them
  while (!queue_.empty() && slots_.free() > 0) {
    Sequence& sequence = *sequences_.at(queue_.Front().id);
    // Whatever part of it is cached.
    if (ChunkSize(static_cast<uint32_t>(sequence.tokens.size()), budget_) == 0) return;
    // All of its tokens and the first sampled one, beside what running prompts will still take and
    // a page of growth for everybody: who is admitted is not thrown out again at once.
    uint64_t needed = PagesFor(sequence.tokens.size() + 1);
    for (const Sequence* other : running_) {
      needed += 1;
      if (other->state != SequenceState::kPrefill) continue;
      const uint32_t whole = PagesFor(other->tokens.size() + 1);
      needed += whole - std::min<uint32_t>(whole, static_cast<uint32_t>(other->pages.size()));
    }
    std::optional<Resume> resume;
    if (!MakeRoomFor(needed, sequence, now, resume)) return;
    const auto remaining = static_cast<uint32_t>(sequence.tokens.size()) - sequence.absorbed;
    const uint32_t whole = ChunkSize(remaining, budget_);
    const uint32_t chunk = CutChunk(sequence, whole);

    queue_.PopFront();
    sequence.state = SequenceState::kPrefill;
    sequence.seq_uid = next_seq_uid_++;
    sequence.slot = *slots_.Take();
    running_.insert(
        std::upper_bound(running_.begin(), running_.end(), &sequence,
                         [](const Sequence* a, const Sequence* b) { return a->id < b->id; }),
        &sequence);
    const auto first_new_page = static_cast<uint32_t>(sequence.pages.size());
    const bool grown = GrowPages(sequence, sequence.absorbed + chunk);
    assert(grown);
    (void)grown;
    AddDraft(sequence, chunk, whole, first_new_page);

    SequenceOpen open;
    open.seq_uid = sequence.seq_uid;
    open.slot = sequence.slot;
    open.sampling = sequence.request.sampling;
    open.end_ids = sequence.request.end_ids;
    open.first_padding_id = sequence.request.first_padding_id;
    open.prompt_tokens = sequence.prompt_tokens;
    open.resume = std::move(resume);
    open.acceptance = config_.spec_acceptance;
    opens.push_back(std::move(open));

    if (sequence.admitted_before) continue;
    sequence.admitted_before = true;
    sequence.times.admitted = now;
    sequence.cached_tokens = sequence.absorbed;
    Output output;
    output.id = sequence.id;
    output.kind = Output::Kind::kAdmitted;
    output.cached_tokens = sequence.cached_tokens;
    output.prompt_tokens = sequence.prompt_tokens;
    output.times = sequence.times;
    outputs_.push_back(std::move(output));
  }
}

bool Core::GrowPages(Sequence& sequence, uint64_t tokens) {
  const uint32_t wanted = PagesFor(tokens);
  while (sequence.pages.size() < wanted) {
    if (std::optional<uint32_t> page = TakePage()) {
      sequence.pages.push_back(*page);
      continue;
    }
    if (!closing_.empty()) {  // they have all that they need but a snapshot
      DropTurns();
      continue;
    }
    Sequence& youngest = *running_.back();
    const bool itself = &youngest == &sequence;
    // A sequence that runs alone always fits, since the pool holds one full context, and with it
    // the duplicates that it may have.
    assert(!itself || running_.size() > 1);
    Preempt(youngest);
    if (itself) return false;
  }
  return true;
}

void Core::Preempt(Sequence& sequence) {
  auto row = std::find_if(draft_.begin(), draft_.end(),
                          [&](const DraftRow& draft) { return draft.sequence == &sequence; });
  if (row != draft_.end()) {
    budget_ += row->budget;
    draft_.erase(row);
  }
  ReleasePlace(sequence);
  sequence.absorbed = 0;
  sequence.committed = 0;
  sequence.drafts = 0;
  sequence.preempted = true;
  queue_.PushPreempted({sequence.id, sequence.tokens.size()});
  ++counts_.preemptions;
  preempted_ = true;
}

// A chunk that was cut takes the budget of the whole one all the same: the next step will ask for
// as much, and who was admitted beside it must not go without then.
void Core::AddDraft(Sequence& sequence, uint32_t n_tokens, uint32_t budget,
                    uint32_t first_new_page) {
  assert(n_tokens > 0 && n_tokens <= budget && budget <= budget_);
  budget_ -= budget;
  draft_.push_back({.sequence = &sequence,
                    .n_tokens = n_tokens,
                    .budget = budget,
                    .first_new_page = first_new_page});
}

PlanRow Core::MakeRow(const DraftRow& draft, std::vector<Commit>& commits) {
  Sequence& sequence = *draft.sequence;
  PlanRow row;
  row.seq_uid = sequence.seq_uid;
  row.slot = sequence.slot;
  row.position = sequence.absorbed;
  row.n_tokens = draft.n_tokens;
  row.new_pages.assign(sequence.pages.begin() + draft.first_new_page, sequence.pages.end());
  const uint32_t end = sequence.absorbed + draft.n_tokens;
  row.sample = end >= sequence.tokens.size();
  row.want_logprob = row.sample && sequence.request.logprobs;
  row.draft = config_.num_speculative_tokens > 0;
  row.draft_chain = draft.chain;
  uint32_t n_prompt_targets = 0;
  if (sequence.state == SequenceState::kDecode) {
    row.kind = draft.drafts > 0 ? PlanRow::Kind::kVerify : PlanRow::Kind::kDecode;
    row.from_device = true;
    row.draft_tokens = draft.drafts;
  } else {
    row.kind = PlanRow::Kind::kPrefill;
    row.tokens.assign(sequence.tokens.begin() + sequence.absorbed, sequence.tokens.begin() + end);
    if (row.draft && !row.sample) row.mtp_next = sequence.tokens[end];
    // The request is told about targets in the prompt that it was not told about before. A row has
    // none or one for each token; behind the last known token any id does.
    const uint32_t target_end = std::min(end, sequence.prompt_tokens - 1);
    if (sequence.request.prompt_logprobs && target_end > sequence.prompt_logprobs_sent &&
        target_end > sequence.absorbed) {
      n_prompt_targets = target_end - sequence.absorbed;
      for (uint32_t at = sequence.absorbed + 1; at <= end; ++at) {
        row.logprob_targets.push_back(at < sequence.tokens.size() ? sequence.tokens[at] : 0);
      }
    }
  }
  assert(static_cast<uint64_t>(sequence.pages.size()) * config_.page_tokens >= end);
  InFlightRow in_flight{.id = sequence.id,
                        .seq_uid = row.seq_uid,
                        .kind = row.kind,
                        .n_tokens = row.n_tokens,
                        .sample = row.sample,
                        .position = row.position,
                        .n_targets = static_cast<uint32_t>(row.logprob_targets.size()),
                        .n_prompt_targets = n_prompt_targets,
                        .chain = row.draft_chain,
                        .exported = std::nullopt};
  AddExports(sequence, row, in_flight, commits);
  sequence.last_progress_step = in_flight_step_;
  in_flight_.push_back(std::move(in_flight));
  return row;
}

}  // namespace quartet::coordinator
