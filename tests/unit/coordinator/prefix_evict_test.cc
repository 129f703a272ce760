#include <gmock/gmock.h>

#include <cmath>
#include <random>
#include <set>

#include "services/coordinator/core/eviction_order.h"
#include "tests/unit/coordinator/prefix_harness.h"

// Which of the things that may go goes first.

namespace quartet::coordinator {
namespace {

using enum SnapshotKind;
using Eviction = PrefixIndexConfig::Eviction;

constexpr TimeUs kMinute = 60'000'000;

class PrefixEvictTest : public ::testing::TestWithParam<Eviction> {
 protected:
  using Sequence = PrefixHarness::Sequence;

  static PrefixIndexConfig Config(Eviction eviction) {
    PrefixIndexConfig config = PrefixHarness::Config();
    config.eviction = eviction;
    return config;
  }
  static std::vector<int32_t> Text(size_t n, int32_t salt = 0) {
    return PrefixHarness::Text(n, salt);
  }

  void Cache(PrefixHarness& cache, const std::vector<int32_t>& text,
             const std::vector<SnapshotMark>& marks) {
    Sequence sequence = cache.Start(text);
    ASSERT_TRUE(cache.Step(sequence, static_cast<uint32_t>(text.size()), marks));
    cache.End(sequence);
  }
  static void Use(PrefixHarness& cache, const std::vector<int32_t>& prompt) {
    Sequence sequence = cache.Start(prompt);
    cache.End(sequence);
  }
  static uint32_t Hit(const PrefixHarness& cache, const std::vector<int32_t>& prompt) {
    return cache.Match(prompt).cached_tokens;
  }

  PrefixHarness value{Config(Eviction::kValue), 400, 40};
  PrefixHarness lru{Config(Eviction::kLru), 400, 40};
};

TEST_F(PrefixEvictTest, LruGivesUpWhatWasUnusedLongest) {
  for (int32_t i = 0; i < 3; ++i) Cache(lru, Text(600, i), {{512, kConversationEnd}});
  Use(lru, Text(600, 0));
  EXPECT_EQ(lru.index.EvictSnapshots(1), 1u);
  EXPECT_EQ(Hit(lru, Text(600, 1)), 0u);
  EXPECT_EQ(lru.index.EvictPages(2), 2u);
  EXPECT_EQ(lru.Match(Text(600, 1)).shared_tokens, 0u);
  EXPECT_EQ(lru.index.EvictPages(2), 2u);
  EXPECT_EQ(Hit(lru, Text(600, 2)), 0u);
  EXPECT_EQ(Hit(lru, Text(600, 0)), 512u);
}

TEST_F(PrefixEvictTest, LruKnowsThatAUseOfATextIsAUseOfAllItsUnits) {
  const std::vector<int32_t> longer = PrefixHarness::Join(Text(512), Text(512, 5));
  Cache(lru, longer, {{512, kBoundary}, {1024, kBoundary}});
  Cache(lru, Text(512, 1), {{512, kBoundary}});
  Use(lru, PrefixHarness::Join(longer, Text(10)));
  EXPECT_EQ(lru.index.EvictPages(2), 2u);
  EXPECT_EQ(Hit(lru, PrefixHarness::Join(longer, Text(10))), 1024u);
  Cache(lru, Text(512, 2), {{512, kBoundary}});
  EXPECT_EQ(lru.index.EvictPages(2), 2u);  // the end of the longer text
  Cache(lru, Text(512, 3), {{512, kBoundary}});
  EXPECT_EQ(lru.index.EvictPages(2), 2u);  // then its beginning, used no later than its end
  EXPECT_EQ(Hit(lru, Text(513, 2)), 512u);
}

TEST_F(PrefixEvictTest, ValueKeepsWhatSavesMoreTokens) {
  Cache(value, Text(3000, 1), {{2816, kConversationEnd}});
  Cache(value, Text(600, 2), {{512, kConversationEnd}});
  EXPECT_EQ(value.index.EvictSnapshots(1), 1u);
  EXPECT_EQ(Hit(value, Text(3000, 1)), 2816u);
  EXPECT_EQ(Hit(value, Text(600, 2)), 0u);
}

TEST_F(PrefixEvictTest, ValueKeepsWhatIsUsedMoreOften) {
  Cache(value, Text(600, 1), {{512, kConversationEnd}});
  Cache(value, Text(600, 2), {{512, kConversationEnd}});
  Use(value, Text(600, 1));
  Use(value, Text(600, 1));
  value.now += kMinute;
  Use(value, Text(600, 2));
  EXPECT_EQ(value.index.EvictSnapshots(1), 1u);
  EXPECT_EQ(Hit(value, Text(600, 1)), 512u);
  EXPECT_EQ(Hit(value, Text(600, 2)), 0u);
}

TEST_F(PrefixEvictTest, AUseCountsHalfAfterTenMinutes) {
  Cache(value, Text(600, 1), {{512, kConversationEnd}});
  for (int i = 0; i < 3; ++i) Use(value, Text(600, 1));
  EXPECT_NEAR(value.Find(Text(512, 1))->aged_uses, 4, 1e-6);
  value.now += 10 * kMinute;
  EXPECT_NEAR(value.Find(Text(512, 1))->aged_uses, 2, 1e-6);
  Use(value, Text(600, 1));
  EXPECT_NEAR(value.Find(Text(512, 1))->aged_uses, 3, 1e-6);
  EXPECT_EQ(value.Find(Text(512, 1))->tokens_saved, 4u * 512u);
  value.now += 20 * kMinute;
  EXPECT_NEAR(value.Find(Text(512, 1))->aged_uses, 0.75, 1e-6);
  // Two fresh uses are more than that, three old ones and one less old notwithstanding.
  Cache(value, Text(600, 2), {{512, kConversationEnd}});
  EXPECT_EQ(value.index.EvictSnapshots(1), 1u);
  EXPECT_EQ(Hit(value, Text(600, 1)), 0u);
  EXPECT_EQ(Hit(value, Text(600, 2)), 512u);
}

TEST_F(PrefixEvictTest, SystemPrefixesOutliveConversationEndsAndThoseInnerBoundaries) {
  Cache(value, Text(600, 1), {{512, kSystemPrefix}});
  Cache(value, Text(600, 2), {{512, kConversationEnd}});
  Cache(value, Text(600, 3), {{512, kBoundary}});
  EXPECT_EQ(value.index.EvictSnapshots(1), 1u);
  EXPECT_EQ(Hit(value, Text(600, 3)), 0u);
  EXPECT_EQ(value.index.EvictSnapshots(1), 1u);
  EXPECT_EQ(Hit(value, Text(600, 2)), 0u);
  EXPECT_EQ(Hit(value, Text(600, 1)), 512u);
}

TEST_F(PrefixEvictTest, ASnapshotIsWorthTheWayBackToTheOneAboveIt) {
  // The last one saves 256 tokens beside the first, until the first is gone.
  Cache(value, Text(3000, 1), {{2560, kBoundary}, {2816, kBoundary}});
  Cache(value, Text(1000, 2), {{768, kBoundary}});
  EXPECT_EQ(value.index.EvictSnapshots(1), 1u);
  EXPECT_EQ(Hit(value, Text(3000, 1)), 2560u);
  EXPECT_EQ(value.index.EvictSnapshots(1), 1u);
  EXPECT_EQ(Hit(value, Text(1000, 2)), 0u);

  // A snapshot that comes between takes its share.
  Sequence sequence = value.Start(Text(3000, 1));
  ASSERT_TRUE(value.Step(sequence, 3000, {}));
  EXPECT_EQ(value.PublishState(sequence, {2304, kBranch}, 2304), SnapshotOutcome::kPublished);
  EXPECT_EQ(value.index.CheckInvariants(), "");
  value.End(sequence);
  EXPECT_EQ(value.index.EvictSnapshots(1), 1u);
  EXPECT_EQ(Hit(value, Text(3000, 1)), 2304u);
}

TEST_F(PrefixEvictTest, PagesThatNoSnapshotNeedsGoFirst) {
  Cache(value, Text(600, 1), {{512, kSystemPrefix}});
  Cache(value, Text(2000, 2), {{768, kBoundary}});
  // Used last, but behind the last snapshot of its text.
  EXPECT_EQ(value.index.EvictPages(4), 4u);
  EXPECT_EQ(Hit(value, Text(600, 1)), 512u);
  EXPECT_EQ(Hit(value, Text(2000, 2)), 768u);
  EXPECT_EQ(value.index.EvictPages(3), 3u);
  EXPECT_EQ(Hit(value, Text(600, 1)), 512u);
  EXPECT_EQ(value.Match(Text(2000, 2)).shared_tokens, 0u);
}

TEST_F(PrefixEvictTest, WithTheLastPageItsSnapshotGoes) {
  Cache(value, Text(512), {{512, kConversationEnd}});
  EXPECT_EQ(value.index.EvictPages(1), 1u);
  EXPECT_EQ(value.snapshots.used(), 0u);
  EXPECT_EQ(value.index.GetLedger().snapshots_evicted, 1u);
  EXPECT_EQ(value.index.GetLedger().pages_evicted, 1u);
  EXPECT_EQ(value.index.CheckInvariants(), "");
}

TEST_P(PrefixEvictTest, BackgroundEvictionStopsAtTheWatermark) {
  PrefixHarness cache{Config(GetParam()), 100, 10};
  for (int32_t i = 0; i < 10; ++i) Cache(cache, Text(2560, i), {{2560, kConversationEnd}});
  ASSERT_EQ(cache.pages.free(), 0u);
  ASSERT_EQ(cache.snapshots.free(), 0u);
  cache.index.EvictToWatermark();
  EXPECT_EQ(cache.pages.used(), 90u);
  EXPECT_EQ(cache.snapshots.used(), 9u);
  cache.index.EvictToWatermark();
  EXPECT_EQ(cache.pages.used(), 90u);
}

TEST_P(PrefixEvictTest, BackgroundEvictionTakesNothingThatIsInUse) {
  PrefixHarness cache{Config(GetParam()), 100, 10};
  Sequence sequence = cache.Start(Text(25600));
  ASSERT_TRUE(cache.Step(sequence, 25600, {}));
  cache.index.EvictToWatermark();
  EXPECT_EQ(cache.pages.used(), 100u);
  EXPECT_EQ(cache.index.EvictPages(1), 0u);
  cache.CheckPages(sequence);
  cache.End(sequence);
}

INSTANTIATE_TEST_SUITE_P(Policies, PrefixEvictTest,
                         ::testing::Values(Eviction::kValue, Eviction::kLru), [](const auto& info) {
                           return info.param == Eviction::kValue ? "Value" : "Lru";
                         });

TEST(EvictionOrder, IsASortedSetWhoseItemsCanMove) {
  constexpr uint32_t kItems = 200;
  std::mt19937_64 random(5);
  EvictionOrder order(kItems);
  std::set<std::tuple<double, uint64_t, uint32_t>> plain;
  const auto erase = [&](uint32_t item) {
    std::erase_if(plain, [&](const auto& entry) { return std::get<2>(entry) == item; });
  };
  for (uint64_t serial = 1; serial <= 20000; ++serial) {
    const auto item = static_cast<uint32_t>(random() % kItems);
    erase(item);
    if (random() % 3 == 0) {
      order.Erase(item);
    } else {
      const auto value = random() % 8 == 0 ? -std::numeric_limits<double>::infinity()
                                           : static_cast<double>(random() % 10);
      order.Set(item, {value, serial});
      plain.insert({value, serial, item});
    }
    ASSERT_EQ(order.size(), plain.size());
    ASSERT_EQ(order.empty(), plain.empty());
    if (!plain.empty()) {
      ASSERT_EQ(order.Front(), std::get<2>(*plain.begin()));
    }
  }
}

}  // namespace
}  // namespace quartet::coordinator
