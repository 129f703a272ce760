#include "services/coordinator/rpc/inventory.h"

#include <gmock/gmock.h>

#include <algorithm>

namespace quartet::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

v1::CacheInventory Of(const std::vector<uint32_t>& places, uint64_t key = 7) {
  v1::CacheInventory message;
  for (const uint32_t place : places) {
    v1::CacheEntry& entry = *message.add_entries();
    entry.set_kind(v1::Copy::KIND_SNAPSHOT);
    entry.set_place(place);
    entry.mutable_name()->set_key_high(key);
    entry.mutable_name()->set_n_tokens(512);
    entry.mutable_origin()->set_parent_low(3);
    entry.mutable_origin()->add_tokens(42);
  }
  return message;
}

std::vector<uint32_t> Places(const std::vector<CacheEntry>& entries) {
  std::vector<uint32_t> places;
  for (const CacheEntry& entry : entries) places.push_back(entry.place);
  std::sort(places.begin(), places.end());
  return places;
}

constexpr uint64_t kWorkers[] = {10, 11};

TEST(Inventory, WhatAllRanksHaveInTheSamePlaceCounts) {
  Inventory inventory;
  EXPECT_TRUE(inventory.Add(10, Of({1, 2, 3})));
  EXPECT_TRUE(inventory.Add(11, Of({2})));
  EXPECT_TRUE(inventory.Add(11, Of({3, 4})));
  const std::vector<CacheEntry> common = inventory.TakeCommon(kWorkers);
  EXPECT_THAT(Places(common), ElementsAre(2, 3));
  EXPECT_EQ(common.front().kind, TierCopy::Kind::kSnapshot);
  EXPECT_EQ(common.front().key, (UnitKey{7, 0}));
  EXPECT_EQ(common.front().n_tokens, 512u);
  EXPECT_EQ(common.front().origin.parent, (UnitKey{0, 3}));
  EXPECT_THAT(common.front().origin.tokens, ElementsAre(42));
  EXPECT_THAT(inventory.TakeCommon(kWorkers), IsEmpty()) << "once";
}

TEST(Inventory, OneRankThatKnowsNothingOrSomethingElseIsEnoughAgainstIt) {
  Inventory inventory;
  inventory.Add(10, Of({1}));
  EXPECT_THAT(inventory.TakeCommon(kWorkers), IsEmpty());
  inventory.Add(10, Of({1}));
  inventory.Add(11, Of({1}, 8));
  EXPECT_THAT(inventory.TakeCommon(kWorkers), IsEmpty());
}

TEST(Inventory, AWorkerThatLeftIsForgotten) {
  Inventory inventory;
  inventory.Add(10, Of({1}));
  inventory.Add(11, Of({1}));
  inventory.Forget(11);
  EXPECT_THAT(inventory.TakeCommon(kWorkers), IsEmpty());
}

}  // namespace
}  // namespace quartet::coordinator
