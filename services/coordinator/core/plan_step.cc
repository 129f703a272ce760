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
  if (in_flight_step_ != 0) return std::nullopt;
  StepPlan plan;
  plan.epoch = config_.epoch;
  plan.deadline_ms = config_.step_deadline_ms;

  budget_ = config_.max_num_batched_tokens;
  draft_.clear();
  preempted_ = false;
  CloseTurns(now);
  DraftDecodeRows();
  DraftPromptRows(now, plan.opens);
  PlanCopies(plan, now);
  AddDrafts();

  for (const auto& closing : closing_) {
    plan.commits.push_back(
        {closing->seq_uid, closing->last_snapshot->offset, closing->last_snapshot->snapshot});
  }
  plan.closes = std::exchange(closes_, {});
  if (draft_.empty() && plan.commits.empty() && plan.copies.empty()) {
    if (plan.closes.empty()) return std::nullopt;
    return plan;
  }
  plan.step_id = next_step_++;
  in_flight_step_ = plan.step_id;
  in_flight_since_ = clock_ = now;
  in_flight_shape_ = {};
  in_flight_.clear();
  for (const DraftRow& draft : draft_) {
    if (draft.sequence->state == SequenceState::kDecode) {
      in_flight_shape_.AddDecode(draft.n_tokens, draft.sequence->absorbed);
    } else {
      in_flight_shape_.AddPrefill(draft.n_tokens, draft.sequence->absorbed);
    }
    plan.rows.push_back(MakeRow(draft, plan.commits));
  }
  plan.plan_hash = PlanHash(plan);
  assert(CheckInvariants().empty());
  return plan;
}

void Core::DraftDecodeRows() {
  // Growing may remove sequences from the end of the list, never the ones before this one.
  for (size_t i = 0; i < running_.size(); ++i) {
    Sequence& sequence = *running_[i];
    if (!sequence.decodes()) continue;
    const auto first_new_page = static_cast<uint32_t>(sequence.pages.size());
    if (!GrowPages(sequence, sequence.absorbed + 1)) break;  // it was the youngest itself
    AddDraft(sequence, 1, first_new_page);
  }
}

bool Core::GrowPages(Sequence& sequence, uint64_t tokens) {
  const uint32_t wanted = PagesFor(tokens);
  while (sequence.pages.size() < wanted) {
    if (std::optional<uint32_t> page = TakePage()) {
      sequence.pages.push_back(*page);
      continue;
    }
    // Who runs comes before what may be used again.
    if (tiers_.has_value() && tiers_->GiveUp()) continue;
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
    budget_ += row->n_tokens;
    draft_.erase(row);
  }
  ReleasePlace(sequence);
  sequence.absorbed = 0;
  sequence.committed = 0;
  sequence.drafts = 0;
  sequence.preempted = true;
  queue_.PushPreempted(PromptOf(sequence));
  ++counts_.preemptions;
  preempted_ = true;
}

void Core::AddDraft(Sequence& sequence, uint32_t n_tokens, uint32_t first_new_page) {
  assert(n_tokens > 0 && n_tokens <= budget_);
  budget_ -= n_tokens;
  draft_.push_back({.sequence = &sequence, .n_tokens = n_tokens, .first_new_page = first_new_page});
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
  in_flight_.push_back(std::move(in_flight));
  return row;
}

}  // namespace quartet::coordinator
