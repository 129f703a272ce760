#include <algorithm>
#include <cassert>
#include <utility>

#include "services/coordinator/core/core.h"
#include "services/coordinator/core/plan_hash.h"

// The planning half of the core: who gets a row in the next step. Prompts are in plan_prompts.cc.

namespace quartet::coordinator {

uint32_t Core::PagesFor(uint64_t tokens) const {
  return static_cast<uint32_t>((tokens + config_.page_tokens - 1) / config_.page_tokens);
}

std::optional<StepPlan> Core::PlanStep(TimeUs now) {
  if (!can_plan()) return std::nullopt;
  StepPlan plan;
  plan.epoch = config_.epoch;
  plan.deadline_ms = config_.step_deadline_ms;

  budget_ = config_.max_num_batched_tokens;
  inner_exports_ = kMaxInnerExports;
  draft_.clear();
  preempted_ = false;
  CloseTurns(now);
  // What was brought back for somebody who has left.
  if (tiers_.has_value() && queue_.empty() && !tiers_->restoring()) tiers_->ReleaseRestored();
  MakeWay(now);
  DraftDecodeRows(now);
  DraftPromptRows(now, plan.opens);
  PlanCopies(plan, now);
  const auto n_tier_copies = static_cast<uint32_t>(plan.copies.size());
  PlanComparisons(plan);
  AddDrafts();

  for (const auto& closing : closing_) {
    if (!closing->last_snapshot.has_value() || closing->commit_step != 0) continue;
    closing->commit_step = next_step_;
    plan.commits.push_back(
        {closing->seq_uid, closing->last_snapshot->offset, closing->last_snapshot->snapshot});
  }
  plan.closes = std::exchange(closes_, {});
  if (draft_.empty() && plan.commits.empty() && plan.copies.empty()) {
    if (plan.closes.empty()) return std::nullopt;
    return plan;
  }
  in_flight_.push_back(BeginStep(plan, now));
  in_flight_.back().n_tier_copies = n_tier_copies;
  plan.plan_hash = PlanHash(plan);
  assert(CheckInvariants().empty());
  return plan;
}

Core::InFlightStep Core::BeginStep(StepPlan& plan, TimeUs now) {
  plan.step_id = next_step_++;
  clock_ = now;
  InFlightStep step{.id = plan.step_id, .since = now, .has_copies = !plan.copies.empty()};
  for (const DraftRow& draft : draft_) {
    if (draft.sequence->prefills()) {
      step.shape.AddPrefill(draft.n_tokens, draft.sequence->next_position());
    } else {
      step.shape.AddDecode(draft.n_tokens, draft.sequence->next_position());
    }
    plan.rows.push_back(MakeRow(draft, step, plan.commits));
  }
  return step;
}

bool Core::CopiesInFlight() const {
  return std::ranges::any_of(in_flight_, &InFlightStep::has_copies);
}

// What copies hold that are in flight, or that save a sequence's state, can be had when they are
// through.
bool Core::PagesAreComing() const {
  return CopiesInFlight() || (tiers_.has_value() && tiers_->saving());
}

void Core::DraftDecodeRows(TimeUs now) {
  uint64_t last = 0;
  while (true) {
    // Growing may take away sequences before and behind this one, and this one.
    const auto next = std::ranges::upper_bound(running_, last, {}, &Sequence::id);
    if (next == running_.end()) return;
    Sequence& sequence = **next;
    last = sequence.id;
    if (!sequence.decodes()) continue;
    // The row in flight says its last token, or may have filled the context.
    if (sequence.tokens_left(config_.max_model_len) == 0 ||
        sequence.next_position() >= config_.max_model_len) {
      continue;
    }
    if (sequence.awaits_mask()) {
      // Once for each row, however often a plan is tried.
      if (std::exchange(sequence.mask_awaits, sequence.ahead.step_id) != sequence.ahead.step_id) {
        ++counts_.rows_awaiting_mask;
      }
      continue;
    }
    const auto first_new_page = static_cast<uint32_t>(sequence.pages.size());
    if (!GrowPages(sequence, sequence.next_position() + 1, now)) continue;
    AddDraft(sequence, 1, first_new_page);
  }
}

// False if it has to do without for now, or has lost its place itself.
bool Core::GrowPages(Sequence& sequence, uint64_t tokens, TimeUs now) {
  const uint32_t wanted = PagesFor(tokens);
  const size_t before = sequence.pages.size();
  while (sequence.pages.size() < wanted) {
    if (std::optional<uint32_t> page = TakePage()) {
      sequence.pages.push_back(*page);
      continue;
    }
    // Who runs comes before what may be used again.
    if (tiers_.has_value() && !CopiesInFlight() && (tiers_->GiveUp() || tiers_->EndSaves())) {
      continue;
    }
    if (!closing_.empty()) {  // they have all that they need but a snapshot
      DropTurns();
      continue;
    }
    if (PagesAreComing()) {
      for (; sequence.pages.size() > before; sequence.pages.pop_back()) {
        pages_.Return(sequence.pages.back());
      }
      return false;
    }
    // A sequence that runs alone always fits, since the pool holds one full context, and with it
    // the duplicates that it may have.
    assert(running_.size() > 1);
    Sequence& victim = Victim();
    Preempt(victim, now);
    if (&victim == &sequence) return false;
  }
  return true;
}

// Of the lowest class the youngest. That is not the oldest of the highest class, which is never
// asked, as long as there is anybody else.
Sequence& Core::Victim() const {
  Sequence* victim = running_.front();
  for (Sequence* other : running_) {
    if (other->request.request_class >= victim->request.request_class) victim = other;
  }
  return *victim;
}

void Core::Preempt(Sequence& sequence, TimeUs now) {
  auto row = std::find_if(draft_.begin(), draft_.end(),
                          [&](const DraftRow& draft) { return draft.sequence == &sequence; });
  if (row != draft_.end()) {
    budget_ += row->n_tokens;
    draft_.erase(row);
  }
  sequence.absorbed_before = sequence.absorbed;
  sequence.preempted = true;
  Park(sequence, now);
  ReleasePlace(sequence);
  sequence.absorbed = 0;
  sequence.committed = 0;
  sequence.drafts = 0;
  RenameForGeneration(sequence);
  queue_.PushPreempted(PromptOf(sequence));
  ++counts_.preemptions;
  preempted_ = true;
}

void Core::AddDraft(Sequence& sequence, uint32_t n_tokens, uint32_t first_new_page) {
  assert(n_tokens > 0 && n_tokens <= budget_);
  budget_ -= n_tokens;
  draft_.push_back({.sequence = &sequence, .n_tokens = n_tokens, .first_new_page = first_new_page});
}

// Of the plan in the making.
uint32_t Core::DraftedTokens(const Sequence& sequence) const {
  auto row = std::ranges::find(draft_, &sequence, &DraftRow::sequence);
  return row == draft_.end() ? 0 : row->n_tokens;
}

PlanRow Core::MakeRow(const DraftRow& draft, InFlightStep& step, std::vector<Commit>& commits) {
  Sequence& sequence = *draft.sequence;
  PlanRow row;
  row.seq_uid = sequence.seq_uid;
  row.slot = sequence.slot;
  row.position = sequence.next_position();
  row.n_tokens = draft.n_tokens;
  row.new_pages.assign(sequence.pages.begin() + draft.first_new_page, sequence.pages.end());
  const uint32_t end = row.position + draft.n_tokens;
  row.sample = end >= sequence.tokens.size();
  if (row.sample && sequence.request.constrained) row.masked_id = sequence.id;
  row.want_logprob = row.sample && sequence.request.logprobs;
  row.top_logprobs = row.want_logprob ? sequence.request.top_logprobs : 0;
  row.draft = config_.num_speculative_tokens > 0;
  row.draft_chain = draft.chain;
  uint32_t n_prompt_targets = 0;
  if (!sequence.prefills()) {
    // Where a row stands that is behind a window in flight is known to the workers alone, so what
    // it leaves in the live state is left to its successor, as with a window.
    const bool window = draft.drafts > 0 || !sequence.next_position_is_known();
    row.kind = window ? PlanRow::Kind::kVerify : PlanRow::Kind::kDecode;
    row.from_device = true;
    row.draft_tokens = draft.drafts;
  } else {
    row.kind = PlanRow::Kind::kPrefill;
    row.tokens.assign(sequence.tokens.begin() + row.position, sequence.tokens.begin() + end);
    if (row.draft && !row.sample) row.mtp_next = sequence.tokens[end];
    // The request is told about targets in the prompt that it was not told about before. A row has
    // none or one for each token; behind the last known token any id does.
    const uint32_t target_end = std::min(end, sequence.prompt_tokens - 1);
    if (sequence.request.prompt_logprobs && target_end > sequence.prompt_logprobs_sent &&
        target_end > row.position) {
      n_prompt_targets = target_end - row.position;
      row.target_top_logprobs = sequence.request.prompt_top_logprobs;
      for (uint32_t at = row.position + 1; at <= end; ++at) {
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
                        .top = row.top_logprobs,
                        .target_top = row.target_top_logprobs,
                        .chain = row.draft_chain,
                        .inner = {},
                        .exported = std::nullopt};
  AddExports(sequence, row, in_flight, commits);
  step.rows.push_back(std::move(in_flight));
  sequence.ahead = {.step_id = step.id,
                    .n_tokens = row.n_tokens,
                    .window = row.kind == PlanRow::Kind::kVerify,
                    .sample = row.sample,
                    .chain = row.draft_chain};
  return row;
}

}  // namespace quartet::coordinator
