#include "services/coordinator/core/prefix_index.h"

#include <gmock/gmock.h>

#include "tests/unit/coordinator/prefix_harness.h"

// What the prefix index promises, by example. Sizes are the real ones: units of 256 tokens, blocks
// of 2,304.

namespace quartet::coordinator {
namespace {

using ::testing::ElementsAre;
using enum SnapshotKind;

class PrefixIndexTest : public ::testing::Test {
 protected:
  using Harness = PrefixHarness;
  using Sequence = PrefixHarness::Sequence;

  static std::vector<int32_t> Text(size_t n, int32_t salt = 0) { return Harness::Text(n, salt); }
  static std::vector<int32_t> Head(const std::vector<int32_t>& tokens, size_t n) {
    return {tokens.begin(), tokens.begin() + static_cast<int64_t>(n)};
  }

  // A text in the cache with snapshots at these offsets only.
  void Cache(const std::vector<int32_t>& text, const std::vector<SnapshotMark>& marks) {
    Sequence sequence = cache.Start(text);
    ASSERT_TRUE(cache.Step(sequence, static_cast<uint32_t>(text.size()), marks));
    cache.End(sequence);
  }

  bool HasSnapshot(const std::vector<int32_t>& text) {
    const auto node = cache.Find(text);
    return node.has_value() && node->snapshot.present();
  }

  Harness cache{Harness::Config(), 400, 40};
};

// ---- hits ------------------------------------------------------------------------------------

TEST_F(PrefixIndexTest, AnEmptyCacheKnowsNothing) {
  const PrefixMatch match = cache.Match(Text(1000));
  EXPECT_EQ(match.cached_tokens, 0u);
  EXPECT_EQ(match.shared_tokens, 0u);
  EXPECT_EQ(match.branch_point, 0u);
  EXPECT_EQ(cache.Match({}).cached_tokens, 0u);
}

TEST_F(PrefixIndexTest, AShortPromptHitsItsLastUnitOnRepeat) {
  EXPECT_EQ(cache.Serve(Text(300)), 0u);
  EXPECT_EQ(cache.Serve(Text(300)), 256u);
  EXPECT_EQ(cache.Serve(Text(700, 1)), 0u);
  EXPECT_EQ(cache.Serve(Text(700, 1)), 512u);
  cache.ExpectEmptyAfterEviction();
}

TEST_F(PrefixIndexTest, OneTokenIsAlwaysLeftToCompute) {
  Cache(Text(1024), {{512, kBoundary}, {768, kBoundary}, {1024, kBoundary}});
  EXPECT_EQ(cache.Match(Text(1025)).cached_tokens, 1024u);
  EXPECT_EQ(cache.Match(Text(1024)).cached_tokens, 768u);
  EXPECT_EQ(cache.Match(Text(1024)).shared_tokens, 1023u);
  EXPECT_EQ(cache.Match(Text(769)).cached_tokens, 768u);
  EXPECT_EQ(cache.Match(Text(768)).cached_tokens, 512u);
}

TEST_F(PrefixIndexTest, PagesWithoutASnapshotAreNoHit) {
  Cache(Text(1000), {});
  const PrefixMatch match = cache.Match(Text(1000));
  EXPECT_EQ(match.cached_tokens, 0u);
  EXPECT_EQ(match.shared_tokens, 768u) << "the last 232 tokens are in no unit";
  EXPECT_EQ(match.lost_to_granularity(), 768u);
}

TEST_F(PrefixIndexTest, TheDeepestSnapshotCountsAndComesWithItsPagesInOrder) {
  Sequence first = cache.Start(Text(2000));
  ASSERT_TRUE(cache.Step(first, 2000, {{512, kBoundary}, {1024, kBoundary}}));
  const PrefixMatch match = cache.Match(Text(3000));
  EXPECT_EQ(match.cached_tokens, 1024u);
  EXPECT_THAT(match.pages,
              ElementsAre(first.pages[0], first.pages[1], first.pages[2], first.pages[3]));
  cache.End(first);
}

TEST_F(PrefixIndexTest, SharedTokensAreCountedToTheTokenAmongAllContinuations) {
  const std::vector<int32_t> system = Text(512);
  for (int32_t salt = 1; salt <= 20; ++salt) Cache(Harness::Join(system, Text(600, salt)), {});
  std::vector<int32_t> prompt = Harness::Join(system, Text(600, 7));
  prompt[512 + 100] = -1;
  EXPECT_EQ(cache.Match(prompt).shared_tokens, 612u);
  prompt[512] = -1;
  EXPECT_EQ(cache.Match(prompt).shared_tokens, 512u);
  prompt[512] = 1'000'000;
  EXPECT_EQ(cache.Match(prompt).shared_tokens, 512u);
}

TEST_F(PrefixIndexTest, MatchHoldsAndCountsNothing) {
  Cache(Text(600), {{512, kConversationEnd}});
  cache.Match(Text(600));
  EXPECT_EQ(cache.index.GetLedger().query_tokens, 600u);  // of the one that was acquired
  EXPECT_EQ(cache.index.EvictPages(10), 2u);
}

TEST_F(PrefixIndexTest, TheLedgerCountsQueriesHitsAndWhatGranularityCost) {
  cache.Serve(Text(2500));  // snapshots at 2,304
  cache.Serve(Harness::Join(Head(Text(2500), 2500), Text(500, 1)));
  cache.Serve(Harness::Join(Text(1000), Text(500, 2)));
  const PrefixLedger ledger = cache.index.GetLedger();
  EXPECT_EQ(ledger.query_tokens, 2500u + 3000u + 1500u);
  EXPECT_EQ(ledger.hit_tokens, 2304u);
  // 196 tokens behind the snapshot lie in the second text's unit only after it was served.
  EXPECT_EQ(ledger.lost_to_granularity_tokens, 0u + 1000u);
}

// Case O14: two tenants with the same prompt.
TEST_F(PrefixIndexTest, O14DifferentDomainsNeverMeet) {
  EXPECT_EQ(cache.Serve(Text(1000), 0, Harness::Root(1)), 0u);
  EXPECT_EQ(cache.Serve(Text(1000), 0, Harness::Root(2)), 0u);
  EXPECT_EQ(cache.Match(Text(1000), Harness::Root(3)).shared_tokens, 0u);
  EXPECT_EQ(cache.Serve(Text(1000), 0, Harness::Root(1)), 768u);
  cache.ExpectEmptyAfterEviction();
}

// Case O14: equal tokens under other keys are other images.
TEST_F(PrefixIndexTest, O14AHitEndsAtTheFirstUnitWithAnotherKey) {
  const std::vector<int32_t> text = Text(1024);
  cache.Serve(text);
  std::vector<UnitKey> keys = cache.Keys(Harness::Root(), text);
  for (size_t unit = 1; unit < keys.size(); ++unit) keys[unit].low ^= 1;
  Sequence other = cache.Start(text);
  const PrefixMatch match = cache.index.Match({Harness::Root(), keys, text});
  EXPECT_EQ(match.cached_tokens, 0u);
  EXPECT_EQ(match.shared_tokens, 256u);
  cache.End(other);
}

TEST_F(PrefixIndexTest, EqualKeysOfDifferentTokensAreAMissAndCounted) {
  const std::vector<int32_t> text = Text(600), other_text = Text(600, 1);
  cache.Serve(text);
  const std::vector<UnitKey> keys = cache.Keys(Harness::Root(), text);
  PrefixHit hit = cache.index.Acquire({Harness::Root(), keys, other_text}, cache.now);
  EXPECT_EQ(hit.match.cached_tokens, 0u);
  const uint32_t page = *cache.pages.Take();
  const auto unit = std::span(other_text).first(256);
  for (int time = 0; time < 2; ++time) {
    const UnitOutcome outcome = cache.index.PublishUnit(hit.lease, keys[0], unit, page, 600);
    EXPECT_EQ(outcome.kind, UnitOutcome::Kind::kRefused);
    EXPECT_EQ(outcome.page, page);
  }
  EXPECT_EQ(cache.index.GetLedger().collisions, 1u);
  EXPECT_EQ(cache.index.GetLedger().units_refused, 2u);
  cache.pages.Return(page);
  hit.lease.Release();
  EXPECT_EQ(cache.Serve(text), 512u);
  cache.ExpectIdle();
}

// ---- publishing ------------------------------------------------------------------------------

TEST_F(PrefixIndexTest, AUnitThatIsThereAlreadyIsSharedAndTheSecondPageFree) {
  Sequence a = cache.Start(Text(1000)), b = cache.Start(Text(1000));
  ASSERT_TRUE(cache.Prefill(a));
  const uint32_t used = cache.pages.used();
  ASSERT_TRUE(cache.Grow(b, 1000));
  EXPECT_EQ(cache.pages.used(), used + 4);
  ASSERT_TRUE(cache.Prefill(b));
  EXPECT_EQ(cache.pages.used(), used + 1) << "only the tail is b's own";
  EXPECT_THAT(std::vector(b.pages.begin(), b.pages.begin() + 3),
              ElementsAre(a.pages[0], a.pages[1], a.pages[2]));
  EXPECT_NE(a.pages[3], b.pages[3]);
  EXPECT_EQ(cache.index.GetLedger().units_shared, 3u);
  EXPECT_EQ(cache.index.GetLedger().snapshots_duplicate, 1u);
  cache.CheckPages(b);
  cache.End(a);
  cache.CheckPages(b);
  cache.End(b);
  cache.ExpectEmptyAfterEviction();
}

// Case O1: the state at the end of a short chunk under the name of the block.
TEST_F(PrefixIndexTest, O1AStateIsPublishedOnlyAtTheLengthThatItHasAbsorbed) {
  for (uint32_t chunk = 1; chunk <= 2303; ++chunk) {
    Sequence sequence = cache.Start(Text(2600));
    ASSERT_EQ(sequence.absorbed, 0u);
    const PromptMarks marks{.prompt_tokens = 2600};
    ASSERT_TRUE(cache.Step(sequence, chunk, PrefillSnapshots({}, marks, 0, chunk)));
    // A scheduler that takes the end of this chunk for the end of the block, before and after the
    // block is there.
    EXPECT_EQ(cache.PublishState(sequence, {2304, kBoundary}, chunk), SnapshotOutcome::kRefused);
    ASSERT_TRUE(cache.Step(sequence, 2304, {}));
    EXPECT_EQ(cache.PublishState(sequence, {2304, kBoundary}, chunk), SnapshotOutcome::kRefused);
    EXPECT_EQ(cache.PublishState(sequence, {2304, kBoundary}, 2303), SnapshotOutcome::kRefused);
    EXPECT_EQ(cache.Match(Text(2600)).cached_tokens, 0u) << "chunk of " << chunk;
    ASSERT_TRUE(cache.Step(sequence, 2600, PrefillSnapshots({}, marks, chunk, 2600)));
    cache.End(sequence);
    // The question about B's first block: Start compares the restored state with its tokens.
    Sequence question = cache.Start(Harness::Join(Head(Text(2600), 2304), Text(40, 9)));
    ASSERT_EQ(question.match.cached_tokens, 2304u);
    cache.End(question);
    ASSERT_EQ(cache.index.CheckInvariants(), "");
    cache.ExpectEmptyAfterEviction();
  }
  EXPECT_EQ(cache.index.GetLedger().snapshots_miscounted, 2u * 2303u);
  EXPECT_EQ(cache.index.GetLedger().snapshots_unplaced, 2303u);
}

TEST_F(PrefixIndexTest, ASnapshotNeedsItsUnitsInTheIndex) {
  Sequence sequence = cache.Start(Text(600));
  ASSERT_TRUE(cache.Step(sequence, 512, {}));
  EXPECT_EQ(cache.PublishState(sequence, {0, kBoundary}, 0), SnapshotOutcome::kRefused);
  EXPECT_EQ(cache.PublishState(sequence, {300, kBoundary}, 300), SnapshotOutcome::kRefused);
  EXPECT_EQ(cache.PublishState(sequence, {256, kBoundary}, 256), SnapshotOutcome::kPublished);
  EXPECT_EQ(cache.PublishState(sequence, {256, kBoundary}, 256), SnapshotOutcome::kDuplicate);
  EXPECT_EQ(cache.snapshots.used(), 1u);
  cache.End(sequence);
  cache.ExpectIdle();
}

// Case O5: a verify step commits tokens behind the stop position.
TEST_F(PrefixIndexTest, O5NothingBehindTheStopPositionIsStored) {
  const std::vector<int32_t> prompt = Text(700);
  Sequence sequence = cache.Start(Harness::Join(prompt, Text(70, 1)));
  ASSERT_TRUE(cache.Grow(sequence, 770));
  ASSERT_TRUE(cache.Step(sequence, 700, {{512, kConversationEnd}}));
  // The state has absorbed 770 tokens, the text that the client received ends with 766.
  sequence.absorbed = 770;
  cache.PublishUnits(sequence, 766);
  const auto unit = std::span(sequence.tokens).subspan(512, 256);
  const auto keys = cache.Keys(Harness::Root(), sequence.tokens);
  EXPECT_EQ(cache.index.PublishUnit(sequence.lease, keys[2], unit, sequence.pages[2], 766).kind,
            UnitOutcome::Kind::kRefused);
  EXPECT_EQ(cache.PublishState(sequence, {768, kConversationEnd}, 768), SnapshotOutcome::kRefused);
  EXPECT_EQ(TurnEnd({}, 770, 766), 512u);
  cache.End(sequence);

  // The next turn, built from what the client received, hits every full unit of it.
  std::vector<int32_t> next = Head(Harness::Join(prompt, Text(70, 1)), 766);
  EXPECT_EQ(cache.Serve(Harness::Join(next, Text(300, 2))), 512u);
  EXPECT_EQ(cache.Match(Harness::Join(prompt, Text(200, 1))).cached_tokens, 512u);
  cache.ExpectIdle();
}

// Case O9: the client leaves in the middle of a long prefill.
TEST_F(PrefixIndexTest, O9WhoLeavesReturnsEverythingAndCompleteUnitsStay) {
  cache.Serve(Text(2600));
  const uint32_t pages_before = cache.pages.used();
  Sequence sequence = cache.Start(Text(30000));
  ASSERT_EQ(sequence.match.cached_tokens, 2560u);
  ASSERT_TRUE(cache.Step(sequence, 9000, PrefillSnapshots({}, {30000, 2560}, 2560, 9000)));
  ASSERT_TRUE(cache.Grow(sequence, 13096));  // the chunk in flight
  cache.End(sequence);
  EXPECT_EQ(cache.pages.used() - pages_before, 9000 / 256 - 2600 / 256);
  cache.ExpectIdle();
  EXPECT_EQ(cache.Serve(Text(30000)), 6912u);
  cache.ExpectEmptyAfterEviction();
}

TEST_F(PrefixIndexTest, ARequestMayReadWithoutWriting) {
  cache.Serve(Text(1000));
  const PrefixLedger before = cache.index.GetLedger();
  Sequence sequence = cache.Start(Text(3000));
  sequence.publishes = false;
  EXPECT_EQ(sequence.match.cached_tokens, 768u);
  ASSERT_TRUE(cache.Prefill(sequence));
  cache.End(sequence);
  EXPECT_EQ(cache.index.GetLedger().pages, before.pages);
  EXPECT_EQ(cache.index.GetLedger().snapshots, before.snapshots);
  cache.ExpectIdle();
}

// ---- branch points ---------------------------------------------------------------------------

// Case O4: ten requests with the same 6,000-token system prompt and 1,500 tokens of their own.
TEST_F(PrefixIndexTest, O4TheSecondVisitorHitsABlockAndTheThirdTheUnitWhereTheyPart) {
  const std::vector<int32_t> system = Text(6000);
  const auto ask = [&](int32_t i) { return Harness::Join(system, Text(1500, i)); };
  EXPECT_EQ(cache.Serve(ask(1)), 0u);
  EXPECT_EQ(cache.Match(ask(2)).branch_point, 5888u);
  EXPECT_EQ(cache.Match(ask(2)).lost_to_granularity(), 6000u - 4608u);
  EXPECT_EQ(cache.Serve(ask(2)), 4608u);
  for (int32_t i = 3; i <= 10; ++i) {
    EXPECT_EQ(cache.Match(ask(i)).branch_point, 0u);
    EXPECT_EQ(cache.Serve(ask(i)), 5888u);
  }
  EXPECT_EQ(cache.Find(Head(system, 5888))->kind, kBranch);
}

TEST_F(PrefixIndexTest, O4WithAMarkedSystemPromptTheSecondVisitorHitsItsLastUnit) {
  const std::vector<int32_t> system = Text(6000);
  EXPECT_EQ(cache.Serve(Harness::Join(system, Text(1500, 1)), 6000), 0u);
  for (int32_t i = 2; i <= 10; ++i) {
    EXPECT_EQ(cache.Serve(Harness::Join(system, Text(1500, i)), 6000), 5888u);
  }
}

TEST_F(PrefixIndexTest, O4TwoAtOnceAreStoredOnce) {
  const std::vector<int32_t> system = Text(6000);
  Sequence a = cache.Start(Harness::Join(system, Text(1500, 1)));
  Sequence b = cache.Start(Harness::Join(system, Text(1500, 2)));
  for (uint32_t begin = 0; begin < 7500; begin += 500) {
    for (Sequence* sequence : {&a, &b}) {
      ASSERT_TRUE(cache.Step(*sequence, begin + 500,
                             PrefillSnapshots({}, {.prompt_tokens = 7500}, begin, begin + 500)));
      cache.CheckPages(*sequence);
    }
  }
  cache.End(a);
  cache.End(b);
  EXPECT_EQ(cache.index.GetLedger().units_shared, 23u);
  EXPECT_EQ(cache.index.GetLedger().pages, 2u * 29u - 23u);
  EXPECT_EQ(cache.Serve(Harness::Join(system, Text(1500, 3))), 4608u);
  EXPECT_EQ(cache.Serve(Harness::Join(system, Text(1500, 4))), 5888u);
  cache.ExpectEmptyAfterEviction();
}

TEST_F(PrefixIndexTest, APromptThatLiesInsideAPathHasNoBranchPoint) {
  Cache(Text(3000), {{512, kBoundary}});
  EXPECT_EQ(cache.Match(Text(2000)).branch_point, 0u);
  EXPECT_EQ(cache.Match(Harness::Join(Text(2000), Text(100, 1))).branch_point, 1792u);
  EXPECT_EQ(cache.Match(Harness::Join(Text(600), Text(1000, 1))).branch_point, 0u)
      << "they part where there is a snapshot";
}

// ---- references ------------------------------------------------------------------------------

TEST_F(PrefixIndexTest, WhatASequenceReadsIsNotEvicted) {
  cache.Serve(Text(1000));
  cache.Serve(Text(1000, 1));
  Sequence reader = cache.Start(Text(1200));
  EXPECT_EQ(cache.index.GetLedger().pages_referenced, 3u);
  EXPECT_EQ(cache.index.GetLedger().snapshots_referenced, 1u);
  EXPECT_EQ(cache.index.EvictSnapshots(100), 1u) << "the one of the other text";
  EXPECT_EQ(cache.index.EvictPages(100), 3u);
  EXPECT_EQ(cache.Match(Text(1200)).cached_tokens, 768u);
  cache.CheckPages(reader);

  reader.lease.ReleaseSnapshot();
  EXPECT_EQ(cache.index.EvictSnapshots(100), 1u) << "restored: only the pages are read now";
  EXPECT_EQ(cache.index.EvictPages(100), 0u);
  EXPECT_EQ(cache.index.CheckInvariants(), "");
  cache.End(reader);
  EXPECT_EQ(cache.index.EvictPages(100), 3u);
  EXPECT_EQ(cache.pages.used(), 0u);
}

TEST_F(PrefixIndexTest, APageGoesOnlyWhenNoUnitFollowsIt) {
  Cache(Harness::Join(Text(512), Text(512, 1)), {{512, kBoundary}, {1024, kBoundary}});
  Cache(Harness::Join(Text(512), Text(512, 2)), {});
  Sequence reader = cache.Start(Harness::Join(Text(512), Text(600, 1)));
  ASSERT_EQ(reader.absorbed, 1024u);
  EXPECT_EQ(cache.index.EvictPages(100), 2u) << "the other branch";
  EXPECT_EQ(cache.index.GetLedger().pages, 4u);
  cache.End(reader);
}

TEST_F(PrefixIndexTest, AForkHoldsThePathForItself) {
  cache.Serve(Text(1000));
  Sequence first = cache.Start(Text(1000));
  PrefixLease fork = first.lease.Fork();
  EXPECT_EQ(fork.shared_units(), 3u);
  EXPECT_FALSE(fork.holds_snapshot());
  cache.End(first);
  EXPECT_EQ(cache.index.EvictPages(100), 0u);
  EXPECT_EQ(cache.index.GetLedger().leases, 1u);
  fork.Release();
  cache.ExpectEmptyAfterEviction();
}

TEST_F(PrefixIndexTest, ALeaseThatIsMovedIsHeldOnceAndGivenBackOnce) {
  cache.Serve(Text(1000));
  {
    Sequence first = cache.Start(Text(1000));
    PrefixLease moved = std::move(first.lease);
    EXPECT_FALSE(first.lease.active());
    EXPECT_EQ(cache.index.GetLedger().leases, 1u);
    Sequence second = cache.Start(Text(1000));
    moved = std::move(second.lease);  // what it held before is given back
    EXPECT_EQ(cache.index.GetLedger().leases, 1u);
    EXPECT_EQ(cache.index.CheckInvariants(), "");
    first.lease.Release();  // nothing, for the second time
  }
  cache.ExpectIdle();
}

TEST_F(PrefixIndexTest, APathThatGrowsIsHeldToItsEnd) {
  Sequence sequence = cache.Start(Text(3000));
  for (uint32_t end = 500; end <= 3000; end += 500) {
    ASSERT_TRUE(cache.Step(sequence, end, {}));
    EXPECT_EQ(cache.index.GetLedger().pages_referenced, end / 256);
    EXPECT_EQ(cache.index.EvictPages(100), 0u);
  }
  cache.End(sequence);
  EXPECT_EQ(cache.index.EvictPages(100), 11u);
}

// ---- thinning --------------------------------------------------------------------------------

TEST_F(PrefixIndexTest, AFinishedConversationKeepsAFewSnapshotsAndWhereItBranches) {
  std::vector<SnapshotMark> marks;
  for (uint32_t i = 1; i <= 30; ++i) marks.push_back({i * 2304, kBoundary});
  Sequence sequence = cache.Start(Text(70000));
  ASSERT_TRUE(cache.Step(sequence, 70000, marks));
  Cache(Harness::Join(Text(3 * 2304), Text(300, 1)), {});  // structure alone makes a branch point
  const uint32_t thinned = cache.index.Thin(sequence.lease, cache.policy);
  EXPECT_EQ(thinned, SnapshotsToThin(cache.policy, marks).size() - 1);
  EXPECT_TRUE(HasSnapshot(Text(3 * 2304)));
  EXPECT_FALSE(HasSnapshot(Text(4 * 2304)));
  EXPECT_TRUE(HasSnapshot(Text(27 * 2304)));
  EXPECT_EQ(cache.index.Thin(sequence.lease, cache.policy), 0u);
  EXPECT_EQ(cache.index.GetLedger().snapshots_thinned, thinned);
  cache.End(sequence);
  cache.ExpectEmptyAfterEviction();
}

TEST_F(PrefixIndexTest, ATurnThatEndsAtABoundaryRaisesItsKind) {
  Sequence sequence = cache.Start(Text(2400));
  ASSERT_TRUE(cache.Step(sequence, 2400, {{2304, kBoundary}}));
  cache.index.Promote(sequence.lease, 2304, kConversationEnd);
  EXPECT_EQ(cache.Find(Text(2304))->kind, kConversationEnd);
  cache.index.Promote(sequence.lease, 2304, kBoundary);
  EXPECT_EQ(cache.Find(Text(2304))->kind, kConversationEnd) << "kinds only rise";
  cache.index.Promote(sequence.lease, 2048, kConversationEnd);  // none there
  EXPECT_FALSE(HasSnapshot(Text(2048)));
  cache.End(sequence);
}

}  // namespace
}  // namespace quartet::coordinator
