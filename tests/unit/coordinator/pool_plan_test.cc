#include "services/coordinator/membership/pool_plan.h"

#include <gmock/gmock.h>

namespace quartet::coordinator {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kMiB = 1 << 20;

// 100 MiB: 60 weights, 5 activations, 4 slots of 1 MiB, so 31 MiB for pages of 1 MiB.
MemoryOffer Offer() {
  MemoryOffer offer;
  offer.tensor_parallel_size = 2;
  offer.budget_bytes = 100 * kMiB;
  offer.weight_bytes = 60 * kMiB;
  offer.slot_bytes = kMiB;
  offer.page_bytes = kMiB;
  offer.activation_bytes_per_token = kMiB / 100 * 1;
  offer.page_tokens = 256;
  return offer;
}

PoolLimits Limits() {
  PoolLimits limits;
  limits.max_num_seqs = 4;
  limits.max_num_batched_tokens = 512;
  limits.max_model_len = 5120;  // 20 pages
  limits.max_position_embeddings = 8192;
  return limits;
}

TEST(PoolPlan, PagesGetWhatWeightsActivationsAndSlotsLeave) {
  auto plan = PlanPools({Offer(), Offer()}, Limits());
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->slots, 4u);
  EXPECT_EQ(plan->pages, 30u);
  EXPECT_EQ(plan->max_model_len, 5120u);
  EXPECT_EQ(plan->page_tokens, 256u);
}

TEST(PoolPlan, TheTightestRankDecides) {
  MemoryOffer tight = Offer();
  tight.budget_bytes = 95 * kMiB;
  auto plan = PlanPools({Offer(), tight}, Limits());
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->pages, 25u);
}

TEST(PoolPlan, NeverMoreThanMaxNumSeqsFullContexts) {
  MemoryOffer rich = Offer();
  rich.budget_bytes = uint64_t{1} << 40;
  auto plan = PlanPools({rich}, Limits());
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->pages, 80u);
}

TEST(PoolPlan, ATierHasHalfOfItsBytesForSnapshotsAndNeverMoreOfThemThanPages) {
  TierPlaces tier = PlanTier(100 * kMiB, kMiB, 5 * kMiB);
  EXPECT_EQ(tier.snapshots, 10u);
  EXPECT_EQ(tier.pages, 50u);
  tier = PlanTier(100 * kMiB, 4 * kMiB, kMiB);
  EXPECT_EQ(tier.snapshots, 20u);
  EXPECT_EQ(tier.pages, 20u);
  EXPECT_EQ(PlanTier(0, kMiB, kMiB).pages, 0u);
  EXPECT_EQ(PlanTier(kMiB, kMiB, kMiB).pages, 0u) << "no room for one of each";
  EXPECT_EQ(PlanTier(uint64_t{1} << 50, kMiB, kMiB).pages, kMaxTierPages);
}

TEST(PoolPlan, TheTiersBelowTheDeviceAreThoseOfTheTightestRank) {
  PoolLimits limits = Limits();
  limits.prefix_caching = true;
  MemoryOffer rich = Offer();
  rich.snapshot_bytes = kMiB;
  rich.host_cache_bytes = 20 * kMiB;
  rich.disk_cache_bytes = 100 * kMiB;
  MemoryOffer poor = rich;
  poor.host_cache_bytes = 10 * kMiB;
  PoolPlan plan = *PlanPools({rich, poor}, limits);
  EXPECT_EQ(plan.host.pages, 5u);
  EXPECT_EQ(plan.host.snapshots, 5u);
  EXPECT_EQ(plan.disk.pages, 50u);
  EXPECT_TRUE(FitsPools(rich, plan, limits).ok());
  poor.host_cache_bytes = 9 * kMiB;
  EXPECT_THAT(std::string(FitsPools(poor, plan, limits).message()), HasSubstr("--host-cache-gib"));
  poor = rich;
  poor.disk_cache_bytes = 0;
  EXPECT_THAT(std::string(FitsPools(poor, plan, limits).message()), HasSubstr("--disk-cache-gib"));

  EXPECT_EQ(PlanPools({rich, poor}, limits)->disk.pages, 0u);
  poor.host_cache_bytes = 0;
  plan = *PlanPools({rich, poor}, limits);
  EXPECT_EQ(plan.host.pages, 0u);
  limits.prefix_caching = false;
  EXPECT_EQ(PlanPools({rich}, limits)->host.pages, 0u);
}

TEST(PoolPlan, SnapshotsGetWhatPagesLeave) {
  MemoryOffer offer = Offer();
  offer.snapshot_bytes = kMiB / 2;
  PoolLimits limits = Limits();
  EXPECT_EQ(PlanPools({offer}, limits)->snapshots, 0u);  // not asked for
  limits.prefix_caching = true;
  // Pages come first but for the four snapshots that must be there.
  auto plan = PlanPools({offer}, limits);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->pages, 28u);
  EXPECT_EQ(plan->snapshots, 5u);
  // All pages that can be used, and then the rest: the tightest rank decides.
  MemoryOffer rich = offer;
  rich.budget_bytes = 160 * kMiB;
  EXPECT_EQ(PlanPools({rich}, limits)->pages, 80u);
  EXPECT_EQ(PlanPools({rich}, limits)->snapshots, 21u);
  EXPECT_EQ(PlanPools({rich, offer}, limits)->snapshots, 5u);
  // Never more than pages.
  rich.budget_bytes = uint64_t{1} << 40;
  EXPECT_EQ(PlanPools({rich}, limits)->snapshots, 80u);
  // A worker that keeps none.
  EXPECT_EQ(PlanPools({rich, Offer()}, limits)->snapshots, 0u);
}

TEST(PoolPlan, AWorkerWithoutRoomForTheSnapshotsDoesNotFit) {
  MemoryOffer offer = Offer();
  offer.snapshot_bytes = kMiB / 2;
  PoolLimits limits = Limits();
  limits.prefix_caching = true;
  const PoolPlan plan = *PlanPools({offer}, limits);
  EXPECT_TRUE(FitsPools(offer, plan, limits).ok());
  offer.budget_bytes -= kMiB / 2;
  EXPECT_THAT(std::string(FitsPools(offer, plan, limits).message()),
              HasSubstr("28 pages of 256 tokens and 5 snapshots; this worker has room for 28 pages "
                        "and 4 snapshots"));
}

TEST(PoolPlan, IfNotOneContextFitsTheErrorSaysWhatWould) {
  PoolLimits limits = Limits();
  limits.max_model_len = 8192;  // 32 pages
  auto plan = PlanPools({Offer()}, limits);
  ASSERT_FALSE(plan.ok());
  const std::string message(plan.status().message());
  EXPECT_THAT(message, HasSubstr("one context of 8192 tokens needs 32 pages"));
  EXPECT_THAT(message, HasSubstr("only 30 fit"));
  EXPECT_THAT(message, HasSubstr("budget 100.0 MiB"));
  EXPECT_THAT(message, HasSubstr("weights 60.0 MiB"));
  EXPECT_THAT(message, HasSubstr("the largest --max-model-len that fits is 7680"));
  limits.max_model_len = 7680;
  EXPECT_TRUE(PlanPools({Offer()}, limits).ok());
  limits.max_model_len = 7681;
  EXPECT_FALSE(PlanPools({Offer()}, limits).ok());
}

TEST(PoolPlan, IfNotEvenTheWeightsFitTheErrorNamesTheFlagsThatHelp) {
  MemoryOffer poor = Offer();
  poor.budget_bytes = 50 * kMiB;
  auto plan = PlanPools({poor}, Limits());
  ASSERT_FALSE(plan.ok());
  EXPECT_THAT(std::string(plan.status().message()), HasSubstr("--memory-gib"));
}

TEST(PoolPlan, TheDefaultContextIsTheModelsButAtMost131072) {
  PoolLimits limits = Limits();
  limits.max_model_len = 0;
  EXPECT_EQ(*ResolveMaxModelLen(limits), 8192u);
  limits.max_position_embeddings = 1 << 20;
  EXPECT_EQ(*ResolveMaxModelLen(limits), 131072u);
  limits.max_model_len = 200000;
  EXPECT_EQ(*ResolveMaxModelLen(limits), 200000u);
}

TEST(PoolPlan, MoreThanTheModelsPositionsIsAnError) {
  PoolLimits limits = Limits();
  limits.max_model_len = 8193;
  auto length = ResolveMaxModelLen(limits);
  ASSERT_FALSE(length.ok());
  EXPECT_THAT(std::string(length.status().message()),
              HasSubstr("--max-model-len 8193 is more than the model's 8192 positions"));
}

TEST(PoolPlan, OffersWithoutPagesAreRefusedAndNotDividedBy) {
  MemoryOffer broken = Offer();
  broken.page_bytes = 0;
  EXPECT_FALSE(PlanPools({broken}, Limits()).ok());
  broken = Offer();
  broken.page_tokens = 0;
  EXPECT_FALSE(PlanPools({broken}, Limits()).ok());
}

TEST(PoolPlan, ALateWorkerMustHoldTheAgreedPools) {
  auto plan = PlanPools({Offer()}, Limits());
  ASSERT_TRUE(plan.ok());
  EXPECT_TRUE(FitsPools(Offer(), *plan, Limits()).ok());
  MemoryOffer tight = Offer();
  tight.budget_bytes -= 2 * kMiB;
  EXPECT_THAT(std::string(FitsPools(tight, *plan, Limits()).message()),
              HasSubstr("agreed at 30 pages"));
}

}  // namespace
}  // namespace quartet::coordinator
