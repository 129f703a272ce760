#include <algorithm>
#include <cassert>
#include <utility>

#include "services/coordinator/core/core.h"

// How an answer comes into the prefix cache.
//
// While it grows, the gateway may still take tokens of it back, so nothing of it is published. The
// sequence keeps the snapshots that it takes on its way: of the last units, where its turn may turn
// out to end, and at block boundaries. When the request ends, the sequence stays in its place for
// the moment that it needs to be published up to the end of its text: until the next plan, or, if
// the last window of speculation went past the end of a unit, until that plan has committed the
// window and taken the state there.

namespace quartet::coordinator {

void Core::OnUnitKeys(uint64_t id, std::span<const UnitKey> keys) {
  Sequence* sequence = nullptr;
  if (auto found = sequences_.find(id); found != sequences_.end()) {
    sequence = found->second.get();
  } else {
    for (const auto& closing : closing_) {
      if (closing->id == id) sequence = closing.get();
    }
  }
  if (sequence == nullptr) return;
  std::vector<UnitKey>& known = sequence->request.unit_keys;
  assert((known.size() + keys.size()) * config_.page_tokens <= sequence->tokens.size());
  for (UnitKey key : keys) {
    key.high += sequence->cache_generation;
    known.push_back(key);
  }
}

std::optional<uint32_t> Core::TakeSnapshot() {
  std::optional<uint32_t> place = snapshots_.Take();
  if (!place.has_value() && index_->EvictSnapshots(1) > 0) place = snapshots_.Take();
  return place;
}

// The snapshot to take when the live state of an answer goes from `before` tokens to `after`.
std::optional<FinishedSnapshot> Core::TakeAnswerExport(const Sequence& sequence, uint32_t before,
                                                       uint32_t after) {
  if (!sequence.lease.active() || sequence.request.cache_read_only) return std::nullopt;
  const std::optional<DecodeExport> due = DecodeSnapshot(config_.snapshot_policy, before, after);
  if (!due.has_value()) return std::nullopt;
  const std::optional<uint32_t> place = TakeSnapshot();
  if (!place.has_value()) return std::nullopt;
  return FinishedSnapshot{
      .snapshot = *place,
      .offset = due->offset,
      .absorbed_tokens = due->offset,
      .kind = due->boundary ? SnapshotKind::kBoundary : SnapshotKind::kConversationEnd};
}

// The snapshots that the row takes: of a prompt where they are due; else at its end, or of the
// window that is committed before it. A unit is longer than both together, so there is one at most.
void Core::AddExports(const Sequence& sequence, PlanRow& row, InFlightRow& in_flight,
                      std::vector<Commit>& commits) {
  const uint32_t end = row.position + row.n_tokens;
  if (row.kind != PlanRow::Kind::kPrefill) {
    in_flight.exports_answer = true;
    // A window in flight takes in what is before it, and leaves its own tokens to this row. How
    // many these are is not known yet, so the state may turn out not to come to the snapshot.
    const RowAhead& ahead = sequence.ahead;
    const uint32_t before = ahead.step_id == 0 ? sequence.committed
                            : ahead.window     ? sequence.absorbed
                                               : row.position;
    in_flight.exported = TakeAnswerExport(sequence, before, row.position);
    if (in_flight.exported.has_value()) {
      commits.push_back({row.seq_uid, in_flight.exported->offset, in_flight.exported->snapshot});
      return;
    }
    if (row.kind == PlanRow::Kind::kVerify) return;  // it leaves the live state where it is
    in_flight.exported = TakeAnswerExport(sequence, row.position, end);
  } else {
    TakeExports(sequence, end, in_flight);
    for (const FinishedSnapshot& taken : in_flight.inner) {
      row.exports.push_back({taken.offset - row.position, taken.snapshot});
    }
    if (!in_flight.exported.has_value() && row.sample) {
      // The turn may end with this unit, if its answer is short.
      in_flight.exports_answer = true;
      in_flight.exported = TakeAnswerExport(sequence, end - 1, end);
    }
  }
  if (in_flight.exported.has_value()) {
    row.exports.push_back({row.n_tokens, in_flight.exported->snapshot});
  }
}

// Kept are the last two, since a stop string may take back the end of the text, and boundaries
// before them, as many as half of a sequence's share of the pool.
void Core::KeepAnswerSnapshot(Sequence& sequence, const FinishedSnapshot& taken) {
  std::vector<FinishedSnapshot>& kept = sequence.answer_snapshots;
  kept.push_back(taken);
  if (kept.size() < 3) return;
  const size_t most = std::max(2u, config_.snapshots / (2 * config_.slots));
  const size_t third = kept.size() - 3;
  const size_t dropped = kept[third].kind != SnapshotKind::kBoundary ? third
                         : kept.size() > most                        ? 0
                                                                     : kept.size();
  if (dropped == kept.size()) return;
  snapshots_.Return(kept[dropped].snapshot);
  kept.erase(kept.begin() + static_cast<std::ptrdiff_t>(dropped));
}

// Its request has ended with this text. The caller has told it so.
void Core::BeginClosing(std::unique_ptr<Sequence> sequence, uint32_t text_tokens) {
  // A row in flight takes its window into the live state, and what it adds is of no interest.
  if (sequence->ahead.step_id != 0) sequence->committed = sequence->absorbed;
  sequence->state = SequenceState::kClosing;
  sequence->text_tokens = text_tokens;
  running_.erase(std::find(running_.begin(), running_.end(), sequence.get()));
  closing_.push_back(std::move(sequence));
}

// Publishes what has ended since the last plan and has no row in flight, and gives up the places of
// all that need no step for it. Who stays takes its last snapshot in the plan that is being made.
void Core::CloseTurns(TimeUs now) {
  std::erase_if(closing_, [&](const std::unique_ptr<Sequence>& owned) {
    Sequence& sequence = *owned;
    if (sequence.ahead.step_id != 0 || sequence.last_snapshot.has_value()) return false;
    sequence.publishes = true;  // also after a preemption: it takes no page any more
    PublishUnits(sequence, std::min(sequence.absorbed, sequence.text_tokens));
    const uint32_t published = sequence.lease.shared_units() * config_.page_tokens;
    const uint32_t end = std::min(
        TurnEnd(config_.snapshot_policy, sequence.absorbed, sequence.text_tokens), published);
    if (end > sequence.committed) {
      if (const std::optional<uint32_t> place = TakeSnapshot(); place.has_value()) {
        sequence.last_snapshot = FinishedSnapshot{.snapshot = *place,
                                                  .offset = end,
                                                  .absorbed_tokens = end,
                                                  .kind = SnapshotKind::kConversationEnd};
      }
    }
    PublishAnswerSnapshots(sequence, published, now);
    if (sequence.last_snapshot.has_value()) return false;
    EndTurn(sequence, end);
    return true;
  });
}

// Of what it kept, the boundaries inside the text, and the last one there unless a better one is
// being taken.
void Core::PublishAnswerSnapshots(Sequence& sequence, uint32_t published, TimeUs now) {
  std::vector<FinishedSnapshot> kept = std::exchange(sequence.answer_snapshots, {});
  while (!kept.empty() && kept.back().offset > published) {  // newer than the text
    snapshots_.Return(kept.back().snapshot);
    kept.pop_back();
  }
  if (!kept.empty() && config_.snapshot_policy.turn && !sequence.last_snapshot.has_value()) {
    kept.back().kind = SnapshotKind::kConversationEnd;
    index_->PublishSnapshot(sequence.lease, kept.back(), now);
    kept.pop_back();
  }
  for (const FinishedSnapshot& snapshot : kept) {
    if (snapshot.kind == SnapshotKind::kBoundary) {
      index_->PublishSnapshot(sequence.lease, snapshot, now);
      WriteThrough(sequence, snapshot.offset);
    } else {
      snapshots_.Return(snapshot.snapshot);
    }
  }
}

// The step with their commits has completed.
void Core::FinishTurns(uint64_t step_id, TimeUs now) {
  std::erase_if(closing_, [&](const std::unique_ptr<Sequence>& owned) {
    if (owned->commit_step != step_id) return false;
    index_->PublishSnapshot(owned->lease, *owned->last_snapshot, now);
    EndTurn(*owned, owned->last_snapshot->offset);
    return true;
  });
}

// Who is about to lose its place leaves its text so far in the cache, and on its way to the tier
// below. Nobody else can have the pages before they are there. That the client may still cut the
// answer does no harm: who begins behind a text has that text.
void Core::Park(Sequence& sequence, TimeUs now) {
  if (!sequence.lease.active() || sequence.request.cache_read_only) return;
  sequence.lease.ReleaseSnapshot();
  sequence.publishes = true;
  PublishUnits(sequence, sequence.absorbed);
  PublishAnswerSnapshots(sequence, sequence.lease.shared_units() * config_.page_tokens, now);
  const uint32_t kept = std::min(index_->Match(PathOf(sequence)).cached_tokens,
                                 sequence.lease.shared_units() * config_.page_tokens);
  if (tiers_.has_value() && kept > 0) tiers_->Save(sequence.lease, kept);
}

void Core::EndTurn(Sequence& sequence, uint32_t end) {
  index_->Promote(sequence.lease, end, SnapshotKind::kConversationEnd);
  index_->Thin(sequence.lease, config_.snapshot_policy);
  WriteThrough(sequence, end);
  ReleasePlace(sequence);
}

// All that has ended leaves now, with what is published of it.
void Core::DropTurns() {
  for (const auto& sequence : closing_) {
    if (sequence->last_snapshot.has_value()) snapshots_.Return(sequence->last_snapshot->snapshot);
    ReleasePlace(*sequence);
  }
  closing_.clear();
}

}  // namespace quartet::coordinator
