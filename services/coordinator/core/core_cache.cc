#include <algorithm>
#include <cassert>
#include <span>

#include "services/coordinator/core/core.h"

// What the core does with the prefix cache.

namespace quartet::coordinator {
namespace {

// Tries to bring a prompt's prefix back, for one admission.
constexpr uint32_t kMaxRestores = 4;

}  // namespace

bool Core::UsesCache(const Sequence& sequence) const {
  // Log-probabilities of a prompt need all of it to be computed.
  return index_.has_value() && sequence.request.has_keys() && !sequence.request.prompt_logprobs;
}

PrefixPath Core::PathOf(const Sequence& sequence) const {
  return {.root = sequence.request.cache_root,
          .keys = sequence.request.unit_keys,
          .tokens = sequence.tokens};
}

uint32_t Core::AdoptCached(std::vector<CacheEntry> entries) {
  assert(next_id_ == 1);
  return tiers_.has_value() ? tiers_->Adopt(std::move(entries)) : 0;
}

// Whether so many pages are free, or can be had from the cache.
bool Core::RoomFor(uint64_t pages) const {
  if (!index_.has_value()) return pages <= pages_.free();
  const PrefixLedger cache = index_->GetLedger();
  return pages <= uint64_t{pages_.free()} + cache.pages - cache.pages_referenced;
}

// Whether a queued sequence that needs so many pages has to wait for a copy from a lower tier, its
// own or, while there is one, another's. Starts its own where that brings back more than the device
// holds.
bool Core::AwaitsRestore(Sequence& sequence, uint64_t pages, TimeUs now) {
  if (!tiers_.has_value()) return false;
  if (!tiers_->restoring()) tiers_->ReleaseRestored();
  if (!UsesCache(sequence)) return false;
  if (sequence.restores > 0) {
    if (tiers_->restoring()) return true;
    // When something was found damaged, what is left may still save a part.
    if (!tiers_->restore_was_damaged() || sequence.restores == kMaxRestores) return false;
  }
  const PrefixPath path = PathOf(sequence);
  if (tiers_->Match(path) <= index_->Match(path).cached_tokens) return false;
  if (tiers_->restoring() || !RoomFor(pages)) return true;
  ++sequence.restores;
  tiers_->Restore(path, now);
  return true;
}

// How many tokens in whole units both begin with, of which a prompt can use a snapshot: one token
// of every prompt is computed.
uint32_t Core::SharedWith(const Sequence& sequence, const Sequence& other) const {
  const Request& request = sequence.request;
  if (other.request.cache_root != request.cache_root) return 0;
  const auto parted = std::ranges::mismatch(request.unit_keys, other.request.unit_keys).in1;
  const auto units = static_cast<uint32_t>(parted - request.unit_keys.begin());
  const auto tokens = static_cast<uint32_t>(sequence.tokens.size());
  return std::min(units, (tokens - 1) / config_.page_tokens) * config_.page_tokens;
}

// Whether a queued sequence is better admitted later, because what it begins with is about to come
// into the cache: as the turn before it, which has ended and leaves its place with one of the next
// plans, or as the prompt of a running sequence. A batch prompt, which has only what others leave,
// is not waited for by those that have more.
bool Core::AwaitsTwin(const Sequence& sequence) {
  if (!UsesCache(sequence)) return false;
  uint32_t awaited = 0;
  for (const auto& closing : closing_) {
    const uint32_t text = std::min(closing->absorbed, closing->text_tokens);
    const uint32_t end = TurnEnd(config_.snapshot_policy, closing->absorbed, text);
    if (SharedWith(sequence, *closing) >= end) awaited = std::max(awaited, end);
  }
  for (Sequence* other : running_) {
    if (other->state != SequenceState::kPrefill || !other->publishes ||
        other->request.request_class > sequence.request.request_class) {
      continue;
    }
    const uint32_t shared = SharedWith(sequence, *other);
    if (shared <= other->absorbed) continue;
    // Where they part is worth a snapshot, as at a branch of what is cached. A row of the plan in
    // the making can still take it.
    const uint32_t planned = other->next_position();
    const bool in_row = shared < planned + DraftedTokens(*other);
    if (shared > planned && other->marks.branch_point <= other->absorbed &&
        (!in_row || inner_exports_ > 0)) {
      other->marks.branch_point = shared;
      inner_exports_ -= in_row;
    }
    const std::vector<SnapshotMark> due =
        PrefillSnapshots(config_.snapshot_policy, other->marks, other->absorbed, shared);
    if (!due.empty()) awaited = std::max(awaited, due.back().offset);
  }
  return awaited > 0 && awaited > index_->Match(PathOf(sequence)).cached_tokens;
}

// Whether there is room to admit a queued sequence for which, with its neighbours, this many pages
// must be free if nothing of it is cached. If so it has taken what is cached, and the rest is free:
// the cache has given up what was lacking. Pages of the hit that only the cache held count among
// those that it could have given up, so they are enough for themselves.
bool Core::MakeRoomFor(uint64_t pages, Sequence& sequence, TimeUs now,
                       std::optional<Resume>& resume) {
  if (!RoomFor(pages)) return false;
  if (!index_.has_value()) return true;
  resume = BeginBehindPrefix(sequence, pages, now);
  const uint64_t wanted = pages - sequence.pages.size();
  if (wanted > pages_.free()) {
    index_->EvictPages(static_cast<uint32_t>(wanted - pages_.free()));
  }
  assert(wanted <= pages_.free());
  return true;
}

// Takes the longest cached prefix: its pages become the sequence's first ones.
std::optional<Resume> Core::BeginBehindPrefix(Sequence& sequence, uint64_t pages, TimeUs now) {
  assert(sequence.pages.empty() && sequence.absorbed == 0);
  sequence.publishes = false;
  sequence.restores = 0;
  if (!UsesCache(sequence)) return std::nullopt;
  sequence.publishes = !sequence.preempted && !sequence.request.cache_read_only;
  PrefixPath path = PathOf(sequence);
  if (BeginsAfresh(sequence, pages)) path.keys = {};
  PrefixHit hit = index_->Acquire(path, now);
  if (sequence.suspect.active()) {
    hit.match.branch_point = index_->SnapshotOf(sequence.suspect)->offset;
  }
  sequence.lease = std::move(hit.lease);
  sequence.marks = {.prompt_tokens = static_cast<uint32_t>(sequence.tokens.size()),
                    .cached_tokens = hit.match.cached_tokens,
                    .branch_point = hit.match.branch_point,
                    .system_prefix = sequence.request.system_prefix_tokens};
  if (hit.match.cached_tokens == 0) return std::nullopt;
  ++counts_.device_tier.snapshots_restored;
  sequence.pages = hit.match.pages;
  sequence.absorbed = hit.match.cached_tokens;
  sequence.committed = sequence.absorbed;
  return Resume{.snapshot = hit.match.snapshot,
                .n_tokens = hit.match.cached_tokens,
                .pages = std::move(hit.match.pages)};
}

std::optional<uint32_t> Core::TakePage() {
  std::optional<uint32_t> page = pages_.Take();
  if (!page.has_value() && index_.has_value() && index_->EvictPages(1) > 0) page = pages_.Take();
  return page;
}

// The snapshots that a chunk up to here has to leave, as far as there are places. The last ones are
// worth most.
void Core::TakeExports(const Sequence& sequence, uint32_t end, InFlightRow& row) {
  if (!sequence.publishes) return;
  const std::vector<SnapshotMark> due =
      PrefillSnapshots(config_.snapshot_policy, sequence.marks, sequence.next_position(), end);
  for (auto mark = due.rbegin(); mark != due.rend(); ++mark) {
    const std::optional<uint32_t> place = TakeSnapshot();
    if (!place.has_value()) break;
    const FinishedSnapshot taken = {.snapshot = *place,
                                    .offset = mark->offset,
                                    .absorbed_tokens = mark->offset,
                                    .kind = mark->kind};
    if (mark->offset == end) {
      row.exported = taken;
    } else {
      row.inner.push_back(taken);
    }
  }
  std::ranges::reverse(row.inner);
}

// A step of this sequence has completed on all ranks. Of its text only the prompt is published: of
// an answer the gateway may still take tokens back, when a stop string turns up (core_turn.cc).
void Core::Publish(Sequence& sequence, const InFlightRow& row, TimeUs now) {
  if (!sequence.lease.active()) {
    assert(!row.exported.has_value() && row.inner.empty());
    return;
  }
  sequence.lease.ReleaseSnapshot();  // it has been copied
  const uint32_t units_before = sequence.lease.shared_units();
  PublishUnits(sequence, std::min(sequence.absorbed, sequence.prompt_tokens));
  const bool exports_prompt = row.exported.has_value() && !row.exports_answer;
  for (const FinishedSnapshot& finished : row.inner) {
    PublishOfPrompt(sequence, finished, now);
    WriteThrough(sequence, finished.offset);
  }
  if (exports_prompt) {
    FinishedSnapshot finished = *row.exported;
    finished.absorbed_tokens = sequence.absorbed;
    PublishOfPrompt(sequence, finished, now);
  } else if (row.exported.has_value()) {
    KeepAnswerSnapshot(sequence, *row.exported);
  }
  if (exports_prompt || sequence.lease.shared_units() > units_before) {
    WriteThrough(sequence, sequence.lease.shared_units() * config_.page_tokens);
  }
}

void Core::PublishOfPrompt(Sequence& sequence, const FinishedSnapshot& finished, TimeUs now) {
  if (sequence.suspect.active() &&
      index_->SnapshotOf(sequence.suspect)->offset == finished.offset) {
    CompareWithSuspect(sequence, finished);
  } else {
    index_->PublishSnapshot(sequence.lease, finished, now);
  }
}

// Its units up to there, which nobody can take back.
void Core::PublishUnits(Sequence& sequence, uint32_t final_tokens) {
  const uint32_t unit = config_.page_tokens;
  while (sequence.publishes) {
    const uint32_t at = sequence.lease.shared_units();
    if (at >= sequence.request.unit_keys.size() || (at + 1) * unit > final_tokens) break;
    const UnitKey& key = sequence.request.unit_keys[at];
    const auto tokens = std::span<const int32_t>(sequence.tokens).subspan(size_t{at} * unit, unit);
    // Where another sequence was faster, this one goes on with its own page: a page table does not
    // change. What comes behind it is worth publishing all the same, as long as the pool holds
    // these pages beside all that it will need itself: who is alone must always find room.
    if (index_->HasNext(sequence.lease, key, tokens) && !HasRoomForDuplicate(sequence)) {
      sequence.publishes = false;
      break;
    }
    if (index_->Enter(sequence.lease, key, tokens)) {
      sequence.duplicate_pages.push_back(sequence.pages[at]);
      continue;
    }
    sequence.publishes =
        index_->PublishUnit(sequence.lease, key, tokens, sequence.pages[at], final_tokens).kind ==
        UnitOutcome::Kind::kPublished;
  }
}

bool Core::HasRoomForDuplicate(const Sequence& sequence) const {
  if (sequence.state == SequenceState::kClosing || sequence.preempted) return true;
  const uint32_t most = PagesFor(sequence.prompt_tokens + uint64_t{sequence.max_tokens});
  return most + sequence.duplicate_pages.size() < pages_.size();
}

// Its text has been published up to there, and goes to the tier below as well.
void Core::WriteThrough(const Sequence& sequence, uint32_t offset) {
  if (tiers_.has_value() && offset > 0) tiers_->WriteThrough(sequence.lease, offset);
}

// The copies between tiers come when it is known what the rows take, but for drafts.
void Core::PlanCopies(StepPlan& plan, TimeUs now) {
  if (!tiers_.has_value() || CopiesInFlight()) return;
  while (tiers_->Plan(plan.copies) && plan.copies.empty() && draft_.empty()) {
    // Somebody may have waited for what was let go, and nothing else will happen.
    DraftDecodeRows(now);
    DraftPromptRows(now, plan.opens);
  }
}

void Core::ReturnInner(const InFlightRow& row) {
  for (const FinishedSnapshot& taken : row.inner) snapshots_.Return(taken.snapshot);
}

void Core::ReturnExport(const InFlightRow& row) {
  ReturnInner(row);
  if (row.exported.has_value()) snapshots_.Return(row.exported->snapshot);
}

}  // namespace quartet::coordinator
