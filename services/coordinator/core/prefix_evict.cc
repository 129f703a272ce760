#include <algorithm>
#include <cassert>
#include <cmath>

#include "services/coordinator/core/prefix_index.h"

// What the prefix index gives up, and in which order.
//
// A snapshot is worth P(it is used again) x the prefill time that it saves, per byte. P follows
// from its aged use count and its kind. The time saved is that of the tokens back to the next
// snapshot above it, from which one would start without it; the prefill rate is the same for all
// and is left out. A page with nothing behind it is worth what its snapshot is worth, per byte of
// the snapshot and of all pages down from the one above, which serve nobody else. Without a
// snapshot it saves nothing.

namespace quartet::coordinator {
namespace {

// By how many powers of two a use of this kind counts for more than one of an inner boundary. Far
// enough apart that a kind is given up for a lower one only if it is not used for some half-lives.
double Log2Weight(SnapshotKind kind) {
  switch (kind) {
    case SnapshotKind::kBoundary:
      return 0;
    case SnapshotKind::kConversationEnd:
    case SnapshotKind::kBranch:
      return 2;
    case SnapshotKind::kSystemPrefix:
      return 4;
  }
  return 0;
}

}  // namespace

void PrefixIndex::Use(Snapshot& snapshot, TimeUs now) {
  const double use = static_cast<double>(now) / static_cast<double>(config_.half_life_us);
  const auto [low, high] = std::minmax(snapshot.log2_uses, use);
  snapshot.log2_uses = high + std::log2(1 + std::exp2(low - high));
  snapshot.last_use = next_use_++;
}

bool PrefixIndex::PageMayGo(uint32_t at) const {
  const Node& node = nodes_[at];
  return node.page.present() && node.children.empty() && node.refs == 0;
}

bool PrefixIndex::SnapshotMayGo(uint32_t at) const {
  const Snapshot& snapshot = nodes_[at].snapshot;
  return snapshot.object.present() && snapshot.refs == 0;
}

uint32_t PrefixIndex::UnitsToSnapshotAbove(uint32_t at) const {
  uint32_t above = nodes_[at].parent;
  while (nodes_[above].parent != kNone && !nodes_[above].snapshot.object.present()) {
    above = nodes_[above].parent;
  }
  return nodes_[at].depth_units - nodes_[above].depth_units;
}

double PrefixIndex::ExpectedSaving(uint32_t at, uint32_t units) const {
  const Snapshot& snapshot = nodes_[at].snapshot;
  return snapshot.log2_uses + Log2Weight(snapshot.kind) + std::log2(units);
}

EvictionOrder::Rank PrefixIndex::SnapshotRank(uint32_t at) const {
  const uint64_t last_use = nodes_[at].snapshot.last_use;
  if (config_.eviction == PrefixIndexConfig::Eviction::kLru) return {0, last_use};
  // All snapshots have the same bytes.
  return {ExpectedSaving(at, UnitsToSnapshotAbove(at)), last_use};
}

EvictionOrder::Rank PrefixIndex::PageRank(uint32_t at) const {
  const Node& node = nodes_[at];
  if (config_.eviction == PrefixIndexConfig::Eviction::kLru) return {0, node.last_use};
  if (!node.snapshot.object.present()) {
    return {-std::numeric_limits<double>::infinity(), node.last_use};
  }
  const uint32_t units = UnitsToSnapshotAbove(at);
  const double bytes = static_cast<double>(config_.snapshot_bytes) +
                       static_cast<double>(units) * static_cast<double>(config_.page_bytes);
  return {ExpectedSaving(at, units) - std::log2(bytes), node.last_use};
}

void PrefixIndex::Requeue(uint32_t at) {
  if (PageMayGo(at)) {
    page_order_.Set(at, PageRank(at));
  } else {
    page_order_.Erase(at);
  }
  if (SnapshotMayGo(at)) {
    snapshot_order_.Set(at, SnapshotRank(at));
  } else {
    snapshot_order_.Erase(at);
  }
}

// After a snapshot came or went: the next ones below it save less or more than before.
void PrefixIndex::RequeueBelow(uint32_t at) {
  if (config_.eviction == PrefixIndexConfig::Eviction::kLru) return;
  to_visit_ = nodes_[at].children;
  while (!to_visit_.empty()) {
    const uint32_t below = to_visit_.back();
    to_visit_.pop_back();
    if (nodes_[below].snapshot.object.present()) {
      Requeue(below);
    } else {
      to_visit_.insert(to_visit_.end(), nodes_[below].children.begin(),
                       nodes_[below].children.end());
    }
  }
}

void PrefixIndex::DropSnapshot(uint32_t at) {
  assert(SnapshotMayGo(at));
  snapshots_->Return(nodes_[at].snapshot.object.id);
  nodes_[at].snapshot = {};
  --ledger_.snapshots;
  Requeue(at);
  RequeueBelow(at);
}

void PrefixIndex::RemoveLeaf(uint32_t at) {
  assert(PageMayGo(at));
  if (nodes_[at].snapshot.object.present()) {
    DropSnapshot(at);
    ++ledger_.snapshots_evicted;
  }
  Node& node = nodes_[at];
  pages_->Return(node.page.id);
  --ledger_.pages;
  ++ledger_.pages_evicted;
  page_order_.Erase(at);

  const uint32_t parent = node.parent;
  // Whoever used the unit used all before it. Uses are noted at the deepest node only, and come up
  // to where they are asked for.
  nodes_[parent].last_use = std::max(nodes_[parent].last_use, node.last_use);
  const auto place = ChildPlace(parent, at);
  assert(*place == at);
  nodes_[parent].children.erase(place);
  const auto free_node = [this](uint32_t gone) {
    by_key_.erase(nodes_[gone].key);
    nodes_[gone] = {};
    node_places_.Return(gone);
  };
  free_node(at);
  if (nodes_[parent].parent != kNone) {
    Requeue(parent);
  } else if (nodes_[parent].children.empty()) {
    free_node(parent);
  }
}

uint32_t PrefixIndex::EvictPages(uint32_t n) {
  uint32_t evicted = 0;
  for (; evicted < n && !page_order_.empty(); ++evicted) RemoveLeaf(page_order_.Front());
  return evicted;
}

uint32_t PrefixIndex::EvictSnapshots(uint32_t n) {
  uint32_t evicted = 0;
  for (; evicted < n && !snapshot_order_.empty(); ++evicted) {
    DropSnapshot(snapshot_order_.Front());
    ++ledger_.snapshots_evicted;
  }
  return evicted;
}

void PrefixIndex::EvictToWatermark() {
  const auto above = [this](const FreePool& pool) {
    const auto mark =
        static_cast<uint32_t>(uint64_t{pool.size()} * config_.watermark_percent / 100);
    return pool.used() > mark ? pool.used() - mark : 0;
  };
  EvictPages(above(*pages_));
  EvictSnapshots(above(*snapshots_));
}

uint32_t PrefixIndex::Thin(const PrefixLease& lease, const SnapshotPolicy& policy) {
  assert(lease.index_ == this && policy.unit_tokens == config_.unit_tokens);
  std::vector<SnapshotMark> marks;
  for (uint32_t at = lease.node_; at != kNone; at = nodes_[at].parent) {
    const Node& node = nodes_[at];
    if (!node.snapshot.object.present()) continue;
    const SnapshotKind kind = node.children.size() > 1
                                  ? std::max(node.snapshot.kind, SnapshotKind::kBranch)
                                  : node.snapshot.kind;
    marks.push_back({node.snapshot.absorbed_tokens, kind});
  }
  std::ranges::reverse(marks);
  uint32_t thinned = 0;
  for (uint32_t offset : SnapshotsToThin(policy, marks)) {
    const uint32_t node = FindOnPath(lease, offset);
    if (!SnapshotMayGo(node)) continue;
    DropSnapshot(node);
    ++thinned;
  }
  ledger_.snapshots_thinned += thinned;
  return thinned;
}

}  // namespace quartet::coordinator
