#include <algorithm>
#include <cassert>
#include <utility>

#include "services/coordinator/core/core.h"

// The part of planning that is about prompts: which of them, admitted or waiting, have how much of
// the next step.

namespace quartet::coordinator {

uint32_t Core::ChunkSize(uint32_t remaining, uint32_t position) const {
  uint32_t limit = std::min(budget_, pacer_.TokensThatFit(position));
  if (queue_.turn_tokens() < limit) limit = static_cast<uint32_t>(queue_.turn_tokens());
  if (config_.prefill_chunk != 0) limit = std::min(limit, config_.prefill_chunk);
  if (remaining <= limit) return remaining;
  return limit / kChunkMultiple * kChunkMultiple;
}

// How much of the chunk of so many tokens that comes next is computed now: so much that the
// snapshots that are due before its end can be taken.
uint32_t Core::CutChunk(const Sequence& sequence, uint32_t chunk) {
  if (!sequence.publishes) return chunk;
  const uint32_t begin = sequence.next_position();
  const std::vector<SnapshotMark> due =
      PrefillSnapshots(config_.snapshot_policy, sequence.marks, begin, begin + chunk);
  const bool one_at_end = !due.empty() && due.back().offset == begin + chunk;
  const auto inner = static_cast<uint32_t>(due.size()) - one_at_end;
  if (inner > inner_exports_) chunk = due[inner_exports_].offset - begin;
  inner_exports_ -= std::min(inner, inner_exports_);
  return chunk;
}

void Core::DraftPromptRows(TimeUs now, std::vector<SequenceOpen>& opens) {
  StepShape decode;
  for (const DraftRow& draft : draft_) {
    decode.AddDecode(draft.n_tokens, draft.sequence->next_position());
  }
  if (!pacer_.BeginStep(decode, in_flight_.empty() ? StepShape() : in_flight_.back().shape)) return;
  queue_.BeginPlan(now);
  if (Sequence* blocked = Blocked()) {
    blocked_until_us_ = UsUntilFree(PagesToAdmit(*blocked), *blocked);
  }
  open_prompts_ = static_cast<uint32_t>(
      std::count_if(running_.begin(), running_.end(),
                    [](const Sequence* sequence) { return sequence->prefills(); }));
  while (const FairQueue::Prompt* next = NextPrompt()) {
    const uint64_t id = next->id;
    Sequence& sequence = *sequences_.at(id);
    const uint32_t chunk =
        sequence.admitted() ? DraftChunk(sequence, now) : Admit(sequence, now, opens);
    // It may have left the queue and come back: it can be the youngest when pages are short.
    if (chunk > 0) {
      queue_.Serve(id, chunk);
    } else {
      queue_.PassOver(id);
    }
  }
  counts_.no_progress += queue_.EndPlan(PagesAreComing());
}

// Who waits for a slot or pages that a lower class has gets them, with one of the next plans.
void Core::MakeWay(TimeUs now) {
  if (running_.empty() || PagesAreComing()) return;
  Sequence& victim = Victim();
  const RequestClass above = victim.request.request_class;
  const Sequence* const blocked = Blocked();
  const bool lacks_pages = blocked != nullptr && blocked->request.request_class < above &&
                           !RoomFor(PagesToAdmit(*blocked));
  const bool lacks_slot = slots_.free() == 0 && queue_.WaitsAbove(above);
  if (lacks_pages || lacks_slot) Preempt(victim, now);
}

// Whose turn it is; null if there is nobody, or no room for a chunk of anybody.
const FairQueue::Prompt* Core::NextPrompt() {
  // When pages were short in this plan, the older ones use what was freed for them.
  if (preempted_ || slots_.free() == 0) queue_.PassOverWaiting();
  const FairQueue::Prompt* next = queue_.Next();
  if (next == nullptr) return nullptr;
  const uint64_t least = std::min<uint64_t>(queue_.LeastWork(), kChunkMultiple);
  return ChunkSize(static_cast<uint32_t>(least), 0) == 0 ? nullptr : next;
}

// The next chunk of an admitted prompt; 0 if there is no room for one.
uint32_t Core::DraftChunk(Sequence& sequence, TimeUs now) {
  const uint32_t position = sequence.next_position();
  const auto remaining = static_cast<uint32_t>(sequence.tokens.size()) - position;
  const uint32_t chunk = CutChunk(sequence, ChunkSize(remaining, position));
  if (chunk == 0) return 0;
  const auto first_new_page = static_cast<uint32_t>(sequence.pages.size());
  if (!GrowPages(sequence, position + chunk, now)) return 0;
  if (chunk == remaining) --open_prompts_;
  pacer_.AddRow(chunk, position);
  AddDraft(sequence, chunk, first_new_page);
  return chunk;
}

// Who was the first to find no pages in its turn, and still waits; else null.
Sequence* Core::Blocked() {
  auto found = sequences_.find(blocked_);
  return found == sequences_.end() || found->second->admitted() ? nullptr : found->second.get();
}

// All of its tokens and the first sampled one, beside what running prompts will still take and a
// page of growth for everybody: who is admitted is not thrown out again at once.
uint64_t Core::PagesToAdmit(const Sequence& sequence) const {
  uint64_t needed = PagesFor(sequence.tokens.size() + 1);
  for (const Sequence* other : running_) {
    needed += 1;
    if (other->state != SequenceState::kPrefill) continue;
    const uint32_t whole = PagesFor(other->tokens.size() + 1);
    needed += whole - std::min<uint32_t>(whole, static_cast<uint32_t>(other->pages.size()));
  }
  return needed;
}

// Gives a waiting request its place and its first chunk, which is returned; 0 if it has to wait.
uint32_t Core::Admit(Sequence& sequence, TimeUs now, std::vector<SequenceOpen>& opens) {
  const auto tokens = static_cast<uint32_t>(sequence.tokens.size());
  // Whatever part of it is cached, this much fits, and what is behind costs no more.
  const uint32_t least = ChunkSize(tokens, tokens);
  if (least == 0) return 0;
  if (least < tokens && open_prompts_ >= kOpenPromptsMax) return 0;
  // Who waits for pages in its turn is passed only by those that are through before it could start.
  Sequence* const blocked = Blocked();
  if (blocked != nullptr && blocked != &sequence &&
      sequence.request.request_class >= blocked->request.request_class &&
      ServiceUs(sequence) > blocked_until_us_) {
    return 0;
  }
  if (AwaitsTwin(sequence)) return 0;
  const uint64_t needed = PagesToAdmit(sequence);
  if (AwaitsRestore(sequence, needed, now)) return 0;
  std::optional<Resume> resume;
  if (!MakeRoomFor(needed, sequence, now, resume)) {
    if (blocked == nullptr) {
      blocked_ = sequence.id;
      blocked_until_us_ = UsUntilFree(needed, sequence);
    }
    return 0;
  }

  queue_.Admit(sequence.id, sequence.tokens.size() - sequence.absorbed);
  const uint32_t before = std::exchange(sequence.absorbed_before, 0);
  counts_.recomputed_tokens += before - std::min(before, sequence.absorbed);
  sequence.state = SequenceState::kPrefill;
  sequence.seq_uid = next_seq_uid_++;
  sequence.slot = *slots_.Take();
  running_.insert(
      std::upper_bound(running_.begin(), running_.end(), &sequence,
                       [](const Sequence* a, const Sequence* b) { return a->id < b->id; }),
      &sequence);
  ++open_prompts_;
  const uint32_t chunk = DraftChunk(sequence, now);
  assert(chunk > 0);

  SequenceOpen open;
  open.seq_uid = sequence.seq_uid;
  open.slot = sequence.slot;
  open.sampling = sequence.request.sampling;
  if (open.sampling.min_tokens > 0) {
    open.end_ids = sequence.request.stop_ids;
    if (!sequence.request.ignore_eos) {
      open.end_ids.insert(open.end_ids.end(), sequence.request.end_ids.begin(),
                          sequence.request.end_ids.end());
    }
  }
  open.first_padding_id = sequence.request.first_padding_id;
  open.prompt_tokens = sequence.prompt_tokens;
  open.thinking = sequence.request.thinking;
  open.resume = std::move(resume);
  if (open.resume.has_value() && sequence.request.needs_text()) {
    open.resume->tokens.assign(sequence.tokens.begin(),
                               sequence.tokens.begin() + open.resume->n_tokens);
  }
  open.acceptance =
      sequence.request.sampling.seeded ? Acceptance::kCoupled : config_.spec_acceptance;
  opens.push_back(std::move(open));

  if (sequence.admitted_before) return chunk;
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
  return chunk;
}

}  // namespace quartet::coordinator
