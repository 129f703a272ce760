#include "services/coordinator/core/tiers.h"

#include <algorithm>
#include <cassert>
#include <tuple>
#include <utility>

#include "absl/container/flat_hash_set.h"

namespace quartet::coordinator {

CacheTiers::Lower::Lower(CacheTier tier, uint32_t n_pages, uint32_t n_snapshots,
                         const CoreConfig& config)
    : pages(n_pages),
      snapshots(n_snapshots),
      index({.tier = tier,
             .unit_tokens = config.page_tokens,
             .page_bytes = config.page_bytes,
             .snapshot_bytes = config.snapshot_bytes},
            &pages, &snapshots),
      store{tier, &pages, &snapshots, &index, config.page_bytes, config.snapshot_bytes} {}

TierLedger CacheTiers::Lower::GetLedger() const {
  const PrefixLedger cached = index.GetLedger();
  TierLedger ledger = counts;
  ledger.pages = cached.pages;
  ledger.pages_size = pages.size();
  ledger.snapshots = cached.snapshots;
  ledger.snapshots_size = snapshots.size();
  ledger.page_bytes = cached.pages * store.page_bytes;
  ledger.snapshot_bytes = cached.snapshots * store.snapshot_bytes;
  ledger.snapshots_evicted = cached.snapshots_evicted - discarded_with_pages;
  return ledger;
}

CacheTiers::CacheTiers(const CoreConfig& config, FreePool* pages, FreePool* snapshots,
                       PrefixIndex* index)
    : bytes_per_step_(config.copy_bytes_per_step),
      unit_tokens_(config.page_tokens),
      device_{CacheTier::kDevice,   pages, snapshots, index, config.page_bytes,
              config.snapshot_bytes},
      host_(CacheTier::kHost, config.host_pages, config.host_snapshots, config) {
  if (config.disk_pages > 0) {
    disk_.emplace(CacheTier::kDisk, config.disk_pages, config.disk_snapshots, config);
  }
}

uint32_t CacheTiers::Adopt(std::vector<CacheEntry> entries) {
  if (!disk_.has_value()) return 0;
  const auto unusable = [&](const CacheEntry& entry) {
    const bool page = entry.kind == TierCopy::Kind::kPage;
    return entry.place >= (page ? disk_->pages : disk_->snapshots).size() ||
           entry.origin.tokens.size() != unit_tokens_;
  };
  std::erase_if(entries, unusable);
  // Units behind the ones before them, a snapshot behind its unit.
  std::ranges::sort(entries, [](const CacheEntry& a, const CacheEntry& b) {
    return std::tie(a.n_tokens, a.kind, a.place) < std::tie(b.n_tokens, b.kind, b.place);
  });
  std::vector<bool> page_seen(disk_->pages.size()), snapshot_seen(disk_->snapshots.size());
  std::erase_if(entries, [&](const CacheEntry& entry) {
    auto seen = (entry.kind == TierCopy::Kind::kPage ? page_seen : snapshot_seen)[entry.place];
    const bool twice = seen;
    seen = true;
    return twice;
  });
  std::vector<uint32_t> pages, snapshots;
  for (const CacheEntry& entry : entries) {
    (entry.kind == TierCopy::Kind::kPage ? pages : snapshots).push_back(entry.place);
  }
  disk_->pages.TakePlaces(pages);
  disk_->snapshots.TakePlaces(snapshots);

  absl::flat_hash_map<UnitKey, PrefixLease> ends;  // by the path's last unit
  uint32_t adopted = 0;
  for (const CacheEntry& entry : entries) {
    if (entry.kind == TierCopy::Kind::kPage) {
      adopted += AdoptPage(entry, ends);
      continue;
    }
    const auto end = ends.find(entry.key);
    if (end == ends.end()) {
      disk_->snapshots.Return(entry.place);
      continue;
    }
    const FinishedSnapshot snapshot = {.snapshot = entry.place,
                                       .offset = entry.n_tokens,
                                       .absorbed_tokens = entry.n_tokens,
                                       .kind = SnapshotKind::kConversationEnd};
    adopted +=
        disk_->index.PublishSnapshot(end->second, snapshot, 0) == SnapshotOutcome::kPublished;
  }
  return adopted;
}

bool CacheTiers::AdoptPage(const CacheEntry& entry,
                           absl::flat_hash_map<UnitKey, PrefixLease>& ends) {
  PrefixLease lease = disk_->index.Begin(entry.origin.root);
  if (entry.origin.parent != entry.origin.root) {
    const auto parent = ends.find(entry.origin.parent);
    lease = parent == ends.end() ? PrefixLease() : parent->second.Fork();
  }
  const uint64_t end = (uint64_t{lease.shared_units()} + 1) * unit_tokens_;
  if (!lease.active() || end != entry.n_tokens ||
      disk_->index.PublishUnit(lease, entry.key, entry.origin.tokens, entry.place, entry.n_tokens)
              .kind == UnitOutcome::Kind::kRefused) {
    disk_->pages.Return(entry.place);
    return false;
  }
  ends.emplace(entry.key, std::move(lease));
  return true;
}

uint32_t CacheTiers::Match(const PrefixPath& path) const {
  const uint32_t host = host_.index.Match(path).cached_tokens;
  return disk_.has_value() ? std::max(host, disk_->index.Match(path).cached_tokens) : host;
}

void CacheTiers::Restore(const PrefixPath& path, TimeUs now) {
  assert(!restoring());
  restore_was_damaged_ = false;
  if (disk_.has_value() &&
      disk_->index.Match(path).cached_tokens > host_.index.Match(path).cached_tokens) {
    up_.emplace(disk_->store, host_.store, disk_->index.Acquire(path, now).lease);
  } else {
    up_.emplace(host_.store, device_, host_.index.Acquire(path, now).lease);
  }
}

void CacheTiers::WriteThrough(const PrefixLease& lease, uint32_t offset) {
  if (down_.size() >= kMaxWaiting) {
    ++given_up_;
    return;
  }
  down_.emplace_back(device_, host_.store, device_.index->Hold(lease, offset));
}

void CacheTiers::Save(const PrefixLease& lease, uint32_t offset) {
  down_.emplace_front(device_, host_.store, device_.index->Hold(lease, offset));
  ++n_saving_;
}

bool CacheTiers::EndSaves() {
  const size_t before = n_saving_;
  for (size_t i = 0; i < n_saving_;) {
    if (down_[i].CanGoOn()) {
      ++i;
    } else {
      EndDown(i);
    }
  }
  return n_saving_ < before;
}

bool CacheTiers::GiveUp() {
  const bool held = down_.size() > n_saving_ || up_.has_value() || restored_.active();
  given_up_ += down_.size() - n_saving_;
  down_.erase(down_.begin() + static_cast<std::ptrdiff_t>(n_saving_), down_.end());
  up_.reset();
  restored_ = {};
  return held;
}

bool CacheTiers::Plan(std::vector<TierCopy>& copies) {
  uint64_t budget = bytes_per_step_;
  bool let_go = false;
  while (up_.has_value()) {
    up_->Plan(budget, copies);
    if (!up_->ended()) return let_go;
    EndUp();
    let_go = true;
  }
  // What comes with one path is there for the next one that begins with it, a step later.
  absl::flat_hash_set<std::pair<CacheTier, UnitKey>> coming;
  for (size_t i = 0; i < down_.size() && (budget > 0 || copies.empty());) {
    const CacheTier to = down_[i].to().tier;
    if (const std::optional<UnitKey> next = down_[i].NextUnit();
        next.has_value() && coming.contains({to, *next})) {
      ++i;
      continue;
    }
    const size_t before = copies.size();
    down_[i].Plan(budget, copies);
    for (const TierCopy& copy : std::span(copies).subspan(before)) coming.emplace(to, copy.key);
    if (!down_[i].ended()) {
      ++i;
      continue;
    }
    EndDown(i);
    let_go = true;
  }
  return let_go;
}

void CacheTiers::OnStepResult(std::span<const CopyOutcome> outcomes, TimeUs now) {
  if (up_.has_value()) Apply(*up_, outcomes, now);
  for (PathCopy& copy : down_) Apply(copy, outcomes, now);
  if (up_.has_value() && up_->ended()) EndUp();
  for (size_t i = 0; i < down_.size();) {
    if (down_[i].ended()) {
      EndDown(i);
    } else {
      ++i;
    }
  }
  DiscardDamaged();
}

// Takes the copy's own outcomes off the front.
void CacheTiers::Apply(PathCopy& copy, std::span<const CopyOutcome>& outcomes, TimeUs now) {
  const uint32_t in_flight = copy.in_flight();
  if (in_flight == 0) return;
  // Workers that answer less than they were asked for have nothing to show for the rest.
  std::vector<CopyOutcome> own(outcomes.begin(),
                               outcomes.begin() + std::min<size_t>(in_flight, outcomes.size()));
  outcomes = outcomes.subspan(own.size());
  own.resize(in_flight, CopyOutcome::kMissing);
  const PathCopy::Applied applied = copy.Apply(own, now);
  const CacheTier from = copy.from().tier, to = copy.to().tier;
  if (to != CacheTier::kDevice) LowerOf(to).counts.snapshots_published += applied.snapshot;
  if (from < to) return;
  TierLedger& counts = LowerOf(from).counts;
  counts.pages_restored += applied.pages;
  counts.snapshots_restored += applied.snapshot;
  if (!applied.failure.has_value()) return;
  if (applied.failure == CopyOutcome::kChecksum) {
    ++(applied.failed_snapshot ? counts.snapshots_checksum_failed : counts.pages_checksum_failed);
  }
  restore_was_damaged_ = true;
  damaged_.push_back({from, applied.failed_unit, applied.failed_snapshot});
}

// What has come up from the disk goes on to the device.
void CacheTiers::EndUp() {
  const PathCopy ended = *std::exchange(up_, std::nullopt);
  const PrefixLease& target = ended.target();
  if (ended.to().tier == CacheTier::kDevice) {
    restored_ = device_.index->Hold(target, target.shared_units() * unit_tokens_);
  } else if (ended.complete()) {
    up_.emplace(host_.store, device_,
                host_.index.Hold(target, target.shared_units() * unit_tokens_));
  }
}

// What has come down to host memory goes on to the disk.
void CacheTiers::EndDown(size_t which) {
  const PathCopy ended = std::move(down_[which]);
  down_.erase(down_.begin() + static_cast<std::ptrdiff_t>(which));
  if (which < n_saving_) --n_saving_;
  given_up_ += !ended.complete();
  const PrefixLease& target = ended.target();
  if (!disk_.has_value() || ended.to().tier != CacheTier::kHost || target.shared_units() == 0) {
    return;
  }
  down_.emplace_back(host_.store, disk_->store,
                     host_.index.Hold(target, target.shared_units() * unit_tokens_));
}

void CacheTiers::DiscardDamaged() {
  for (const Damage& damage : std::exchange(damaged_, {})) {
    Lower& lower = LowerOf(damage.tier);
    if (damage.snapshot) {
      lower.counts.snapshots_discarded += lower.index.DiscardSnapshot(damage.unit);
      continue;
    }
    DiscardFrom(lower, damage.unit);
  }
}

void CacheTiers::DiscardFrom(Lower& lower, const UnitKey& unit) {
  const uint32_t snapshots = lower.index.GetLedger().snapshots;
  lower.counts.pages_discarded += lower.index.Discard(unit);
  const uint32_t with_pages = snapshots - lower.index.GetLedger().snapshots;
  lower.counts.snapshots_discarded += with_pages;
  lower.discarded_with_pages += with_pages;
}

void CacheTiers::Discard(const UnitKey& unit) {
  DiscardFrom(host_, unit);
  if (disk_.has_value()) DiscardFrom(*disk_, unit);
}

void CacheTiers::Abandon() {
  if (up_.has_value()) up_->Abandon();
  for (PathCopy& copy : down_) copy.Abandon();
  n_saving_ = 0;
  GiveUp();
}

uint32_t CacheTiers::device_pages_in_flight() const {
  const bool to_device = up_.has_value() && up_->to().tier == CacheTier::kDevice;
  return to_device ? up_->pages_in_flight() : 0;
}

uint32_t CacheTiers::device_snapshots_in_flight() const {
  const bool to_device = up_.has_value() && up_->to().tier == CacheTier::kDevice;
  return to_device ? up_->in_flight() - up_->pages_in_flight() : 0;
}

std::string CacheTiers::CheckTier(const Lower& lower) const {
  const std::string name = lower.store.tier == CacheTier::kHost ? "host tier: " : "disk tier: ";
  uint32_t pages = lower.index.GetLedger().pages;
  uint32_t snapshots = lower.index.GetLedger().snapshots;
  const auto count = [&](const PathCopy& copy) {
    if (copy.to().tier != lower.store.tier) return;
    pages += copy.pages_in_flight();
    snapshots += copy.in_flight() - copy.pages_in_flight();
  };
  if (up_.has_value()) count(*up_);
  for (const PathCopy& copy : down_) count(copy);
  if (pages != lower.pages.used() || snapshots != lower.snapshots.used()) {
    return name + std::to_string(lower.pages.used()) + " pages and " +
           std::to_string(lower.snapshots.used()) +
           " snapshots are taken, cached or on their way " + "are " + std::to_string(pages) +
           " and " + std::to_string(snapshots);
  }
  const std::string error = lower.index.CheckInvariants();
  return error.empty() ? "" : name + error;
}

std::string CacheTiers::CheckInvariants() const {
  const std::string error = CheckTier(host_);
  return error.empty() && disk_.has_value() ? CheckTier(*disk_) : error;
}

}  // namespace quartet::coordinator
