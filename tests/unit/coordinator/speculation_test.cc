#include "services/coordinator/core/speculation.h"

#include <gtest/gtest.h>

#include <random>

namespace quartet::coordinator {
namespace {

// Chooses as often as it takes for the length to be reconsidered.
uint32_t Reconsider(DraftLength& length, const DecodeCost& cost, uint32_t others = 0) {
  uint32_t chosen = 0;
  for (uint32_t i = 0; i < DraftLength::kStepsPerChoice; ++i) chosen = length.Choose(cost, others);
  return chosen;
}

DecodeCost Measured(TimeUs base, TimeUs per_token) {
  DecodeCost cost;
  for (int i = 0; i < 200; ++i) {
    const auto tokens = static_cast<uint32_t>(1 + i % 8);
    cost.Observe(tokens, base + per_token * tokens);
  }
  return cost;
}

TEST(DecodeCost, FindsTheLineThroughWhatWasMeasured) {
  const DecodeCost cost = Measured(5000, 400);
  EXPECT_NEAR(cost.StepUs(1), 5400, 100);
  EXPECT_NEAR(cost.StepUs(8), 8200, 100);
}

TEST(DecodeCost, FromOneSizeAloneATokenMoreCostsItsShareOfTheBytes) {
  DecodeCost cost;
  const double share = cost.StepUs(2) / cost.StepUs(1);
  for (int i = 0; i < 1000; ++i) cost.Observe(1, 6000);
  EXPECT_NEAR(cost.StepUs(1), 6000, 1);
  EXPECT_NEAR(cost.StepUs(2) / cost.StepUs(1), share, 1e-6);
}

TEST(DecodeCost, AStepThatStoodStillForAWhileDoesNotCountInFull) {
  DecodeCost cost = Measured(5000, 400);
  const double before = cost.StepUs(4);
  cost.Observe(4, 60'000'000);
  EXPECT_LT(cost.StepUs(4), 1.1 * before);
}

TEST(DecodeCost, FollowsAMachineThatBecameSlower) {
  DecodeCost cost = Measured(5000, 400);
  for (int i = 0; i < 1000; ++i) cost.Observe(1 + i % 8, 20000 + 4000 * (1 + i % 8));
  EXPECT_NEAR(cost.StepUs(4), 36000, 1000);
}

TEST(DecodeCost, NoTimeAtAllIsNoMeasurement) {
  DecodeCost cost;
  cost.Observe(3, 0);
  cost.Observe(3, -5);
  EXPECT_EQ(cost.StepUs(3), DecodeCost().StepUs(3));
}

TEST(DraftLength, StartsAtTheLongest) {
  DraftLength length(3);
  EXPECT_EQ(length.Choose(DecodeCost(), 0), 3u);
}

TEST(DraftLength, StaysForSixteenStepsAndThenFollowsTheAcceptance) {
  DraftLength length(3);
  for (int i = 0; i < 100; ++i) length.Observe(3, 0);
  for (uint32_t i = 1; i < DraftLength::kStepsPerChoice; ++i) {
    EXPECT_EQ(length.Choose(DecodeCost(), 0), 3u) << i;
  }
  EXPECT_EQ(length.Choose(DecodeCost(), 0), 0u);
}

TEST(DraftLength, AcceptanceIsThatOfEachPlaceGivenTheOnesBefore) {
  DraftLength length(3);
  for (int i = 0; i < 1000; ++i) length.Observe(3, i % 2 == 0 ? 1 : 3);
  EXPECT_NEAR(length.Acceptance(0), 1, 0.05);
  EXPECT_NEAR(length.Acceptance(1), 0.5, 0.05);
  EXPECT_NEAR(length.Acceptance(2), 1, 0.1);
}

TEST(DraftLength, IsWhatYieldsMostTokensInATime) {
  // Half of the first drafts are right, and nothing behind them.
  const auto chosen = [](TimeUs base, TimeUs per_token) {
    DraftLength length(3);
    for (int i = 0; i < 200; ++i) length.Observe(3, i % 2);
    return Reconsider(length, Measured(base, per_token));
  };
  EXPECT_EQ(chosen(10000, 1000), 1u) << "1.5 tokens for 9 % more time";
  EXPECT_EQ(chosen(500, 1000), 0u) << "1.5 tokens for 67 % more time";
}

TEST(DraftLength, BesideManyOthersADraftCostsAShareOfTheStepOnly) {
  DraftLength length(3);
  for (int i = 0; i < 200; ++i) length.Observe(3, i % 2);
  EXPECT_EQ(Reconsider(length, Measured(500, 1000), 0), 0u);
  EXPECT_GE(Reconsider(length, Measured(500, 1000), 30), 1u);
}

TEST(DraftLength, WhatWasGivenUpIsTriedAgainLater) {
  DraftLength length(3);
  for (int i = 0; i < 100; ++i) length.Observe(3, 0);
  const DecodeCost cost = Measured(10000, 1000);
  ASSERT_EQ(Reconsider(length, cost), 0u);
  uint32_t chosen = 0;
  int windows = 0;
  for (; chosen == 0 && windows < 1000; ++windows) {
    length.Observe(0, 0);
    chosen = length.Choose(cost, 0);
  }
  EXPECT_GT(chosen, 0u);
  EXPECT_GE(windows, 16);
}

TEST(DraftLength, NeverLongerThanItMayBe) {
  for (uint32_t longest = 0; longest <= kMaxDraftTokens; ++longest) {
    DraftLength length(longest);
    std::mt19937 random(longest);
    for (int i = 0; i < 500; ++i) {
      const uint32_t drafted = length.Choose(DecodeCost(), 0);
      ASSERT_LE(drafted, longest);
      length.Observe(drafted, static_cast<uint32_t>(random() % (drafted + 1)));
    }
  }
}

}  // namespace
}  // namespace quartet::coordinator
