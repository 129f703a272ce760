#include <cmath>
#include <string>
#include <vector>

#include "services/coordinator/core/prefix_index.h"

// What the prefix index says of itself: for the ledger, for tests, for whoever looks at it.

namespace quartet::coordinator {
namespace {

std::string Num(uint64_t value) {
  return std::to_string(value);
}

}  // namespace

PrefixLedger PrefixIndex::GetLedger() const {
  return ledger_;
}

std::optional<PrefixNodeView> PrefixIndex::Find(const PrefixPath& path, TimeUs now) const {
  const uint32_t at = Follow(path).deepest;
  if (at == kNone || nodes_[at].depth_units == 0 ||
      uint64_t{nodes_[at].depth_units} * config_.unit_tokens != path.tokens.size()) {
    return std::nullopt;
  }
  const Node& node = nodes_[at];
  const double half_lives = static_cast<double>(now) / static_cast<double>(config_.half_life_us);
  return PrefixNodeView{node.page,
                        node.snapshot.object,
                        node.snapshot.kind,
                        node.snapshot.absorbed_tokens,
                        std::exp2(node.snapshot.log2_uses - half_lives),
                        node.snapshot.tokens_saved};
}

std::string PrefixIndex::CheckNode(uint32_t at) const {
  const Node& node = nodes_[at];
  const std::string name = "node " + Num(at);
  const auto named = by_key_.find(node.key);
  if (named == by_key_.end() || named->second != at) return name + " is not found by its key";
  const bool is_root = node.parent == kNone;
  if (is_root) {
    if (node.children.empty()) return name + " is a root without a unit";
    if (node.depth_units != 0) return name + " is a root and not at depth 0";
    if (node.page.present() || node.snapshot.object.present() || node.refs != 0) {
      return name + " is a root and holds or is held";
    }
  } else {
    if (!node.page.present()) return name + " has no page";
    if (!pages_->IsTaken(node.page.id)) return "page " + Num(node.page.id) + " is cached and free";
    if (node.depth_units != nodes_[node.parent].depth_units + 1) {
      return name + " is not one unit below its parent";
    }
  }
  uint32_t busy = node.refs;
  for (uint32_t child : node.children) {
    if (!node_places_.IsTaken(child) || nodes_[child].parent != at) {
      return name + " has child " + Num(child) + ", which does not know it";
    }
    if (nodes_[child].busy > 0) ++busy;
  }
  if (busy != node.busy) return name + " counts " + Num(node.busy) + " users of " + Num(busy);

  const Snapshot& snapshot = node.snapshot;
  if (snapshot.object.present()) {
    if (!snapshots_->IsTaken(snapshot.object.id)) {
      return "snapshot " + Num(snapshot.object.id) + " is cached and free";
    }
    if (snapshot.absorbed_tokens != node.depth_units * config_.unit_tokens) {
      return name + " is " + Num(node.depth_units) + " units deep, its snapshot has absorbed " +
             Num(snapshot.absorbed_tokens) + " tokens";
    }
  }
  if (snapshot.refs > 0 && (!snapshot.object.present() || node.busy == 0)) {
    return name + " has a snapshot in use that is not there or not on the path of a lease";
  }

  if (page_order_.Contains(at) != PageMayGo(at)) return name + ": wrong about its page may go";
  if (snapshot_order_.Contains(at) != SnapshotMayGo(at)) {
    return name + ": wrong about its snapshot may go";
  }
  if (page_order_.Contains(at) && page_order_.rank(at) != PageRank(at)) {
    return name + ": its page has an old rank";
  }
  if (snapshot_order_.Contains(at) && snapshot_order_.rank(at) != SnapshotRank(at)) {
    return name + ": its snapshot has an old rank";
  }
  return "";
}

std::string PrefixIndex::CheckInvariants() const {
  PrefixLedger counted;
  std::vector<bool> page_seen(pages_->size(), false);
  std::vector<bool> snapshot_seen(snapshots_->size(), false);
  uint64_t refs = 0, children = 0, inner = 0;
  for (uint32_t at = 0; at < nodes_.size(); ++at) {
    if (!node_places_.IsTaken(at)) continue;
    if (std::string error = CheckNode(at); !error.empty()) return error;
    const Node& node = nodes_[at];
    refs += node.refs;
    children += node.children.size();
    if (node.parent == kNone) continue;
    ++inner;
    if (page_seen[node.page.id]) return "page " + Num(node.page.id) + " is cached twice";
    page_seen[node.page.id] = true;
    ++counted.pages;
    if (node.busy > 0) ++counted.pages_referenced;
    if (!node.snapshot.object.present()) continue;
    const uint32_t snapshot = node.snapshot.object.id;
    if (snapshot_seen[snapshot]) return "snapshot " + Num(snapshot) + " is cached twice";
    snapshot_seen[snapshot] = true;
    ++counted.snapshots;
    if (node.snapshot.refs > 0) ++counted.snapshots_referenced;
  }
  if (children != inner) return Num(inner) + " nodes have a parent, " + Num(children) + " a place";
  if (by_key_.size() != node_places_.used()) {
    return Num(node_places_.used()) + " nodes have " + Num(by_key_.size()) + " keys";
  }
  if (refs != leases_at_nodes_ || leases_at_nodes_ > ledger_.leases) {
    return Num(ledger_.leases) + " leases, " + Num(leases_at_nodes_) + " of them at nodes, hold " +
           Num(refs) + " references";
  }
  const auto differs = [](const char* what, uint32_t kept, uint32_t found) {
    return kept == found ? "" : Num(kept) + " " + what + " are counted, " + Num(found) + " found";
  };
  for (const std::string& error :
       {std::string(differs("pages", ledger_.pages, counted.pages)),
        std::string(differs("pages in use", ledger_.pages_referenced, counted.pages_referenced)),
        std::string(differs("snapshots", ledger_.snapshots, counted.snapshots)),
        std::string(differs("snapshots in use", ledger_.snapshots_referenced,
                            counted.snapshots_referenced))}) {
    if (!error.empty()) return error;
  }
  return "";
}

}  // namespace quartet::coordinator
