#ifndef QUARTET_TESTS_UNIT_COORDINATOR_PREFIX_HARNESS_H_
#define QUARTET_TESTS_UNIT_COORDINATOR_PREFIX_HARNESS_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "services/coordinator/core/prefix_index.h"

namespace quartet::coordinator {

// A prefix index with pools and a model whose state is a running hash of the tokens absorbed: what
// the workers would hold in each page and snapshot is known, so that a page or state under a wrong
// name shows at once.
class PrefixHarness {
 public:
  struct Sequence {
    std::vector<int32_t> tokens;
    UnitKey root;
    PrefixMatch match;
    PrefixLease lease;
    std::vector<uint32_t> pages;
    uint32_t absorbed = 0;
    bool publishes = true;
  };

  PrefixHarness(const PrefixIndexConfig& config, uint32_t n_pages, uint32_t n_snapshots)
      : config(config),
        pages(n_pages),
        snapshots(n_snapshots),
        index(config, &pages, &snapshots),
        page_holds_(n_pages, 0),
        snapshot_holds_(n_snapshots, 0) {
    policy.unit_tokens = config.unit_tokens;
    policy.block_tokens = 9 * config.unit_tokens;
  }

  // Bytes as at a tensor-parallel size of 4: 6,540 a token, 35.2 MiB a snapshot.
  static PrefixIndexConfig Config(uint32_t unit_tokens = 256) {
    PrefixIndexConfig config;
    config.unit_tokens = unit_tokens;
    config.page_bytes = 256 * 6540;
    config.snapshot_bytes = 36'909'875;
    return config;
  }

  static UnitKey Root(uint64_t domain = 0) { return {~uint64_t{0}, domain}; }

  // n tokens that no other salt has in the same places.
  static std::vector<int32_t> Text(size_t n, int32_t salt = 0) {
    std::vector<int32_t> text(n);
    for (size_t i = 0; i < n; ++i) {
      text[i] = static_cast<int32_t>(i * 31 % 997) + 1000 * (salt + 1);
    }
    return text;
  }

  static std::vector<int32_t> Join(std::vector<int32_t> head, const std::vector<int32_t>& tail) {
    head.insert(head.end(), tail.begin(), tail.end());
    return head;
  }

  // The model's state, and the content of the page that ends there.
  static uint64_t StateAfter(const UnitKey& root, std::span<const int32_t> tokens) {
    uint64_t state = Mix(root.low ^ Mix(root.high));
    for (int32_t token : tokens) state = Mix(state ^ static_cast<uint64_t>(token));
    return state;
  }

  std::vector<UnitKey> Keys(const UnitKey& root, std::span<const int32_t> tokens) const {
    std::vector<UnitKey> keys;
    for (size_t end = config.unit_tokens; end <= tokens.size(); end += config.unit_tokens) {
      const uint64_t state = StateAfter(root, tokens.first(end));
      keys.push_back({Mix(state) % key_space, Mix(state + 1) % key_space});
    }
    return keys;
  }

  PrefixMatch Match(const std::vector<int32_t>& tokens, const UnitKey& root = Root()) const {
    const std::vector<UnitKey> keys = Keys(root, tokens);
    return index.Match({root, keys, tokens});
  }

  std::optional<PrefixNodeView> Find(const std::vector<int32_t>& tokens,
                                     const UnitKey& root = Root()) const {
    const std::vector<UnitKey> keys = Keys(root, tokens);
    return index.Find({root, keys, tokens}, now);
  }

  Sequence Start(std::vector<int32_t> tokens, const UnitKey& root = Root()) {
    Sequence sequence;
    sequence.tokens = std::move(tokens);
    sequence.root = root;
    const std::vector<UnitKey> keys = Keys(root, sequence.tokens);
    PrefixHit hit = index.Acquire({root, keys, sequence.tokens}, now);
    sequence.match = std::move(hit.match);
    sequence.lease = std::move(hit.lease);
    sequence.pages = sequence.match.pages;
    sequence.absorbed = sequence.match.cached_tokens;
    if (sequence.absorbed > 0) {
      EXPECT_LT(sequence.absorbed, sequence.tokens.size());
      EXPECT_EQ(snapshot_holds_[sequence.match.snapshot],
                StateAfter(root, std::span(sequence.tokens).first(sequence.absorbed)))
          << "the hit's state is not that of its tokens";
    }
    CheckPages(sequence);
    return sequence;
  }

  // Each page that the sequence reads holds what it should.
  void CheckPages(const Sequence& sequence) const {
    for (size_t unit = 0; unit < sequence.pages.size(); ++unit) {
      const size_t end = (unit + 1) * config.unit_tokens;
      if (end > sequence.absorbed) break;
      ASSERT_EQ(page_holds_[sequence.pages[unit]],
                StateAfter(sequence.root, std::span(sequence.tokens).first(end)))
          << "page " << sequence.pages[unit] << " as unit " << unit;
    }
  }

  // Pages for tokens up to `end`; false if that does not work even with eviction.
  bool Grow(Sequence& sequence, uint32_t end) {
    while (sequence.pages.size() * config.unit_tokens < end) {
      if (pages.free() == 0 && index.EvictPages(1) == 0) return false;
      sequence.pages.push_back(*pages.Take());
    }
    return true;
  }

  // A step: absorbs the tokens up to `end`, publishes full units and what `marks` ask for. Without
  // room for a snapshot it is left out.
  bool Step(Sequence& sequence, uint32_t end, const std::vector<SnapshotMark>& marks) {
    if (!Grow(sequence, end)) return false;
    for (uint32_t unit = sequence.absorbed / config.unit_tokens;
         (unit + 1) * config.unit_tokens <= end; ++unit) {
      page_holds_[sequence.pages[unit]] = StateAfter(
          sequence.root, std::span(sequence.tokens).first((unit + 1) * config.unit_tokens));
    }
    sequence.absorbed = end;
    sequence.lease.ReleaseSnapshot();
    if (!sequence.publishes) return true;
    PublishUnits(sequence, end);
    for (const SnapshotMark& mark : marks) PublishState(sequence, mark, mark.offset);
    return true;
  }

  // All units that are full within the first `committed` tokens.
  void PublishUnits(Sequence& sequence, uint32_t committed) {
    const std::vector<UnitKey> keys =
        Keys(sequence.root, std::span(sequence.tokens).first(committed));
    for (uint32_t unit = sequence.lease.shared_units(); unit < keys.size(); ++unit) {
      const auto tokens =
          std::span(sequence.tokens).subspan(size_t{unit} * config.unit_tokens, config.unit_tokens);
      const UnitOutcome outcome =
          index.PublishUnit(sequence.lease, keys[unit], tokens, sequence.pages[unit], committed);
      if (outcome.kind == UnitOutcome::Kind::kRefused) break;
      sequence.pages[unit] = outcome.page;
    }
  }

  // Publishes a state of `absorbed` tokens under a mark.
  std::optional<SnapshotOutcome> PublishState(Sequence& sequence, const SnapshotMark& mark,
                                              uint32_t absorbed) {
    if (snapshots.free() == 0 && index.EvictSnapshots(1) == 0) return std::nullopt;
    const uint32_t snapshot = *snapshots.Take();
    snapshot_holds_[snapshot] =
        StateAfter(sequence.root, std::span(sequence.tokens).first(absorbed));
    return index.PublishSnapshot(sequence.lease, {snapshot, mark.offset, absorbed, mark.kind}, now);
  }

  // The whole prompt in one step, with the snapshots that the policy asks for.
  bool Prefill(Sequence& sequence, uint32_t system_prefix = 0) {
    const auto end = static_cast<uint32_t>(sequence.tokens.size());
    const PromptMarks marks{end, sequence.match.cached_tokens, sequence.match.branch_point,
                            system_prefix};
    return Step(sequence, end, PrefillSnapshots(policy, marks, sequence.absorbed, end));
  }

  // The sequence ends: what it published stays, the rest goes back.
  void End(Sequence& sequence) {
    for (size_t unit = sequence.lease.shared_units(); unit < sequence.pages.size(); ++unit) {
      pages.Return(sequence.pages[unit]);
    }
    sequence.pages.clear();
    sequence.lease.Release();
  }

  // One request from start to end; returns its cached tokens.
  uint32_t Serve(const std::vector<int32_t>& prompt, uint32_t system_prefix = 0,
                 const UnitKey& root = Root()) {
    Sequence sequence = Start(prompt, root);
    EXPECT_TRUE(Prefill(sequence, system_prefix));
    End(sequence);
    EXPECT_EQ(index.CheckInvariants(), "");
    return sequence.match.cached_tokens;
  }

  // Nobody runs: all that is taken is cached, and all of it could be had.
  void ExpectIdle() const {
    const PrefixLedger ledger = index.GetLedger();
    EXPECT_EQ(index.CheckInvariants(), "");
    EXPECT_EQ(pages.used(), ledger.pages);
    EXPECT_EQ(snapshots.used(), ledger.snapshots);
    EXPECT_EQ(ledger.pages_referenced, 0u);
    EXPECT_EQ(ledger.snapshots_referenced, 0u);
    EXPECT_EQ(ledger.leases, 0u);
  }

  // The same, and everything goes.
  void ExpectEmptyAfterEviction() {
    ExpectIdle();
    const uint32_t cached = index.GetLedger().pages;
    EXPECT_EQ(index.EvictPages(UINT32_MAX), cached);
    EXPECT_EQ(pages.used(), 0u);
    EXPECT_EQ(snapshots.used(), 0u);
    EXPECT_EQ(index.CheckInvariants(), "");
  }

  const PrefixIndexConfig config;
  SnapshotPolicy policy;
  FreePool pages;
  FreePool snapshots;
  PrefixIndex index;
  TimeUs now = 1'000'000;
  uint64_t key_space = UINT64_MAX;  // small: keys collide

 private:
  static uint64_t Mix(uint64_t x) {
    x += 0x9e3779b97f4a7c15;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
    return x ^ (x >> 31);
  }

  std::vector<uint64_t> page_holds_;
  std::vector<uint64_t> snapshot_holds_;
};

}  // namespace quartet::coordinator

#endif  // QUARTET_TESTS_UNIT_COORDINATOR_PREFIX_HARNESS_H_
