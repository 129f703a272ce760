#include "services/coordinator/core/prefix_index.h"

#include <algorithm>
#include <cassert>
#include <utility>

namespace quartet::coordinator {

PrefixLease& PrefixLease::operator=(PrefixLease&& other) noexcept {
  if (this == &other) return *this;
  Release();
  index_ = std::exchange(other.index_, nullptr);
  root_ = other.root_;
  node_ = std::exchange(other.node_, kNone);
  depth_units_ = std::exchange(other.depth_units_, 0);
  snapshot_node_ = std::exchange(other.snapshot_node_, kNone);
  stopped_ = other.stopped_;
  return *this;
}

PrefixLease PrefixLease::Fork() const {
  PrefixLease fork;
  if (index_ == nullptr) return fork;
  fork.index_ = index_;
  fork.root_ = root_;
  fork.stopped_ = stopped_;
  ++index_->ledger_.leases;
  if (node_ != kNone) index_->MoveLease(fork, node_);
  return fork;
}

void PrefixLease::ReleaseSnapshot() {
  if (index_ != nullptr) index_->ReleaseSnapshot(*this);
}

void PrefixLease::Release() {
  if (index_ != nullptr) index_->Release(*this);
}

// A node owns a page of the pool, and a root has a child.
PrefixIndex::PrefixIndex(const PrefixIndexConfig& config, FreePool* pages, FreePool* snapshots)
    : config_(config),
      pages_(pages),
      snapshots_(snapshots),
      nodes_(2 * size_t{pages->size()}),
      node_places_(2 * pages->size()),
      // Not written to before it is used, so that an empty cache takes no memory for it.
      tokens_(std::make_unique_for_overwrite<int32_t[]>(nodes_.size() * config.unit_tokens)),
      page_order_(2 * pages->size()),
      snapshot_order_(2 * pages->size()) {
  assert(config.unit_tokens > 0 && config.half_life_us > 0 && config.watermark_percent <= 100);
  assert(config.page_bytes > 0 && config.snapshot_bytes > 0);
  by_key_.reserve(nodes_.size());
}

std::span<const int32_t> PrefixIndex::TokensOf(uint32_t node) const {
  return {tokens_.get() + size_t{node} * config_.unit_tokens, config_.unit_tokens};
}

uint32_t PrefixIndex::FindRoot(const UnitKey& key) const {
  const auto found = by_key_.find(key);
  if (found == by_key_.end() || nodes_[found->second].parent != kNone) return kNone;
  return found->second;
}

uint32_t PrefixIndex::FindChild(uint32_t parent, const UnitKey& key,
                                std::span<const int32_t> tokens) const {
  const auto found = by_key_.find(key);
  if (found == by_key_.end() || nodes_[found->second].parent != parent) return kNone;
  // Whatever the keys say, nobody gets another text's state.
  return std::ranges::equal(TokensOf(found->second), tokens) ? found->second : kNone;
}

uint32_t PrefixIndex::FindOnPath(const PrefixLease& lease, uint32_t offset) const {
  if (offset == 0 || offset % config_.unit_tokens != 0) return kNone;
  const uint32_t depth_units = offset / config_.unit_tokens;
  if (depth_units > lease.depth_units_) return kNone;
  uint32_t node = lease.node_;
  while (nodes_[node].depth_units > depth_units) node = nodes_[node].parent;
  return node;
}

PrefixIndex::Walk PrefixIndex::Follow(const PrefixPath& path) const {
  Walk walk;
  walk.deepest = FindRoot(path.root);
  if (walk.deepest == kNone) return walk;
  const size_t unit = config_.unit_tokens;
  const size_t units = std::min(path.keys.size(), path.tokens.size() / unit);
  for (size_t i = 0; i < units; ++i) {
    const uint32_t child =
        FindChild(walk.deepest, path.keys[i], path.tokens.subspan(i * unit, unit));
    if (child == kNone) break;
    walk.deepest = child;
    if (nodes_[child].snapshot.object.present() && (i + 1) * unit < path.tokens.size()) {
      walk.hit = child;
    }
  }
  return walk;
}

PrefixMatch PrefixIndex::Describe(const PrefixPath& path, const Walk& walk) const {
  PrefixMatch match;
  if (walk.deepest == kNone || path.tokens.empty()) return match;
  if (walk.hit != kNone) {
    const Node& hit = nodes_[walk.hit];
    assert(hit.snapshot.absorbed_tokens == hit.depth_units * config_.unit_tokens);
    match.cached_tokens = hit.snapshot.absorbed_tokens;
    match.snapshot = hit.snapshot.object.id;
    match.pages.resize(hit.depth_units);
    for (uint32_t node = walk.hit; nodes_[node].parent != kNone; node = nodes_[node].parent) {
      match.pages[nodes_[node].depth_units - 1] = nodes_[node].page.id;
    }
  }
  const auto last = static_cast<uint32_t>(path.tokens.size()) - 1;
  const uint32_t shared_units_tokens = nodes_[walk.deepest].depth_units * config_.unit_tokens;
  match.shared_tokens =
      std::min(last, shared_units_tokens +
                         SharedInUnit(walk.deepest, path.tokens.subspan(shared_units_tokens)));
  // A prompt that is contained in the path does not leave it; its own last unit is what it needs.
  if (shared_units_tokens > match.cached_tokens &&
      shared_units_tokens < last / config_.unit_tokens * config_.unit_tokens) {
    match.branch_point = shared_units_tokens;
  }
  return match;
}

uint32_t PrefixIndex::SharedInUnit(uint32_t parent, std::span<const int32_t> tokens) const {
  // Among texts in order, the ones that share most with another stand next to its place.
  tokens = tokens.first(std::min<size_t>(tokens.size(), config_.unit_tokens));
  const std::vector<uint32_t>& children = nodes_[parent].children;
  const auto shared = [&](uint32_t child) {
    const auto other = TokensOf(child);
    const auto end = std::mismatch(tokens.begin(), tokens.end(), other.begin(), other.end()).first;
    const auto count = static_cast<uint32_t>(end - tokens.begin());
    // Equal tokens under another key: other images, and nobody knows from where on.
    return count == config_.unit_tokens ? 0 : count;
  };
  const auto place =
      std::lower_bound(children.begin(), children.end(), tokens, [&](uint32_t child, auto wanted) {
        return std::ranges::lexicographical_compare(TokensOf(child), wanted);
      });
  uint32_t most = 0;
  if (place != children.end()) most = shared(*place);
  if (place != children.begin()) most = std::max(most, shared(place[-1]));
  return most;
}

PrefixMatch PrefixIndex::Match(const PrefixPath& path) const {
  return Describe(path, Follow(path));
}

PrefixHit PrefixIndex::Acquire(const PrefixPath& path, TimeUs now) {
  const Walk walk = Follow(path);
  PrefixHit hit;
  hit.match = Describe(path, walk);
  ledger_.query_tokens += path.tokens.size();
  ledger_.hit_tokens += hit.match.cached_tokens;
  ledger_.lost_to_granularity_tokens += hit.match.lost_to_granularity();

  hit.lease.index_ = this;
  hit.lease.root_ = path.root;
  ++ledger_.leases;
  if (walk.hit == kNone) return hit;
  Node& node = nodes_[walk.hit];
  node.last_use = next_use_++;
  Use(node.snapshot, now);
  node.snapshot.tokens_saved += hit.match.cached_tokens;
  if (node.snapshot.refs++ == 0) ++ledger_.snapshots_referenced;
  hit.lease.snapshot_node_ = walk.hit;
  MoveLease(hit.lease, walk.hit);
  return hit;
}

uint32_t PrefixIndex::FindNext(const PrefixLease& lease, const UnitKey& key,
                               std::span<const int32_t> tokens) const {
  const uint32_t parent = lease.node_ != kNone ? lease.node_ : FindRoot(lease.root_);
  return parent == kNone ? kNone : FindChild(parent, key, tokens);
}

bool PrefixIndex::HasNext(const PrefixLease& lease, const UnitKey& key,
                          std::span<const int32_t> tokens) const {
  return FindNext(lease, key, tokens) != kNone;
}

bool PrefixIndex::Enter(PrefixLease& lease, const UnitKey& key, std::span<const int32_t> tokens) {
  const uint32_t node = FindNext(lease, key, tokens);
  if (node == kNone) return false;
  ++ledger_.units_shared;
  nodes_[node].last_use = next_use_++;
  MoveLease(lease, node);
  return true;
}

UnitOutcome PrefixIndex::PublishUnit(PrefixLease& lease, const UnitKey& key,
                                     std::span<const int32_t> tokens, uint32_t page,
                                     uint32_t committed_tokens) {
  assert(lease.index_ == this && tokens.size() == config_.unit_tokens && pages_->IsTaken(page));
  const UnitOutcome refused{UnitOutcome::Kind::kRefused, page};
  const uint64_t end = (uint64_t{lease.depth_units_} + 1) * config_.unit_tokens;
  if (lease.stopped_ || committed_tokens < end) {
    ++ledger_.units_refused;
    return refused;
  }
  uint32_t parent = lease.node_ != kNone ? lease.node_ : FindRoot(lease.root_);
  const bool new_root = parent == kNone;
  const auto found = by_key_.find(key);
  if (!new_root && found != by_key_.end() && FindChild(parent, key, tokens) == found->second) {
    const uint32_t node = found->second;
    assert(nodes_[node].page.id != page);
    pages_->Return(page);
    ++ledger_.units_shared;
    nodes_[node].last_use = next_use_++;
    MoveLease(lease, node);
    return {UnitOutcome::Kind::kShared, nodes_[node].page.id};
  }
  if (found != by_key_.end() ||
      (new_root && (key == lease.root_ || by_key_.contains(lease.root_)))) {
    ++ledger_.collisions;
    ++ledger_.units_refused;
    lease.stopped_ = true;
    return refused;
  }

  if (new_root) parent = AddNode(lease.root_, kNone, {});
  const uint32_t node = AddNode(key, parent, tokens);
  nodes_[node].page = {config_.tier, page};
  nodes_[node].last_use = next_use_++;
  ++ledger_.pages;
  ++ledger_.units_published;
  MoveLease(lease, node);
  Requeue(parent);  // it is no leaf any more
  return {UnitOutcome::Kind::kPublished, page};
}

SnapshotOutcome PrefixIndex::PublishSnapshot(const PrefixLease& lease,
                                             const FinishedSnapshot& finished, TimeUs now) {
  assert(lease.index_ == this && snapshots_->IsTaken(finished.snapshot));
  const uint32_t node = FindOnPath(lease, finished.offset);
  if (finished.absorbed_tokens != finished.offset || node == kNone) {
    ++(node == kNone ? ledger_.snapshots_unplaced : ledger_.snapshots_miscounted);
    snapshots_->Return(finished.snapshot);
    return SnapshotOutcome::kRefused;
  }
  Snapshot& snapshot = nodes_[node].snapshot;
  if (snapshot.object.present()) {
    assert(snapshot.object.id != finished.snapshot);
    ++ledger_.snapshots_duplicate;
    snapshots_->Return(finished.snapshot);
    Promote(lease, finished.offset, finished.kind);
    return SnapshotOutcome::kDuplicate;
  }
  snapshot.object = {config_.tier, finished.snapshot};
  snapshot.absorbed_tokens = finished.absorbed_tokens;
  snapshot.kind = finished.kind;
  Use(snapshot, now);
  ++ledger_.snapshots;
  ++ledger_.snapshots_published;
  Requeue(node);
  RequeueBelow(node);
  return SnapshotOutcome::kPublished;
}

void PrefixIndex::Promote(const PrefixLease& lease, uint32_t offset, SnapshotKind kind) {
  const uint32_t node = FindOnPath(lease, offset);
  if (node == kNone || !nodes_[node].snapshot.object.present()) return;
  nodes_[node].snapshot.kind = std::max(nodes_[node].snapshot.kind, kind);
  Requeue(node);
}

std::vector<uint32_t>::iterator PrefixIndex::ChildPlace(uint32_t parent, uint32_t child) {
  std::vector<uint32_t>& children = nodes_[parent].children;
  return std::lower_bound(children.begin(), children.end(), child, [&](uint32_t a, uint32_t b) {
    const auto tokens_a = TokensOf(a), tokens_b = TokensOf(b);
    const auto order = std::lexicographical_compare_three_way(tokens_a.begin(), tokens_a.end(),
                                                              tokens_b.begin(), tokens_b.end());
    return order != 0 ? order < 0 : nodes_[a].key < nodes_[b].key;
  });
}

uint32_t PrefixIndex::AddNode(const UnitKey& key, uint32_t parent,
                              std::span<const int32_t> tokens) {
  const std::optional<uint32_t> place = node_places_.Take();
  assert(place.has_value());
  Node& node = nodes_[*place];
  node.key = key;
  by_key_.emplace(key, *place);
  if (parent == kNone) return *place;
  node.parent = parent;
  node.depth_units = nodes_[parent].depth_units + 1;
  std::ranges::copy(tokens, tokens_.get() + size_t{*place} * config_.unit_tokens);
  nodes_[parent].children.insert(ChildPlace(parent, *place), *place);
  return *place;
}

void PrefixIndex::Pin(uint32_t node) {
  ++nodes_[node].refs;
  ++leases_at_nodes_;
  uint32_t at = node;
  while (at != kNone && nodes_[at].busy++ == 0) {
    if (nodes_[at].parent != kNone) ++ledger_.pages_referenced;
    at = nodes_[at].parent;
  }
  Requeue(node);
}

void PrefixIndex::Unpin(uint32_t node) {
  assert(nodes_[node].refs > 0);
  --nodes_[node].refs;
  --leases_at_nodes_;
  uint32_t at = node;
  while (at != kNone && --nodes_[at].busy == 0) {
    if (nodes_[at].parent != kNone) --ledger_.pages_referenced;
    at = nodes_[at].parent;
  }
  Requeue(node);
}

void PrefixIndex::MoveLease(PrefixLease& lease, uint32_t node) {
  Pin(node);
  if (lease.node_ != kNone) Unpin(lease.node_);
  lease.node_ = node;
  lease.depth_units_ = nodes_[node].depth_units;
}

void PrefixIndex::ReleaseSnapshot(PrefixLease& lease) {
  const uint32_t node = std::exchange(lease.snapshot_node_, kNone);
  if (node == kNone) return;
  assert(nodes_[node].snapshot.refs > 0);
  if (--nodes_[node].snapshot.refs == 0) --ledger_.snapshots_referenced;
  Requeue(node);
}

void PrefixIndex::Release(PrefixLease& lease) {
  ReleaseSnapshot(lease);
  if (lease.node_ != kNone) Unpin(lease.node_);
  lease.node_ = kNone;
  lease.depth_units_ = 0;
  lease.index_ = nullptr;
  --ledger_.leases;
}

}  // namespace quartet::coordinator
