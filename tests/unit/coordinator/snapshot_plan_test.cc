#include "services/coordinator/core/snapshot_plan.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <random>
#include <set>

namespace quartet::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using enum SnapshotKind;

std::vector<SnapshotMark> Whole(const PromptMarks& marks, const SnapshotPolicy& policy = {}) {
  return PrefillSnapshots(policy, marks, marks.cached_tokens, marks.prompt_tokens);
}

TEST(PrefillSnapshots, AreTakenAtEachBlockAndAtTheLastUnitBeforeThePromptsEnd) {
  EXPECT_THAT(Whole({.prompt_tokens = 5000}),
              ElementsAre(SnapshotMark{2304, kBoundary}, SnapshotMark{4608, kBoundary},
                          SnapshotMark{4864, kConversationEnd}));
}

TEST(PrefillSnapshots, ShortPromptsHaveOneToo) {
  EXPECT_THAT(Whole({.prompt_tokens = 700}), ElementsAre(SnapshotMark{512, kConversationEnd}));
  EXPECT_THAT(Whole({.prompt_tokens = 300}), ElementsAre(SnapshotMark{256, kConversationEnd}));
  EXPECT_THAT(Whole({.prompt_tokens = 257}), ElementsAre(SnapshotMark{256, kConversationEnd}));
  EXPECT_THAT(Whole({.prompt_tokens = 256}), IsEmpty()) << "its repetition could not use it";
  EXPECT_THAT(Whole({.prompt_tokens = 1}), IsEmpty());
}

TEST(PrefillSnapshots, APromptThatEndsOnABlockHasThatBoundaryAndTheUnitBeforeIt) {
  EXPECT_THAT(Whole({.prompt_tokens = 2304}),
              ElementsAre(SnapshotMark{2048, kConversationEnd}, SnapshotMark{2304, kBoundary}));
}

TEST(PrefillSnapshots, NothingIsTakenOfWhatTheHitCovers) {
  EXPECT_THAT(Whole({.prompt_tokens = 5000, .cached_tokens = 4608}),
              ElementsAre(SnapshotMark{4864, kConversationEnd}));
  EXPECT_THAT(Whole({.prompt_tokens = 5000, .cached_tokens = 4864}), IsEmpty());
}

TEST(PrefillSnapshots, BranchPointAndMarkedPrefixAreRoundedDownToAUnit) {
  EXPECT_THAT(Whole({.prompt_tokens = 2000, .branch_point = 768, .system_prefix = 1500}),
              ElementsAre(SnapshotMark{768, kBranch}, SnapshotMark{1280, kSystemPrefix},
                          SnapshotMark{1792, kConversationEnd}));
  EXPECT_THAT(Whole({.prompt_tokens = 300, .system_prefix = 255}),
              ElementsAre(SnapshotMark{256, kConversationEnd}));
}

TEST(PrefillSnapshots, WhereReasonsMeetThereIsOneSnapshotOfTheHighestKind) {
  EXPECT_THAT(Whole({.prompt_tokens = 2400, .branch_point = 2304, .system_prefix = 2304}),
              ElementsAre(SnapshotMark{2304, kSystemPrefix}));
  EXPECT_THAT(Whole({.prompt_tokens = 2400, .branch_point = 2304}),
              ElementsAre(SnapshotMark{2304, kBranch}));
  EXPECT_THAT(Whole({.prompt_tokens = 2400}), ElementsAre(SnapshotMark{2304, kConversationEnd}));
}

TEST(PrefillSnapshots, EachReasonHasItsSwitch) {
  const PromptMarks marks{.prompt_tokens = 5000, .branch_point = 768, .system_prefix = 1280};
  SnapshotPolicy policy;
  policy.last = policy.branch = policy.system_prefix = false;
  EXPECT_THAT(Whole(marks, policy),
              ElementsAre(SnapshotMark{2304, kBoundary}, SnapshotMark{4608, kBoundary}));
  policy = {};
  policy.boundary = false;
  EXPECT_THAT(Whole(marks, policy),
              ElementsAre(SnapshotMark{768, kBranch}, SnapshotMark{1280, kSystemPrefix},
                          SnapshotMark{4864, kConversationEnd}));
}

TEST(PrefillSnapshots, AnyChunksTogetherExportWhatOneChunkWould) {
  std::mt19937_64 random(11);
  const auto pick = [&](uint32_t low, uint32_t high) {
    return std::uniform_int_distribution<uint32_t>(low, high)(random);
  };
  for (int round = 0; round < 2000; ++round) {
    PromptMarks marks;
    marks.prompt_tokens = pick(1, 12000);
    marks.cached_tokens = pick(0, (marks.prompt_tokens - 1) / 256) * 256;
    marks.branch_point = pick(0, marks.prompt_tokens / 256) * 256;
    marks.system_prefix = pick(0, marks.prompt_tokens);
    const std::vector<SnapshotMark> whole = Whole(marks);
    std::vector<SnapshotMark> pieces;
    uint32_t begin = marks.cached_tokens;
    while (begin < marks.prompt_tokens) {
      const uint32_t end = std::min(marks.prompt_tokens, begin + 64 * pick(1, 40));
      for (const SnapshotMark& mark : PrefillSnapshots({}, marks, begin, end)) {
        EXPECT_GT(mark.offset, begin);
        EXPECT_LE(mark.offset, end);
        EXPECT_EQ(mark.offset % 256, 0u);
        pieces.push_back(mark);
      }
      begin = end;
    }
    ASSERT_EQ(pieces, whole) << "prompt of " << marks.prompt_tokens;
  }
}

TEST(DecodeSnapshots, EachUnitIsExportedOnceAndABlockIsKept) {
  std::vector<uint32_t> scratch, kept;
  uint32_t absorbed = 2000;
  for (uint32_t step = 0; absorbed < 5000; ++step) {
    const uint32_t accepted = 1 + step % 4;
    const auto snapshot = DecodeSnapshot({}, absorbed, absorbed + accepted);
    absorbed += accepted;
    if (snapshot.has_value()) (snapshot->boundary ? kept : scratch).push_back(snapshot->offset);
  }
  EXPECT_THAT(kept, ElementsAre(2304, 4608));
  EXPECT_THAT(scratch, ElementsAre(2048, 2560, 2816, 3072, 3328, 3584, 3840, 4096, 4352, 4864));
}

TEST(DecodeSnapshots, ACommitThatEndsOnTheEdgeHasCrossedItAndTheNextHasNot) {
  EXPECT_EQ(DecodeSnapshot({}, 2303, 2304), (DecodeExport{2304, true}));
  EXPECT_EQ(DecodeSnapshot({}, 2302, 2305), (DecodeExport{2304, true}));
  EXPECT_EQ(DecodeSnapshot({}, 2304, 2308), std::nullopt);
  EXPECT_EQ(DecodeSnapshot({}, 2300, 2303), std::nullopt);
  EXPECT_EQ(DecodeSnapshot({}, 300, 300), std::nullopt);
}

TEST(DecodeSnapshots, WithoutTurnEndsOnlyBlocksAreExported) {
  SnapshotPolicy policy;
  policy.turn = false;
  EXPECT_EQ(DecodeSnapshot(policy, 2559, 2561), std::nullopt);
  EXPECT_EQ(DecodeSnapshot(policy, 2303, 2305), (DecodeExport{2304, true}));
  EXPECT_EQ(TurnEnd(policy, 3000, 3000), 0u);
  policy.turn = true;
  policy.boundary = false;
  EXPECT_EQ(DecodeSnapshot(policy, 2303, 2305), (DecodeExport{2304, false}));
}

// Case O5: the state ran past the stop position.
TEST(DecodeSnapshots, O5TheTurnEndsAtTheDeepestUnitOfTheVisibleText) {
  EXPECT_EQ(TurnEnd({}, 1000, 1001), 768u);
  EXPECT_EQ(TurnEnd({}, 1026, 1023), 768u) << "the state is newer than the text";
  EXPECT_EQ(TurnEnd({}, 1026, 1024), 1024u);
  EXPECT_EQ(TurnEnd({}, 1023, 1024), 768u) << "the last token is not absorbed";
  EXPECT_EQ(TurnEnd({}, 200, 210), 0u);
}

std::vector<SnapshotMark> Boundaries(uint32_t n) {
  std::vector<SnapshotMark> marks;
  for (uint32_t i = 1; i <= n; ++i) marks.push_back({i * 2304, kBoundary});
  return marks;
}

TEST(Thinning, KeepsTheLastFourAndOnePerPowerOfTwoBeforeThem) {
  EXPECT_THAT(SnapshotsToThin({}, Boundaries(4)), IsEmpty());
  std::set<uint32_t> kept;
  for (const SnapshotMark& mark : Boundaries(57)) kept.insert(mark.offset / 2304);
  for (uint32_t offset : SnapshotsToThin({}, Boundaries(57))) kept.erase(offset / 2304);
  // 36 to 63, 64 to 127, 128 to 255 and 256 to 511 units before the last one; 504 is the first.
  EXPECT_THAT(kept, ElementsAre(1, 29, 43, 50, 54, 55, 56, 57));
}

TEST(Thinning, BranchPointsAndMarkedPrefixesStay) {
  std::vector<SnapshotMark> marks = Boundaries(57);
  marks[1].kind = kSystemPrefix;
  marks[9].kind = kBranch;
  marks[10].kind = kConversationEnd;
  const std::vector<uint32_t> thinned = SnapshotsToThin({}, marks);
  EXPECT_THAT(thinned, ::testing::Not(::testing::Contains(2 * 2304)));
  EXPECT_THAT(thinned, ::testing::Not(::testing::Contains(10 * 2304)));
  EXPECT_THAT(thinned, ::testing::Contains(11 * 2304));
}

TEST(Thinning, AfterEveryTurnOfALongConversationEveryRangeStaysOccupied) {
  std::vector<SnapshotMark> marks;
  for (uint32_t turn = 1; turn <= 170; ++turn) {
    marks.push_back({turn * 768, kConversationEnd});
    for (uint32_t offset : SnapshotsToThin({}, marks)) {
      std::erase_if(marks, [&](const SnapshotMark& mark) { return mark.offset == offset; });
    }
    EXPECT_LE(marks.size(), 4u + 9u);
    // Whoever goes back loses at most about as much again as what was cut off.
    for (uint32_t cut = 256; cut < turn * 768; cut += 256) {
      uint32_t usable = 0;
      for (const SnapshotMark& mark : marks) {
        if (mark.offset <= turn * 768 - cut) usable = mark.offset;
      }
      EXPECT_LE(turn * 768 - cut - usable, 3 * cut + 768) << "turn " << turn << ", cut " << cut;
    }
  }
}

TEST(SnapshotPolicy, ABlockIsAWholeNumberOfUnits) {
  EXPECT_STREQ(SnapshotPolicyError({}), "");
  SnapshotPolicy policy;
  policy.block_tokens = 1000;
  EXPECT_STREQ(SnapshotPolicyError(policy), "block_tokens is not a multiple of unit_tokens");
  policy.unit_tokens = 0;
  EXPECT_STREQ(SnapshotPolicyError(policy), "unit_tokens is 0");
}

}  // namespace
}  // namespace quartet::coordinator
