#include "services/coordinator/core/path_copy.h"

#include <algorithm>
#include <cassert>
#include <utility>

namespace quartet::coordinator {

PathCopy::PathCopy(const TierStore& from, const TierStore& to, PrefixLease source)
    : from_(from),
      to_(to),
      source_(std::move(source)),
      target_(to.index->Begin(source_.root())),
      units_(from.index->UnitsOf(source_)),
      last_snapshot_(from.index->SnapshotOf(source_)) {
  assert(!last_snapshot_.has_value() || !units_.empty());
  if (!units_.empty()) unit_tokens_ = static_cast<uint32_t>(units_.front().tokens.size());
  // A snapshot before the path's end is not this copy's.
  if (last_snapshot_.has_value() && last_snapshot_->offset != units_.size() * unit_tokens_) {
    last_snapshot_.reset();
  }
}

std::optional<uint32_t> PathCopy::TakePage(const TierStore& store) {
  std::optional<uint32_t> page = store.pages->Take();
  if (!page.has_value() && store.index->EvictPages(1) > 0) page = store.pages->Take();
  return page;
}

std::optional<uint32_t> PathCopy::TakeSnapshot(const TierStore& store) {
  std::optional<uint32_t> snapshot = store.snapshots->Take();
  if (!snapshot.has_value() && store.index->EvictSnapshots(1) > 0) {
    snapshot = store.snapshots->Take();
  }
  return snapshot;
}

TierCopy PathCopy::CopyOf(TierCopy::Kind kind, uint32_t from_place, uint32_t to_place,
                          uint32_t unit) const {
  TierCopy copy = {.kind = kind,
                   .from = from_.tier,
                   .from_place = from_place,
                   .to = to_.tier,
                   .to_place = to_place,
                   .key = units_[unit].key,
                   .n_tokens = OffsetOf(unit)};
  if (to_.tier == CacheTier::kDisk) {
    const auto tokens = units_[unit].tokens;
    copy.origin = {.root = source_.root(),
                   .parent = unit == 0 ? source_.root() : units_[unit - 1].key,
                   .tokens = {tokens.begin(), tokens.end()}};
  }
  return copy;
}

std::optional<UnitKey> PathCopy::NextUnit() {
  while (target_.shared_units() < units_.size()) {
    const PathUnit& next = units_[target_.shared_units()];
    if (!to_.index->Enter(target_, next.key, next.tokens)) return next.key;
  }
  return std::nullopt;
}

bool PathCopy::CanGoOn() {
  if (ended_) return false;
  const PrefixLedger there = to_.index->GetLedger();
  if (NextUnit().has_value()) {
    return to_.pages->free() > 0 || there.pages > there.pages_referenced;
  }
  if (!last_snapshot_.has_value() || to_.index->HasSnapshotAtEnd(target_)) {
    ended_ = complete_ = true;
    return false;
  }
  return to_.snapshots->free() > 0 || there.snapshots > there.snapshots_referenced;
}

void PathCopy::Plan(uint64_t& budget_bytes, std::vector<TierCopy>& copies) {
  assert(in_flight() == 0 && !ended_);
  const auto take_budget = [&](uint64_t bytes) {
    if (budget_bytes < bytes && !copies.empty()) return false;
    budget_bytes -= std::min(budget_bytes, bytes);
    return true;
  };
  NextUnit();
  for (uint32_t unit = target_.shared_units(); unit < units_.size(); ++unit) {
    if (!take_budget(to_.page_bytes)) return;
    const std::optional<uint32_t> page = TakePage(to_);
    if (!page.has_value()) {
      ended_ = true;
      return;
    }
    pages_.push_back(*page);
    copies.push_back(CopyOf(TierCopy::Kind::kPage, units_[unit].page, *page, unit));
  }
  if (!last_snapshot_.has_value() || (pages_.empty() && to_.index->HasSnapshotAtEnd(target_))) {
    ended_ = true;
    complete_ = pages_.empty();
    return;
  }
  if (!take_budget(to_.snapshot_bytes)) return;
  ended_ = true;
  snapshot_ = TakeSnapshot(to_);
  if (!snapshot_.has_value()) return;
  copies.push_back(CopyOf(TierCopy::Kind::kSnapshot, last_snapshot_->snapshot, *snapshot_,
                          static_cast<uint32_t>(units_.size()) - 1));
}

PathCopy::Applied PathCopy::Apply(std::span<const CopyOutcome> outcomes, TimeUs now) {
  assert(outcomes.size() == in_flight());
  Applied applied;
  for (size_t i = 0; i < pages_.size(); ++i) {
    const uint32_t unit = target_.shared_units();
    if (!applied.failure.has_value() && outcomes[i] != CopyOutcome::kDone) {
      applied.failure = outcomes[i];
      applied.failed_unit = units_[unit].key;
    }
    const bool arrived = !applied.failure.has_value() && unit < units_.size() &&
                         to_.index
                                 ->PublishUnit(target_, units_[unit].key, units_[unit].tokens,
                                               pages_[i], OffsetOf(unit))
                                 .kind != UnitOutcome::Kind::kRefused;
    if (arrived) {
      ++applied.pages;
    } else {
      ended_ = true;
      to_.pages->Return(pages_[i]);
    }
  }
  pages_.clear();
  const bool path_arrived = target_.shared_units() == units_.size();
  if (snapshot_.has_value()) {
    const uint32_t place = *std::exchange(snapshot_, std::nullopt);
    const CopyOutcome outcome = outcomes.back();
    if (!applied.failure.has_value() && outcome != CopyOutcome::kDone) {
      applied.failure = outcome;
      applied.failed_unit = units_.back().key;
      applied.failed_snapshot = true;
    }
    if (path_arrived && !applied.failure.has_value()) {
      FinishedSnapshot finished = *last_snapshot_;
      finished.snapshot = place;
      applied.snapshot =
          to_.index->PublishSnapshot(target_, finished, now) == SnapshotOutcome::kPublished;
      complete_ = true;
    } else {
      to_.snapshots->Return(place);
    }
  } else if (ended_ && path_arrived && !last_snapshot_.has_value()) {
    complete_ = true;
  }
  return applied;
}

void PathCopy::Abandon() {
  for (const uint32_t page : pages_) to_.pages->Return(page);
  pages_.clear();
  if (snapshot_.has_value()) to_.snapshots->Return(*std::exchange(snapshot_, std::nullopt));
  ended_ = true;
}

}  // namespace quartet::coordinator
