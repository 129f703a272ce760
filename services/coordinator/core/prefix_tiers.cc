#include <algorithm>
#include <cassert>

#include "services/coordinator/core/prefix_index.h"

// What whoever moves paths between the tiers asks of an index.

namespace quartet::coordinator {

PrefixLease PrefixIndex::Begin(const UnitKey& root) {
  PrefixLease lease;
  lease.index_ = this;
  lease.root_ = root;
  ++ledger_.leases;
  return lease;
}

PrefixLease PrefixIndex::Hold(const PrefixLease& lease, uint32_t offset) {
  assert(lease.index_ == this);
  PrefixLease held = Begin(lease.root_);
  const uint32_t node = FindOnPath(lease, offset);
  if (node == kNone) return held;
  if (Snapshot& snapshot = nodes_[node].snapshot; snapshot.object.present()) {
    if (snapshot.refs++ == 0) ++ledger_.snapshots_referenced;
    held.snapshot_node_ = node;
  }
  MoveLease(held, node);
  return held;
}

std::vector<PathUnit> PrefixIndex::UnitsOf(const PrefixLease& lease) const {
  assert(lease.index_ == this);
  std::vector<PathUnit> units(lease.depth_units_);
  for (uint32_t at = lease.node_; at != kNone && nodes_[at].parent != kNone;
       at = nodes_[at].parent) {
    units[nodes_[at].depth_units - 1] = {nodes_[at].key, TokensOf(at), nodes_[at].page.id};
  }
  return units;
}

std::optional<FinishedSnapshot> PrefixIndex::SnapshotOf(const PrefixLease& lease) const {
  assert(lease.index_ == this);
  if (lease.snapshot_node_ == kNone) return std::nullopt;
  const Node& node = nodes_[lease.snapshot_node_];
  return FinishedSnapshot{.snapshot = node.snapshot.object.id,
                          .offset = node.depth_units * config_.unit_tokens,
                          .absorbed_tokens = node.snapshot.absorbed_tokens,
                          .kind = node.snapshot.kind};
}

bool PrefixIndex::HasSnapshotAtEnd(const PrefixLease& lease) const {
  assert(lease.index_ == this);
  return lease.node_ != kNone && nodes_[lease.node_].snapshot.object.present();
}

uint32_t PrefixIndex::Discard(const UnitKey& key) {
  const auto found = by_key_.find(key);
  if (found == by_key_.end() || nodes_[found->second].parent == kNone) return 0;
  std::vector<uint32_t> subtree = {found->second};
  for (size_t i = 0; i < subtree.size(); ++i) {
    const std::vector<uint32_t>& children = nodes_[subtree[i]].children;
    subtree.insert(subtree.end(), children.begin(), children.end());
  }
  uint32_t discarded = 0;
  // Children stand behind their parents.
  std::ranges::reverse(subtree);
  for (const uint32_t node : subtree) {
    if (!PageMayGo(node)) continue;
    RemoveLeaf(node);
    ++discarded;
  }
  return discarded;
}

bool PrefixIndex::DiscardSnapshot(const UnitKey& key) {
  const auto found = by_key_.find(key);
  if (found == by_key_.end() || !SnapshotMayGo(found->second)) return false;
  DropSnapshot(found->second);
  return true;
}

}  // namespace quartet::coordinator
