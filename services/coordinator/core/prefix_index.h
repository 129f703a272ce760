#ifndef QUARTET_SERVICES_COORDINATOR_CORE_PREFIX_INDEX_H_
#define QUARTET_SERVICES_COORDINATOR_CORE_PREFIX_INDEX_H_

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "services/coordinator/core/eviction_order.h"
#include "services/coordinator/core/free_pool.h"
#include "services/coordinator/core/snapshot_plan.h"
#include "services/coordinator/core/types.h"
#include "services/coordinator/core/unit_key.h"

// The prefix cache's index: which beginnings of prompts lie in the workers' memory, who uses them,
// and what is given up when room is short. It holds numbers of pages and snapshots, never their
// contents.
//
// A tree over units of tokens (256). A node is one unit after all the units above it and owns
//   - one page: the unit's paged data. Every node has one, so a path never has holes.
//   - perhaps a snapshot: the state after exactly the node's depth in tokens, and with it the final
//     hidden state of the last of these tokens, which the drafter needs to go on from there.
// A prompt can be continued at the deepest node of its path that has a snapshot. At the top stands
// a root for each key domain (model, numerics, salt, adapter), without page or tokens: prompts of
// different domains never meet.
//
// Ownership. Pages and snapshots come from the pools of the core. What is published belongs to the
// index, is shared and not written again, and goes back to its pool by eviction. What is not
// published belongs to the sequence that took it. (One exception to the writing: the drafter's
// entry at the last position of a unit depends on the token behind it, so whoever goes on from
// there may write its own. Drafts are guesses; another text's entry costs acceptance and nothing
// else.)
//
// How the core uses it, for one sequence:
//   1. At admission: Acquire. The match's pages are the first entries of the page table, and its
//      snapshot is what the live state starts from. Acquire first, evict then: what is held cannot
//      be evicted, what was only matched can.
//   2. When the step that restored the snapshot has completed on all ranks: ReleaseSnapshot.
//   3. After each step that completed on all ranks: PublishUnit for each unit that is full of
//      final tokens, in order; then PublishSnapshot for each snapshot that the step exported.
//   4. At the end: PublishSnapshot or Promote for the turn's end, and Thin.
//   5. Private pages go to the pool, the lease is released. A cancelled sequence goes straight
//      here: what it published stays.
// A request that must not write to the cache skips 3 and 4.

namespace quartet::coordinator {

struct CachedObject {
  CacheTier tier = CacheTier::kAbsent;
  uint32_t id = 0;  // in the pool of its tier

  bool present() const { return tier != CacheTier::kAbsent; }
};

// There is an index for each tier that prefixes are kept in. Each is a whole tree by itself, so
// that a tier gives up what it likes; what lies in which other tier, nobody has to know. tiers.h
// moves paths between them.

struct PrefixIndexConfig {
  enum class Eviction {
    kValue,  // least expected saving per byte first
    kLru,    // longest unused first
  };
  CacheTier tier = CacheTier::kDevice;
  uint32_t unit_tokens = 256;  // = tokens of a page
  Eviction eviction = Eviction::kValue;
  TimeUs half_life_us = 600'000'000;  // after which a use counts half
  uint32_t watermark_percent = 90;    // of a pool, for EvictToWatermark
  uint64_t page_bytes = 0;            // on one rank, as snapshot_bytes; only their ratio counts
  uint64_t snapshot_bytes = 0;
};

// A prompt, and the names of its full units.
struct PrefixPath {
  UnitKey root;                     // of the key domain
  std::span<const UnitKey> keys;    // of the units of `tokens` that are full, from the first on
  std::span<const int32_t> tokens;  // the whole prompt
};

struct PrefixMatch {
  // Tokens that need not be computed: a multiple of the unit, below the length of the prompt, so
  // that there is always one token left to compute.
  uint32_t cached_tokens = 0;
  uint32_t snapshot = 0;        // the state after them; nothing if cached_tokens is 0
  std::vector<uint32_t> pages;  // of [0, cached_tokens)
  // Tokens that the prompt has in common with something in the index, short of its last one: what
  // snapshots at every token would save. Placeholders of images count as equal inside a unit.
  uint32_t shared_tokens = 0;
  // Where the prompt leaves an existing path behind the last snapshot of it: a snapshot there lets
  // the third visitor start where the second could not. 0 = none.
  uint32_t branch_point = 0;

  uint32_t lost_to_granularity() const { return shared_tokens - cached_tokens; }
};

// A unit on a path that somebody holds. Points into the index, valid as long as it is held.
struct PathUnit {
  UnitKey key;
  std::span<const int32_t> tokens;
  uint32_t page = 0;
};

class PrefixIndex;

// What a sequence holds in the index: the path from the root to a node, which then cannot be
// evicted, and at first the snapshot that it starts from. Publishing moves it down. Lives in the
// sequence and gives everything back when it dies; the index must outlive it.
class PrefixLease {
 public:
  PrefixLease() = default;  // holds nothing and cannot publish
  PrefixLease(PrefixLease&& other) noexcept { *this = std::move(other); }
  PrefixLease& operator=(PrefixLease&& other) noexcept;
  ~PrefixLease() { Release(); }

  // A second holder of the same path, without the snapshot: for a sequence that forks.
  PrefixLease Fork() const;
  // The snapshot has been copied into the live state.
  void ReleaseSnapshot();
  void Release();

  bool active() const { return index_ != nullptr; }
  bool holds_snapshot() const { return snapshot_node_ != kNone; }
  // The sequence's first pages, up to this number, belong to the index (but for those of units that
  // it has entered), the others to the sequence.
  uint32_t shared_units() const { return depth_units_; }
  const UnitKey& root() const { return root_; }

 private:
  friend class PrefixIndex;
  static constexpr uint32_t kNone = UINT32_MAX;

  PrefixIndex* index_ = nullptr;
  UnitKey root_;
  uint32_t node_ = kNone;  // kNone: still at the root
  uint32_t depth_units_ = 0;
  uint32_t snapshot_node_ = kNone;
  bool stopped_ = false;  // a unit could not be published, so none behind it can
};

struct PrefixHit {
  PrefixMatch match;
  PrefixLease lease;
};

struct UnitOutcome {
  enum class Kind {
    kPublished,  // the page belongs to the index now; the sequence goes on reading it
    // The unit was there: the page has gone back to the pool, and the sequence goes on with the
    // index's page instead, which its next plan must put into its page table in the old one's
    // place.
    kShared,
    kRefused,  // the page stays with the sequence
  };
  Kind kind = Kind::kRefused;
  uint32_t page = 0;  // what the sequence reads from now on
};

struct FinishedSnapshot {
  uint32_t snapshot = 0;
  uint32_t offset = 0;           // tokens after which it was planned
  uint32_t absorbed_tokens = 0;  // tokens that its state says it has absorbed
  SnapshotKind kind = SnapshotKind::kBoundary;
};

// In every case the snapshot belongs to the index from then on, which has given it back to the pool
// if it did not keep it.
enum class SnapshotOutcome {
  kPublished,
  kDuplicate,  // the node has one already
  kRefused,    // not the state of its place, or its place is not in the index
};

// Gauges, then counters since the start.
struct PrefixLedger {
  uint32_t pages = 0;                 // held by the index
  uint32_t pages_referenced = 0;      // on the path of a lease; all others can be had by EvictPages
  uint32_t snapshots = 0;             // held by the index
  uint32_t snapshots_referenced = 0;  // all others can be had by EvictSnapshots
  uint32_t leases = 0;

  uint64_t query_tokens = 0;  // prompts asked for by Acquire
  uint64_t hit_tokens = 0;
  uint64_t lost_to_granularity_tokens = 0;
  uint64_t units_published = 0;
  uint64_t units_shared = 0;   // were there already
  uint64_t units_refused = 0;  // not final, or behind a collision
  uint64_t collisions = 0;     // equal keys of different tokens
  uint64_t snapshots_published = 0;
  uint64_t snapshots_duplicate = 0;
  uint64_t snapshots_miscounted = 0;  // refused: absorbed count and place differ
  uint64_t snapshots_unplaced = 0;    // refused: the unit before them is not in the index
  uint64_t snapshots_thinned = 0;
  uint64_t pages_evicted = 0;
  uint64_t snapshots_evicted = 0;
};

// For tests and for whoever looks at the cache.
struct PrefixNodeView {
  CachedObject page;
  CachedObject snapshot;
  SnapshotKind kind = SnapshotKind::kBoundary;  // of the snapshot, as everything below
  uint32_t absorbed_tokens = 0;
  double aged_uses = 0;       // publication included
  uint64_t tokens_saved = 0;  // by hits on it
};

// Pure, as the whole core: no clock or thread; its memory is bounded by the size of the page pool.
// Not thread safe. Costs: Match and Acquire are linear in the units of the prompt. To publish or
// give up one object is logarithmic in the size of the cache, plus the units up to the snapshot
// above and, for the snapshot of an inner node, those below it down to the next ones.
class PrefixIndex {
 public:
  // The pools must outlive the index. Numbers of theirs that the index does not hold are not its
  // business.
  PrefixIndex(const PrefixIndexConfig& config, FreePool* pages, FreePool* snapshots);
  PrefixIndex(const PrefixIndex&) = delete;
  PrefixIndex& operator=(const PrefixIndex&) = delete;

  // What a prompt would find now. Holds nothing and counts nothing.
  PrefixMatch Match(const PrefixPath& path) const;

  // The same, held and counted. The lease is active also if nothing was found: publishing starts
  // from it.
  PrefixHit Acquire(const PrefixPath& path, TimeUs now);

  // Publishes the unit behind lease.shared_units(), read by the sequence from `page`.
  // committed_tokens: the length of the sequence's final text in the workers' state, up to and
  // including a stop position; a unit that reaches beyond it is refused.
  UnitOutcome PublishUnit(PrefixLease& lease, const UnitKey& key, std::span<const int32_t> tokens,
                          uint32_t page, uint32_t committed_tokens);

  // Whether the unit behind lease.shared_units() is in the index already.
  bool HasNext(const PrefixLease& lease, const UnitKey& key, std::span<const int32_t> tokens) const;

  // If the unit behind lease.shared_units() is in the index already, moves the lease behind it and
  // says so: for a sequence that has absorbed it too and keeps reading its own page, which stays
  // its own.
  bool Enter(PrefixLease& lease, const UnitKey& key, std::span<const int32_t> tokens);

  // Publishes a snapshot on the lease's path, whose units up to `offset` were published before. The
  // state's own count decides whether it belongs there, not where it was planned.
  SnapshotOutcome PublishSnapshot(const PrefixLease& lease, const FinishedSnapshot& snapshot,
                                  TimeUs now);

  // Raises the kind of a snapshot on the lease's path; nothing happens if there is none. For a turn
  // that ends at a boundary which was published when it was passed.
  void Promote(const PrefixLease& lease, uint32_t offset, SnapshotKind kind);

  // For whoever copies paths from one index to another (prefix_tiers.cc).
  //
  // A lease that holds nothing yet; publishing starts from it.
  PrefixLease Begin(const UnitKey& root);
  // A second holder of the path's first `offset` tokens, and of the snapshot there if there is one.
  PrefixLease Hold(const PrefixLease& lease, uint32_t offset);
  // The units of the path, in order.
  std::vector<PathUnit> UnitsOf(const PrefixLease& lease) const;
  // The snapshot that the lease holds.
  std::optional<FinishedSnapshot> SnapshotOf(const PrefixLease& lease) const;
  bool HasSnapshotAtEnd(const PrefixLease& lease) const;
  // Gives up the unit of this name and all units behind it, as far as nobody holds them; says how
  // many pages went. For units whose contents turned out to be damaged.
  uint32_t Discard(const UnitKey& key);
  // The same for the snapshot after this unit alone; false if there is none or somebody holds it.
  bool DiscardSnapshot(const UnitKey& key);

  // Gives up snapshots along the lease's path by SnapshotsToThin, where a node with several
  // continuations counts as a branch point. What is in use stays. Returns how many went.
  uint32_t Thin(const PrefixLease& lease, const SnapshotPolicy& policy);

  // Gives up to n pages or snapshots back to the pool and says how many. A page can go if no unit
  // follows it and no lease ends at it; its snapshot goes with it, being useless without. A
  // snapshot can go while its page stays, unless a lease still starts from it. Policies only order
  // what may go.
  uint32_t EvictPages(uint32_t n);
  uint32_t EvictSnapshots(uint32_t n);
  // Both, until the pools are no fuller than the watermark or nothing more can go. For the time
  // between steps.
  void EvictToWatermark();

  PrefixLedger GetLedger() const;
  // The node that this path of full units leads to.
  std::optional<PrefixNodeView> Find(const PrefixPath& path, TimeUs now) const;
  // Walks everything and says what does not add up; empty if all is well. Linear in the cache.
  std::string CheckInvariants() const;

 private:
  friend class PrefixLease;
  static constexpr uint32_t kNone = PrefixLease::kNone;

  struct Snapshot {
    CachedObject object;
    uint32_t absorbed_tokens = 0;
    SnapshotKind kind = SnapshotKind::kBoundary;
    uint32_t refs = 0;  // restores in flight
    uint64_t last_use = 0;
    // log2 of the sum over uses of 2^(time / half-life). All counts age alike, so that their order
    // never changes by time alone and needs no clock.
    double log2_uses = -std::numeric_limits<double>::infinity();
    uint64_t tokens_saved = 0;
  };

  struct Node {
    UnitKey key;
    uint32_t parent = kNone;  // kNone: a root
    uint32_t depth_units = 0;
    std::vector<uint32_t> children;  // in order of tokens, then keys
    CachedObject page;
    uint32_t refs = 0;      // leases that end here
    uint32_t busy = 0;      // those, and children that are busy; above 0 = on the path of a lease
    uint64_t last_use = 0;  // of this node, or of one below it that is gone
    Snapshot snapshot;
  };

  struct Walk {
    uint32_t deepest = kNone;
    uint32_t hit = kNone;
  };

  // The tree.
  std::span<const int32_t> TokensOf(uint32_t node) const;
  uint32_t FindRoot(const UnitKey& key) const;
  uint32_t FindChild(uint32_t parent, const UnitKey& key, std::span<const int32_t> tokens) const;
  uint32_t FindNext(const PrefixLease& lease, const UnitKey& key,
                    std::span<const int32_t> tokens) const;
  uint32_t FindOnPath(const PrefixLease& lease, uint32_t offset) const;
  Walk Follow(const PrefixPath& path) const;
  PrefixMatch Describe(const PrefixPath& path, const Walk& walk) const;
  uint32_t SharedInUnit(uint32_t parent, std::span<const int32_t> tokens) const;
  std::vector<uint32_t>::iterator ChildPlace(uint32_t parent, uint32_t child);
  uint32_t AddNode(const UnitKey& key, uint32_t parent, std::span<const int32_t> tokens);
  void RemoveLeaf(uint32_t node);
  void DropSnapshot(uint32_t node);

  // References.
  void Pin(uint32_t node);
  void Unpin(uint32_t node);
  void MoveLease(PrefixLease& lease, uint32_t node);
  void Release(PrefixLease& lease);
  void ReleaseSnapshot(PrefixLease& lease);

  // Eviction.
  void Use(Snapshot& snapshot, TimeUs now);
  bool PageMayGo(uint32_t node) const;
  bool SnapshotMayGo(uint32_t node) const;
  uint32_t UnitsToSnapshotAbove(uint32_t node) const;
  double ExpectedSaving(uint32_t node, uint32_t units) const;
  EvictionOrder::Rank PageRank(uint32_t node) const;
  EvictionOrder::Rank SnapshotRank(uint32_t node) const;
  void Requeue(uint32_t node);
  void RequeueBelow(uint32_t node);

  std::string CheckNode(uint32_t node) const;

  const PrefixIndexConfig config_;
  FreePool* const pages_;
  FreePool* const snapshots_;

  std::vector<Node> nodes_;
  FreePool node_places_;
  std::unique_ptr<int32_t[]> tokens_;  // unit_tokens of each node
  absl::flat_hash_map<UnitKey, uint32_t> by_key_;
  EvictionOrder page_order_;      // exactly the nodes whose page may go
  EvictionOrder snapshot_order_;  // exactly the nodes whose snapshot may go
  uint64_t next_use_ = 1;
  std::vector<uint32_t> to_visit_;  // of RequeueBelow

  uint64_t leases_at_nodes_ = 0;
  PrefixLedger ledger_;
};

}  // namespace quartet::coordinator

#endif  // QUARTET_SERVICES_COORDINATOR_CORE_PREFIX_INDEX_H_
