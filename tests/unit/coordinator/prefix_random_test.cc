#include <gmock/gmock.h>

#include <cmath>
#include <limits>
#include <list>
#include <map>
#include <random>
#include <string>

#include "tests/unit/coordinator/prefix_harness.h"

// Random lives of random texts over two letters, so that everything is shared with something,
// against a plain oracle: a map of whole prefixes. A seed that fails names itself.

namespace quartet::coordinator {
namespace {

using Eviction = PrefixIndexConfig::Eviction;
using Tokens = std::vector<int32_t>;
using Sequence = PrefixHarness::Sequence;

constexpr uint32_t kUnit = 4;

// What is cached, said in the plainest way: each prefix of whole units stands for itself.
class Oracle {
 public:
  struct Snapshot {
    uint32_t id = 0;
    SnapshotKind kind = SnapshotKind::kBoundary;
    std::vector<TimeUs> uses;
    uint64_t last_use = 0;
  };
  struct Entry {
    uint32_t page = 0;
    uint64_t last_use = 0;
    std::optional<Snapshot> snapshot;
  };
  using Name = std::pair<uint64_t, Tokens>;  // domain, tokens from the start

  static bool Extends(const Tokens& longer, const Tokens& prefix) {
    return longer.size() >= prefix.size() &&
           std::equal(prefix.begin(), prefix.end(), longer.begin());
  }

  PrefixMatch Match(uint64_t domain, const Tokens& prompt) const {
    PrefixMatch match;
    uint32_t whole_units = 0;
    for (const auto& [name, entry] : entries) {
      if (name.first != domain) continue;
      const auto shared =
          static_cast<uint32_t>(std::ranges::mismatch(name.second, prompt).in2 - prompt.begin());
      match.shared_tokens = std::max(match.shared_tokens, shared);
      if (shared < name.second.size()) continue;
      whole_units = std::max(whole_units, shared);
      if (shared < prompt.size() && entry.snapshot.has_value() && shared > match.cached_tokens) {
        match.cached_tokens = shared;
        match.snapshot = entry.snapshot->id;
      }
    }
    const auto last = static_cast<uint32_t>(prompt.size()) - 1;
    match.shared_tokens = std::min(match.shared_tokens, last);
    for (uint32_t end = kUnit; end <= match.cached_tokens; end += kUnit) {
      match.pages.push_back(At(domain, prompt, end).page);
    }
    if (whole_units > match.cached_tokens && whole_units + kUnit <= last) {
      match.branch_point = whole_units;
    }
    return match;
  }

  Entry& At(uint64_t domain, const Tokens& tokens, uint32_t end) {
    return entries.at({domain, Tokens(tokens.begin(), tokens.begin() + end)});
  }
  const Entry& At(uint64_t domain, const Tokens& tokens, uint32_t end) const {
    return entries.at({domain, Tokens(tokens.begin(), tokens.begin() + end)});
  }

  // A use of a text is a use of everything in it.
  void Touch(uint64_t domain, const Tokens& tokens, uint32_t end) {
    ++serial;
    for (uint32_t unit = kUnit; unit <= end; unit += kUnit) {
      At(domain, tokens, unit).last_use = serial;
    }
  }

  uint32_t SavedTokens(const Name& name) const {
    for (size_t end = name.second.size() - kUnit; end > 0; end -= kUnit) {
      const Entry& above =
          entries.at({name.first, Tokens(name.second.begin(), name.second.begin() + end)});
      if (above.snapshot.has_value()) return static_cast<uint32_t>(name.second.size() - end);
    }
    return static_cast<uint32_t>(name.second.size());
  }

  // log2 of expected tokens saved per byte, as if it were `now`.
  double Value(const Name& name, const PrefixIndexConfig& config, TimeUs now, bool of_page) const {
    const Entry& entry = entries.at(name);
    if (!entry.snapshot.has_value()) return -std::numeric_limits<double>::infinity();
    double uses = 0;
    for (TimeUs use : entry.snapshot->uses) {
      uses += std::pow(0.5, static_cast<double>(now - use) / double(config.half_life_us));
    }
    const double weight = entry.snapshot->kind == SnapshotKind::kBoundary       ? 1
                          : entry.snapshot->kind == SnapshotKind::kSystemPrefix ? 16
                                                                                : 4;
    const double saved = SavedTokens(name);
    const double bytes = static_cast<double>(config.snapshot_bytes) +
                         (of_page ? saved / kUnit * static_cast<double>(config.page_bytes) : 0);
    return std::log2(uses * weight * saved / bytes);
  }

  std::map<Name, Entry> entries;
  uint64_t serial = 0;
};

class World {
 public:
  World(uint64_t seed, Eviction eviction)
      : random_(seed), cache_(Config(eviction), Pick(12, 160), Pick(3, 60)) {
    cache_.policy.block_tokens = 3 * kUnit;
  }

  void Run(int events) {
    for (int event = 0; event < events && !::testing::Test::HasFailure(); ++event) {
      SCOPED_TRACE("event " + std::to_string(event));
      cache_.now += Pick(0, 3) == 0 ? Pick(0, 400'000'000) : 1000;
      const uint32_t kind = Pick(0, 99);
      if (kind < 18) {
        StartOne();
      } else if (kind < 64) {
        StepOne();
      } else if (kind < 74) {
        EndOne();
      } else if (kind < 83) {
        EvictPage();
      } else if (kind < 91) {
        EvictSnapshot();
      } else if (kind < 93) {
        cache_.index.EvictToWatermark();
        Sync();
        ExpectNoFullerThan(cache_.pages, cache_.index.GetLedger().pages -
                                             cache_.index.GetLedger().pages_referenced);
      } else if (kind < 97) {
        ThinOne();
      } else if (kind < 98) {
        // All that nobody reads can be had, and no more.
        cache_.index.EvictPages(UINT32_MAX);
        Sync();
        EXPECT_EQ(cache_.index.GetLedger().pages, cache_.index.GetLedger().pages_referenced);
      } else {
        ForkOne();
      }
      Check();
    }
    while (!live_.empty()) End(live_.begin());
    forks_.clear();
    cache_.ExpectEmptyAfterEviction();
  }

  PrefixLedger ledger() const { return cache_.index.GetLedger(); }

 private:
  using Live = std::list<Sequence>::iterator;

  static PrefixIndexConfig Config(Eviction eviction) {
    PrefixIndexConfig config = PrefixHarness::Config(kUnit);
    config.eviction = eviction;
    return config;
  }

  uint32_t Pick(uint32_t low, uint32_t high) {
    return std::uniform_int_distribution<uint32_t>(low, high)(random_);
  }
  Tokens Letters(uint32_t n) {
    Tokens letters(n);
    // Mostly the same letter: texts part late.
    for (int32_t& letter : letters) letter = Pick(0, 11) == 0;
    return letters;
  }
  Live PickLive() {
    Live live = live_.begin();
    std::advance(live, Pick(0, static_cast<uint32_t>(live_.size()) - 1));
    return live;
  }
  static uint64_t Domain(const Sequence& sequence) { return sequence.root.low; }

  void StartOne() {
    if (live_.size() >= 5) return;
    const uint64_t domain = Pick(0, 3) == 0;
    const Tokens prompt = Letters(Pick(1, 60));
    const PrefixMatch expected = oracle_.Match(domain, prompt);
    live_.push_back(cache_.Start(prompt, PrefixHarness::Root(domain)));
    const PrefixMatch& match = live_.back().match;
    EXPECT_EQ(match.cached_tokens, expected.cached_tokens);
    EXPECT_EQ(match.shared_tokens, expected.shared_tokens);
    EXPECT_EQ(match.branch_point, expected.branch_point);
    EXPECT_EQ(match.pages, expected.pages);
    queries_ += prompt.size();
    hits_ += expected.cached_tokens;
    lost_ += expected.shared_tokens - expected.cached_tokens;
    if (expected.cached_tokens == 0) return;
    EXPECT_EQ(match.snapshot, expected.snapshot);
    oracle_.Touch(domain, prompt, expected.cached_tokens);
    Oracle::Snapshot& snapshot = *oracle_.At(domain, prompt, expected.cached_tokens).snapshot;
    snapshot.uses.push_back(cache_.now);
    snapshot.last_use = ++oracle_.serial;
  }

  void StepOne() {
    if (live_.empty()) return;
    Sequence& sequence = *PickLive();
    if (sequence.absorbed == sequence.tokens.size() && sequence.tokens.size() < 120) {
      const Tokens more = Letters(Pick(1, 24));
      sequence.tokens.insert(sequence.tokens.end(), more.begin(), more.end());
    }
    const auto size = static_cast<uint32_t>(sequence.tokens.size());
    const uint32_t end = std::min(size, sequence.absorbed + Pick(1, 20));
    const size_t needed = (end + kUnit - 1) / kUnit;
    while (cache_.pages.free() + sequence.pages.size() < needed) {
      if (!EvictPage()) return;  // everything is in use: it waits
    }
    const uint32_t published = sequence.lease.shared_units();
    ASSERT_TRUE(cache_.Step(sequence, end, {}));
    ASSERT_EQ(sequence.lease.shared_units(), end / kUnit);
    for (uint32_t unit = published; unit < end / kUnit; ++unit) {
      const Oracle::Name name = {
          Domain(sequence),
          Tokens(sequence.tokens.begin(), sequence.tokens.begin() + (unit + 1) * kUnit)};
      const auto [entry, added] = oracle_.entries.try_emplace(name);
      if (added) entry->second.page = sequence.pages[unit];
      EXPECT_EQ(sequence.pages[unit], entry->second.page) << "goes on with the shared page";
      oracle_.Touch(Domain(sequence), sequence.tokens, (unit + 1) * kUnit);
    }
    const uint32_t snapshots = Pick(0, 5);
    for (uint32_t i = 0; i < snapshots; ++i) PublishState(sequence);
  }

  void PublishState(Sequence& sequence) {
    if (cache_.snapshots.free() == 0 && !EvictSnapshot()) return;
    SnapshotMark mark;
    mark.offset = Pick(0, sequence.absorbed / kUnit + 1) * kUnit;
    mark.kind = Pick(0, 2) == 0 ? static_cast<SnapshotKind>(Pick(0, 3)) : SnapshotKind::kBoundary;
    const uint32_t absorbed =
        std::min(Pick(0, 4) == 0 ? Pick(0, sequence.absorbed) : mark.offset, sequence.absorbed);
    const auto outcome = cache_.PublishState(sequence, mark, absorbed);
    if (mark.offset == 0 || mark.offset > sequence.absorbed || absorbed != mark.offset) {
      EXPECT_EQ(outcome, SnapshotOutcome::kRefused);
      return;
    }
    auto& snapshot = oracle_.At(Domain(sequence), sequence.tokens, mark.offset).snapshot;
    if (snapshot.has_value()) {
      EXPECT_EQ(outcome, SnapshotOutcome::kDuplicate);
      snapshot->kind = std::max(snapshot->kind, mark.kind);
      return;
    }
    EXPECT_EQ(outcome, SnapshotOutcome::kPublished);
    const Tokens text(sequence.tokens.begin(), sequence.tokens.begin() + mark.offset);
    const auto node = cache_.Find(text, sequence.root);
    ASSERT_TRUE(node.has_value());
    snapshot = Oracle::Snapshot{node->snapshot.id, mark.kind, {cache_.now}, ++oracle_.serial};
  }

  void EndOne() {
    if (!forks_.empty() && Pick(0, 1) == 0) {
      forks_.pop_front();
    } else if (!live_.empty()) {
      End(PickLive());
    }
  }
  void End(Live live) {
    cache_.End(*live);
    live_.erase(live);
  }

  void ForkOne() {
    if (live_.empty() || forks_.size() >= 3) return;
    const Sequence& sequence = *PickLive();
    const uint32_t shared = sequence.lease.shared_units() * kUnit;
    const Oracle::Name held = {Domain(sequence),
                               Tokens(sequence.tokens.begin(), sequence.tokens.begin() + shared)};
    forks_.emplace_back(held, sequence.lease.Fork());
  }

  void ThinOne() {
    if (live_.empty()) return;
    const uint32_t before = cache_.snapshots.used();
    const uint32_t thinned = cache_.index.Thin(PickLive()->lease, cache_.policy);
    EXPECT_EQ(cache_.snapshots.used(), before - thinned);
    Sync();
  }

  // ---- what may go ---------------------------------------------------------------------------

  bool Read(const Oracle::Name& name) const {  // by anybody
    const auto reads = [&](uint64_t domain, const Tokens& tokens, size_t shared) {
      return domain == name.first && shared >= name.second.size() &&
             Oracle::Extends(tokens, name.second);
    };
    for (const Sequence& sequence : live_) {
      const size_t shared = sequence.lease.shared_units() * kUnit;
      if (reads(Domain(sequence), sequence.tokens, shared)) return true;
    }
    for (const auto& [held, lease] : forks_) {
      if (reads(held.first, held.second, held.second.size())) return true;
    }
    return false;
  }
  bool Restored(const Oracle::Name& name) const {
    for (const Sequence& sequence : live_) {
      if (sequence.lease.holds_snapshot() && Domain(sequence) == name.first &&
          sequence.match.cached_tokens == name.second.size() &&
          Oracle::Extends(sequence.tokens, name.second)) {
        return true;
      }
    }
    return false;
  }
  bool PageMayGo(const Oracle::Name& name) const {
    if (Read(name)) return false;
    const auto next = std::next(oracle_.entries.find(name));  // in order, longer ones come next
    return next == oracle_.entries.end() || next->first.first != name.first ||
           !Oracle::Extends(next->first.second, name.second);
  }
  bool SnapshotMayGo(const Oracle::Name& name) const {
    return oracle_.entries.at(name).snapshot.has_value() && !Restored(name);
  }

  // The first of the candidates by the policy, and whatever is as good as it but for rounding.
  template <typename MayGo, typename LastUse>
  std::vector<Oracle::Name> Best(bool of_page, MayGo may_go, LastUse last_use) const {
    std::vector<std::pair<double, Oracle::Name>> candidates;
    for (const auto& [name, entry] : oracle_.entries) {
      if (!may_go(name)) continue;
      const bool lru = cache_.config.eviction == Eviction::kLru;
      candidates.push_back(
          {lru ? 0 : oracle_.Value(name, cache_.config, cache_.now, of_page), name});
    }
    std::vector<Oracle::Name> best;
    double least = std::numeric_limits<double>::infinity();
    for (const auto& candidate : candidates) least = std::min(least, candidate.first);
    for (const auto& [value, name] : candidates) {
      if (value > least + 1e-6) continue;
      // Equal values, such as none at all: longest unused first.
      if (least == 0 || std::isinf(least)) {
        if (!best.empty() && last_use(name) > last_use(best[0])) continue;
        best.clear();
      }
      best.push_back(name);
    }
    return best;
  }

  bool EvictPage() {
    const auto best = Best(
        true, [&](const Oracle::Name& name) { return PageMayGo(name); },
        [&](const Oracle::Name& name) { return oracle_.entries.at(name).last_use; });
    const uint32_t used = cache_.pages.used();
    const uint32_t evicted = cache_.index.EvictPages(1);
    EXPECT_EQ(evicted, best.empty() ? 0u : 1u);
    EXPECT_EQ(cache_.pages.used(), used - evicted);
    EXPECT_TRUE(best.empty() ||
                std::ranges::any_of(best,
                                    [&](const Oracle::Name& name) {
                                      return !cache_.pages.IsTaken(oracle_.entries.at(name).page);
                                    }))
        << "another page went";
    Sync();
    return evicted == 1;
  }

  bool EvictSnapshot() {
    const auto best = Best(
        false, [&](const Oracle::Name& name) { return SnapshotMayGo(name); },
        [&](const Oracle::Name& name) { return oracle_.entries.at(name).snapshot->last_use; });
    const uint32_t used = cache_.snapshots.used();
    const uint32_t evicted = cache_.index.EvictSnapshots(1);
    EXPECT_EQ(evicted, best.empty() ? 0u : 1u);
    EXPECT_EQ(cache_.snapshots.used(), used - evicted);
    EXPECT_TRUE(best.empty() || std::ranges::any_of(best,
                                                    [&](const Oracle::Name& name) {
                                                      return !cache_.snapshots.IsTaken(
                                                          oracle_.entries.at(name).snapshot->id);
                                                    }))
        << "another snapshot went";
    Sync();
    return evicted == 1;
  }

  // Takes what is free out of the oracle, if it was right to let it go.
  void Sync() {
    for (auto& [name, entry] : oracle_.entries) {
      if (!entry.snapshot.has_value() || cache_.snapshots.IsTaken(entry.snapshot->id)) continue;
      EXPECT_FALSE(Restored(name)) << "a snapshot went that is being restored";
      entry.snapshot.reset();
    }
    // From the end, so that a unit is looked at after those that follow it.
    for (auto at = oracle_.entries.end(); at != oracle_.entries.begin();) {
      --at;
      if (cache_.pages.IsTaken(at->second.page)) continue;
      EXPECT_TRUE(PageMayGo(at->first)) << "a page went that is needed";
      EXPECT_FALSE(at->second.snapshot.has_value()) << "its snapshot stayed";
      at = oracle_.entries.erase(at);
    }
  }

  static void ExpectNoFullerThan(const FreePool& pool, uint32_t could_go) {
    if (could_go > 0) {
      EXPECT_LE(pool.used(), pool.size() * 90 / 100);
    }
  }

  void Check() {
    EXPECT_EQ(cache_.index.CheckInvariants(), "");
    const PrefixLedger ledger = cache_.index.GetLedger();
    EXPECT_EQ(ledger.query_tokens, queries_);
    EXPECT_EQ(ledger.hit_tokens, hits_);
    EXPECT_EQ(ledger.lost_to_granularity_tokens, lost_);
    EXPECT_EQ(ledger.leases, live_.size() + forks_.size());
    EXPECT_EQ(ledger.pages, oracle_.entries.size());
    uint32_t read = 0, snapshots = 0, restored = 0;
    for (const auto& [name, entry] : oracle_.entries) {
      EXPECT_TRUE(cache_.pages.IsTaken(entry.page));
      read += Read(name);
      if (!entry.snapshot.has_value()) continue;
      EXPECT_TRUE(cache_.snapshots.IsTaken(entry.snapshot->id));
      ++snapshots;
      restored += Restored(name);
    }
    EXPECT_EQ(ledger.pages_referenced, read);
    EXPECT_EQ(ledger.snapshots, snapshots);
    EXPECT_EQ(ledger.snapshots_referenced, restored);
    EXPECT_EQ(cache_.snapshots.used(), snapshots);
    uint32_t owned = 0;
    for (const Sequence& sequence : live_) {
      cache_.CheckPages(sequence);
      owned += static_cast<uint32_t>(sequence.pages.size()) - sequence.lease.shared_units();
    }
    EXPECT_EQ(cache_.pages.used(), ledger.pages + owned);
  }

  std::mt19937_64 random_;
  PrefixHarness cache_;
  Oracle oracle_;
  std::list<Sequence> live_;
  std::list<std::pair<Oracle::Name, PrefixLease>> forks_;
  uint64_t queries_ = 0, hits_ = 0, lost_ = 0;
};

class PrefixRandom : public ::testing::TestWithParam<Eviction> {};

TEST_P(PrefixRandom, TheIndexIsAMapOfWholePrefixes) {
  PrefixLedger sum;
  for (uint64_t seed = 1; seed <= 200 && !HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    World world(seed, GetParam());
    world.Run(400);
    const PrefixLedger ledger = world.ledger();
    sum.hit_tokens += ledger.hit_tokens;
    sum.lost_to_granularity_tokens += ledger.lost_to_granularity_tokens;
    sum.units_shared += ledger.units_shared;
    sum.snapshots_duplicate += ledger.snapshots_duplicate;
    sum.snapshots_miscounted += ledger.snapshots_miscounted;
    sum.snapshots_unplaced += ledger.snapshots_unplaced;
    sum.snapshots_thinned += ledger.snapshots_thinned;
    sum.pages_evicted += ledger.pages_evicted;
    sum.snapshots_evicted += ledger.snapshots_evicted;
  }
  // The seeds were worth something.
  EXPECT_GT(sum.hit_tokens, 10'000u);
  EXPECT_GT(sum.lost_to_granularity_tokens, 10'000u);
  EXPECT_GT(sum.units_shared, 2'000u);
  EXPECT_GT(sum.snapshots_duplicate, 300u);
  EXPECT_GT(sum.snapshots_miscounted, 300u);
  EXPECT_GT(sum.snapshots_unplaced, 300u);
  EXPECT_GT(sum.snapshots_thinned, 100u);
  EXPECT_GT(sum.pages_evicted, 3'000u);
  EXPECT_GT(sum.snapshots_evicted, 1'500u);
}

INSTANTIATE_TEST_SUITE_P(Policies, PrefixRandom,
                         ::testing::Values(Eviction::kValue, Eviction::kLru), [](const auto& info) {
                           return info.param == Eviction::kValue ? "Value" : "Lru";
                         });

// Keys from a handful of values: whatever collides, nobody reads another text's pages or state.
TEST(PrefixCollisions, CostHitsAndNeverTexts) {
  PrefixLedger sum;
  for (uint64_t seed = 1; seed <= 100 && !HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    PrefixHarness cache(PrefixHarness::Config(kUnit), 60, 20);
    cache.key_space = 4;  // of each half of a key
    for (int request = 0; request < 100; ++request) {
      Tokens prompt(1 + random() % 40);
      for (int32_t& letter : prompt) letter = random() % 6 == 0;
      Sequence sequence = cache.Start(prompt);
      if (cache.Grow(sequence, static_cast<uint32_t>(prompt.size()))) {
        cache.Prefill(sequence);
        cache.CheckPages(sequence);
      }
      cache.End(sequence);
      ASSERT_EQ(cache.index.CheckInvariants(), "");
    }
    const PrefixLedger ledger = cache.index.GetLedger();
    sum.collisions += ledger.collisions;
    sum.hit_tokens += ledger.hit_tokens;
    cache.ExpectEmptyAfterEviction();
  }
  EXPECT_GT(sum.collisions, 1000u);
  EXPECT_GT(sum.hit_tokens, 1000u);
}

}  // namespace
}  // namespace quartet::coordinator
