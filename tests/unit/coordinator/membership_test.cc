#include "services/coordinator/membership/membership.h"

#include <gmock/gmock.h>

namespace quartet::coordinator {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using Action = Membership::Action;
using Kind = Membership::Action::Kind;

WorkerFacts Facts(int32_t previous_rank = -1) {
  WorkerFacts facts;
  facts.device_uuid = "cpu-test";
  facts.previous_rank = previous_rank;
  facts.checkpoint_digest = "abc";
  facts.vocab_size = 1000;
  facts.max_position_embeddings = 2048;
  facts.schema_version = 1;
  for (uint32_t size : {1u, 2u, 4u}) {
    facts.offers.push_back({size, 1 << 30, 1 << 20, 1 << 20, 1 << 10, 1 << 10, 256});
  }
  return facts;
}

Membership Group(uint32_t size, uint32_t max_model_len = 0) {
  return Membership({size, PoolLimits{4, 512, max_model_len, 0}});
}

// "worker:rank" of each welcome.
std::vector<std::string> Welcomes(const std::vector<Action>& actions) {
  std::vector<std::string> welcomes;
  for (const Action& action : actions) {
    if (action.kind != Kind::kWelcome) continue;
    welcomes.push_back(std::to_string(action.worker) + ":" + std::to_string(action.rank));
  }
  return welcomes;
}

TEST(Membership, WelcomesEverybodyWhenTheLastRankIsTakenBecausePoolsNeedAllOffers) {
  Membership group = Group(2);
  EXPECT_THAT(group.OnHello(10, Facts()), IsEmpty());
  EXPECT_FALSE(group.pools().has_value());
  EXPECT_THAT(Welcomes(group.OnHello(11, Facts())), ::testing::ElementsAre("10:0", "11:1"));
  ASSERT_TRUE(group.pools().has_value());
  EXPECT_EQ(group.pools()->max_model_len, 2048u);
}

TEST(Membership, IsReadyOnceWhenAllRanksAre) {
  Membership group = Group(2);
  group.OnHello(10, Facts());
  group.OnHello(11, Facts());
  EXPECT_THAT(group.OnReady(11), IsEmpty());
  auto actions = group.OnReady(10);
  ASSERT_THAT(actions, SizeIs(1));
  EXPECT_EQ(actions[0].kind, Kind::kReady);
  EXPECT_TRUE(group.ready());
  EXPECT_THAT(group.OnReady(10), IsEmpty());
}

TEST(Membership, ReadyWithoutAWelcomeIsRefused) {
  Membership group = Group(2);
  group.OnHello(10, Facts());
  EXPECT_EQ(group.OnReady(10).at(0).kind, Kind::kRefuse);
  EXPECT_EQ(group.OnReady(99).at(0).kind, Kind::kRefuse);
}

TEST(Membership, APreviousRankIsGivenBackWhenItIsFree) {
  Membership group = Group(4);
  group.OnHello(10, Facts(2));
  group.OnHello(11, Facts(2));  // taken: the lowest free one
  group.OnHello(12, Facts(99));
  EXPECT_EQ(group.RankOf(10), 2u);
  EXPECT_EQ(group.RankOf(11), 0u);
  EXPECT_EQ(group.RankOf(12), 1u);
}

TEST(Membership, WhoComesTooManyWaitsAndTakesOverALostRankBeforeItIsReady) {
  Membership group = Group(2);
  group.OnHello(10, Facts());
  group.OnHello(11, Facts());
  auto actions = group.OnHello(12, Facts());
  ASSERT_THAT(actions, SizeIs(1));
  EXPECT_EQ(actions[0].kind, Kind::kSpare);
  group.OnReady(10);
  EXPECT_THAT(Welcomes(group.OnGone(11, "killed")), ::testing::ElementsAre("12:1"));
  EXPECT_EQ(group.OnReady(12).at(0).kind, Kind::kReady);
}

TEST(Membership, WithoutASpareALostRankWaitsForWhoeverDialsIn) {
  Membership group = Group(2);
  group.OnHello(10, Facts());
  group.OnHello(11, Facts());
  EXPECT_THAT(group.OnGone(10, "killed"), IsEmpty());
  EXPECT_THAT(Welcomes(group.OnHello(12, Facts())), ::testing::ElementsAre("12:0"));
}

TEST(Membership, ASpareThatDoesNotHoldTheAgreedPoolsIsRefused) {
  Membership group = Group(1);
  group.OnHello(10, Facts());
  WorkerFacts poor = Facts();
  for (MemoryOffer& offer : poor.offers) offer.budget_bytes = 3 << 20;
  group.OnHello(11, poor);
  auto actions = group.OnGone(10, "killed");
  ASSERT_THAT(actions, SizeIs(1));
  EXPECT_EQ(actions[0].kind, Kind::kRefuse);
  EXPECT_EQ(actions[0].worker, 11u);
  EXPECT_FALSE(group.RankOf(11).has_value());
}

TEST(Membership, LosingAReadyRankEndsTheEngineWithItsNameAndTheCause) {
  Membership group = Group(1);
  group.OnHello(10, Facts());
  group.OnReady(10);
  auto actions = group.OnGone(10, "its process ended");
  ASSERT_THAT(actions, SizeIs(1));
  EXPECT_EQ(actions[0].kind, Kind::kFatal);
  EXPECT_EQ(actions[0].message, "rank 0 (cpu-test) is lost: its process ended");
}

TEST(Membership, LosingASpareIsNothing) {
  Membership group = Group(1);
  group.OnHello(10, Facts());
  group.OnHello(11, Facts());
  EXPECT_THAT(group.OnGone(11, "killed"), IsEmpty());
  EXPECT_THAT(group.OnGone(12345, "never known"), IsEmpty());
}

TEST(Membership, AnotherCheckpointIsRefusedAndTheEngineGoesOn) {
  Membership group = Group(2);
  group.OnHello(10, Facts());
  WorkerFacts other = Facts();
  other.checkpoint_digest = "xyz";
  auto actions = group.OnHello(11, other);
  ASSERT_THAT(actions, SizeIs(1));
  EXPECT_EQ(actions[0].kind, Kind::kRefuse);
  EXPECT_THAT(actions[0].message, HasSubstr("digest xyz"));
  EXPECT_THAT(actions[0].message, HasSubstr("digest abc"));
  EXPECT_THAT(Welcomes(group.OnHello(12, Facts())), SizeIs(2));
}

TEST(Membership, WhenEverybodyLeftAnotherCheckpointMayCome) {
  Membership group = Group(2);
  group.OnHello(10, Facts());
  group.OnGone(10, "killed");
  WorkerFacts other = Facts();
  other.checkpoint_digest = "xyz";
  group.OnHello(11, other);
  EXPECT_EQ(group.RankOf(11), 0u);
}

TEST(Membership, ATensorParallelSizeThatTheModelHasNotEndsTheEngineNamingThePossibleOnes) {
  Membership group = Group(3);
  auto actions = group.OnHello(10, Facts());
  ASSERT_THAT(actions, SizeIs(2));
  EXPECT_EQ(actions[0].kind, Kind::kRefuse);
  EXPECT_EQ(actions[1].kind, Kind::kFatal);
  EXPECT_EQ(actions[1].message,
            "tensor-parallel size 3 is not possible for this model; possible: 1, 2, 4");
}

TEST(Membership, AContextThatDoesNotFitEndsTheEngineWithTheFigures) {
  Membership group = Group(2, 2048);
  WorkerFacts poor = Facts();
  for (MemoryOffer& offer : poor.offers) offer.budget_bytes = (5 << 20) + (512 << 10) + (3 << 10);
  group.OnHello(10, poor);
  auto actions = group.OnHello(11, Facts());
  ASSERT_THAT(actions, SizeIs(3));
  EXPECT_EQ(actions[0].kind, Kind::kRefuse);
  EXPECT_EQ(actions[1].kind, Kind::kRefuse);
  EXPECT_EQ(actions[2].kind, Kind::kFatal);
  EXPECT_THAT(actions[2].message, HasSubstr("the largest --max-model-len that fits is 768"));
}

TEST(Membership, AnotherProtocolVersionIsRefused) {
  Membership group = Group(1);
  WorkerFacts facts = Facts();
  facts.schema_version = 2;
  auto actions = group.OnHello(10, facts);
  ASSERT_THAT(actions, SizeIs(1));
  EXPECT_THAT(actions[0].message, HasSubstr("version 2"));
}

}  // namespace
}  // namespace quartet::coordinator
