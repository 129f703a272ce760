#include "services/coordinator/core/fair_queue.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <map>
#include <random>
#include <vector>

namespace quartet::coordinator {
namespace {

using ::testing::ElementsAre;

constexpr TimeUs kSecond = 1000000;

FairQueue::Prompt Prompt(uint64_t id, uint64_t tokens, uint64_t key = 0, TimeUs since = 0) {
  FairQueue::Prompt prompt;
  prompt.id = id;
  prompt.tokens = prompt.work = tokens;
  prompt.key = key;
  prompt.since = since;
  return prompt;
}

FairQueue::Prompt Batch(uint64_t id, uint64_t tokens, uint64_t key = 0) {
  FairQueue::Prompt prompt = Prompt(id, tokens, key);
  prompt.request_class = RequestClass::kBatch;
  return prompt;
}

// The queue and whoever plans with it: chunks of at most `chunk` tokens, one prompt in a plan.
class Planner {
 public:
  explicit Planner(uint32_t max_overtakes = 8, TimeUs max_wait_us = 20 * kSecond)
      : queue(max_overtakes, max_wait_us) {}

  // Who was served in one plan; 0 if nobody is here.
  uint64_t Plan(uint64_t chunk, TimeUs now = 0) {
    queue.BeginPlan(now);
    uint64_t served = 0;
    while (const FairQueue::Prompt* next = queue.Next()) {
      const uint64_t id = next->id;
      if (served != 0) {
        queue.PassOver(id);
        continue;
      }
      const uint64_t tokens = std::min({next->work, chunk, queue.turn_tokens()});
      if (queue.waits(id)) queue.Admit(id, next->work);
      queue.Serve(id, tokens);
      served_tokens[id] += tokens;
      served = id;
    }
    stuck += queue.EndPlan();
    return served;
  }
  std::vector<uint64_t> Order(uint64_t chunk = 1 << 20, TimeUs now = 0) {
    std::vector<uint64_t> order;
    while (const uint64_t id = Plan(chunk, now)) order.push_back(id);
    return order;
  }

  FairQueue queue;
  std::map<uint64_t, uint64_t> served_tokens;
  uint32_t stuck = 0;
};

TEST(FairQueue, InsideAKeyTheShortestGoesFirstAndTheOldestOfThose) {
  Planner planner;
  for (const auto& [id, tokens] : {std::pair(1, 500), {2, 100}, {3, 900}, {4, 100}}) {
    planner.queue.Push(Prompt(id, tokens));
  }
  EXPECT_THAT(planner.Order(), ElementsAre(2, 4, 1, 3));
  EXPECT_TRUE(planner.queue.empty());
}

TEST(FairQueue, AShortPromptOvertakesALongOneInTheMiddleOfItsPrefill) {
  Planner planner;
  planner.queue.Push(Prompt(1, 5000));
  EXPECT_EQ(planner.Plan(512), 1u);
  planner.queue.Push(Prompt(2, 200));
  EXPECT_EQ(planner.Plan(512), 2u);
  EXPECT_EQ(planner.Plan(512), 1u);
  EXPECT_EQ(planner.queue.overtakes(), 1u);
}

TEST(FairQueue, WhatCountsIsWhatIsLeftNotWhatThereWas) {
  Planner planner;
  planner.queue.Push(Prompt(1, 5000));
  for (int i = 0; i < 9; ++i) EXPECT_EQ(planner.Plan(512), 1u);  // 392 are left
  planner.queue.Push(Prompt(2, 400));
  EXPECT_THAT(planner.Order(512), ElementsAre(1, 2));
}

TEST(FairQueue, WhoWasOvertakenOftenEnoughIsNotOvertakenAgain) {
  Planner planner(3);
  planner.queue.Push(Prompt(1, 5000));
  std::vector<uint64_t> order;
  for (uint64_t id = 2; id < 8; ++id) {
    planner.queue.Push(Prompt(id, 10));
    order.push_back(planner.Plan(5000));
  }
  EXPECT_THAT(order, ElementsAre(2, 3, 4, 1, 5, 6));
  EXPECT_EQ(planner.queue.overtakes(), 3u);
}

TEST(FairQueue, WhoOvertakesWithManyChunksCountsOnce) {
  Planner planner(2);
  for (const auto& [id, tokens] : {std::pair(1, 500), {2, 200}, {3, 300}, {4, 400}}) {
    planner.queue.Push(Prompt(id, tokens));
  }
  const std::vector<uint64_t> order = planner.Order(100);
  // 3 has begun, which makes it the second, and goes behind 1.
  EXPECT_THAT(std::vector<uint64_t>(order.begin(), order.begin() + 5), ElementsAre(2, 2, 3, 1, 1));
  const auto last_of_one = std::find(order.rbegin(), order.rend(), 1).base();
  EXPECT_LT(last_of_one, std::find(order.begin(), order.end(), 4));
  EXPECT_EQ(planner.queue.overtakes(), 2u);
}

TEST(FairQueue, WhoHasWaitedLongEnoughIsNotOvertaken) {
  Planner planner;
  planner.queue.Push(Prompt(1, 5000));
  planner.queue.Push(Prompt(2, 4000));
  planner.queue.Push(Prompt(3, 10, 0, 19 * kSecond));
  EXPECT_THAT(planner.Order(8192, 20 * kSecond), ElementsAre(1, 2, 3));
}

TEST(FairQueue, WaitingIsCountedFromTheLastRow) {
  Planner planner;
  planner.queue.Push(Prompt(1, 5000));
  EXPECT_EQ(planner.Plan(64, 10 * kSecond), 1u);
  planner.queue.Push(Prompt(2, 10, 0, 20 * kSecond));
  EXPECT_EQ(planner.Plan(64, 21 * kSecond), 2u);
  planner.queue.Push(Prompt(3, 10, 0, 22 * kSecond));
  EXPECT_EQ(planner.Plan(64, 31 * kSecond), 1u) << "20 s without a row";
}

TEST(FairQueue, KeysTakeTurnsHoweverManyPromptsTheyHave) {
  Planner planner;
  for (uint64_t id = 1; id <= 20; ++id) planner.queue.Push(Prompt(id, 2000, 7));
  planner.queue.Push(Prompt(21, 10000, 8));
  for (int plan = 0; plan < 40; ++plan) planner.Plan(256);
  uint64_t of_seven = 0;
  for (uint64_t id = 1; id <= 20; ++id) of_seven += planner.served_tokens[id];
  EXPECT_NEAR(static_cast<double>(of_seven), 5120, 512);
  EXPECT_NEAR(static_cast<double>(planner.served_tokens[21]), 5120, 512);
}

TEST(FairQueue, KeysWithChunksLargerThanATurnComeOutEvenToo) {
  Planner planner;
  planner.queue.Push(Prompt(1, 1000000, 1));  // chunks of 2,000
  planner.queue.Push(Prompt(2, 1000000, 2));
  for (uint64_t id = 3; id <= 200; ++id) planner.queue.Push(Prompt(id, 100, 3));
  for (int plan = 0; plan < 200; ++plan) planner.Plan(2000);
  uint64_t of_three = 0;
  for (uint64_t id = 3; id <= 200; ++id) of_three += planner.served_tokens[id];
  EXPECT_NEAR(static_cast<double>(planner.served_tokens[1]), static_cast<double>(of_three), 3000);
  EXPECT_NEAR(static_cast<double>(planner.served_tokens[2]), static_cast<double>(of_three), 3000);
}

TEST(FairQueue, WhoWasAloneOwesNothing) {
  Planner planner;
  planner.queue.Push(Prompt(1, 100000, 1));
  for (int plan = 0; plan < 20; ++plan) planner.Plan(2048);
  planner.queue.Push(Prompt(2, 100000, 2));
  for (int plan = 0; plan < 20; ++plan) planner.Plan(512);
  EXPECT_EQ(planner.served_tokens[1], 20u * 2048 + 10 * 512);
  EXPECT_EQ(planner.served_tokens[2], 10u * 512);
}

TEST(FairQueue, BatchHasWhatInteractiveLeaves) {
  Planner planner;
  planner.queue.Push(Batch(1, 10));
  planner.queue.Push(Prompt(2, 5000));
  planner.queue.Push(Prompt(3, 6000, 9));
  planner.queue.Push(Batch(4, 5, 9));
  EXPECT_THAT(planner.Order(), ElementsAre(2, 3, 1, 4));
  EXPECT_EQ(planner.queue.overtakes(), 0u) << "a class is no queue that one is overtaken in";
}

TEST(FairQueue, PreemptedRequestsComeFirstAndTheOldestOfThemAtTheHead) {
  Planner planner;
  planner.queue.Push(Prompt(5, 10));
  planner.queue.Push(Prompt(6, 10));
  for (const uint64_t id : {4, 2, 3}) planner.queue.PushPreempted(Prompt(id, 1000 * id));
  EXPECT_THAT(planner.Order(), ElementsAre(2, 3, 4, 5, 6));
  EXPECT_EQ(planner.queue.overtakes(), 0u);
}

TEST(FairQueue, WhoIsPreemptedInTheMiddleOfAPromptStartsAgain) {
  Planner planner;
  planner.queue.Push(Prompt(1, 1000));
  planner.Plan(600);
  EXPECT_EQ(planner.queue.size(), 0u);
  planner.queue.PushPreempted(Prompt(1, 1000));
  EXPECT_EQ(planner.queue.size(), 1u);
  EXPECT_EQ(planner.queue.Everything().work, 1000u);
}

TEST(FairQueue, CountsTheTokensThatWait) {
  FairQueue queue(8, 20 * kSecond);
  queue.Push(Prompt(1, 100));
  queue.Push(Prompt(2, 20));
  queue.PushPreempted(Prompt(0, 3));
  EXPECT_EQ(queue.tokens(), 123u);
  EXPECT_TRUE(queue.Remove(1));
  EXPECT_FALSE(queue.Remove(1));
  EXPECT_EQ(queue.tokens(), 23u);
  queue.BeginPlan(0);
  queue.Admit(0, 3);
  EXPECT_EQ(queue.tokens(), 20u);
  EXPECT_EQ(queue.size(), 1u);
  EXPECT_EQ(queue.Everything().work, 23u);
}

TEST(FairQueue, KnowsWhatIsBeforeAPrompt) {
  FairQueue queue(8, 20 * kSecond);
  queue.Push(Prompt(1, 5000));
  queue.Push(Prompt(2, 300));
  EXPECT_EQ(queue.WorkAhead(Prompt(9, 200)).work, 0u);
  EXPECT_EQ(queue.WorkAhead(Prompt(9, 1000)).work, 300u);
  EXPECT_EQ(queue.WorkAhead(Prompt(9, 5000)).work, 5300u);
  EXPECT_EQ(queue.WorkAhead(Prompt(9, 5000)).waiting, 2u);
  // Another key has as much as this one.
  EXPECT_EQ(queue.WorkAhead(Prompt(9, 200, 7)).work, 200u);
  EXPECT_EQ(queue.WorkAhead(Prompt(9, 9000, 7)).work, 5300u);
  // Batch waits for all, and nobody waits for batch.
  queue.Push(Batch(3, 50));
  EXPECT_EQ(queue.WorkAhead(Prompt(9, 1000)).work, 300u);
  EXPECT_EQ(queue.WorkAhead(Batch(9, 10)).work, 5300u);
  EXPECT_EQ(queue.WorkAhead(Batch(9, 60)).work, 5350u);
}

TEST(FairQueueO3, WhoIsOnlyHelpedDoesNotGetMoreThanItsShare) {
  Planner planner;
  planner.queue.Push(Prompt(1, 1000000, 1));
  planner.Plan(2000);
  for (uint64_t id = 2; id <= 400; ++id) planner.queue.Push(Prompt(id, 100, 2));
  const uint64_t before = planner.served_tokens[1];
  for (int plan = 0; plan < 8; ++plan) planner.Plan(2000);
  EXPECT_EQ(planner.served_tokens[1] - before, 2000u + kChunkMultiple);
  for (int plan = 0; plan < 8; ++plan) planner.Plan(2000);
  EXPECT_EQ(planner.served_tokens[1] - before, 2000u + 3 * kChunkMultiple);
}

// O3: a planner that takes the prompts as they come gives each its row in time.
TEST(FairQueueO3, EveryAdmittedPromptHasARowInEveryEightPlans) {
  std::mt19937_64 random(3);
  Planner planner;
  std::vector<uint64_t> open;
  uint64_t next_id = 1;
  uint32_t longest_idle = 0;
  for (int plan = 0; plan < 20000; ++plan) {
    // Four long ones in the middle, and short ones that come and pass them.
    while (open.size() < kOpenPromptsMax) {
      planner.queue.Push(Prompt(next_id, 2000 + random() % 20000, random() % 3, plan * 1000));
      open.push_back(next_id++);
      const FairQueue::Prompt admitted = Prompt(open.back(), 20000);
      planner.queue.BeginPlan(plan * 1000);
      planner.queue.Admit(admitted.id, admitted.work);
    }
    if (random() % 2 == 0 && planner.queue.size() < 10) {
      planner.queue.Push(Prompt(next_id++, 1 + random() % 64, random() % 3));
    }
    planner.Plan(64, plan * 1000);
    std::erase_if(open, [&](uint64_t id) { return !planner.queue.IdlePlans(id).has_value(); });
    for (const uint64_t id : open) {
      longest_idle = std::max(longest_idle, *planner.queue.IdlePlans(id));
    }
  }
  EXPECT_EQ(planner.stuck, 0u);
  EXPECT_LT(longest_idle, kProgressPlans);
  EXPECT_GE(longest_idle, kProgressPlans - kOpenPromptsMax) << "nobody ever had to be helped";
}

TEST(FairQueueO3, APromptThatIsPassedOverForEightPlansIsReportedOnce) {
  FairQueue queue(8, 20 * kSecond);
  queue.Push(Prompt(1, 5000));
  queue.BeginPlan(0);
  queue.Admit(1, 5000);
  queue.Serve(1, 64);
  EXPECT_EQ(queue.EndPlan(), 0u);
  std::vector<uint32_t> reported;
  for (int plan = 0; plan < 20; ++plan) {
    queue.BeginPlan(0);
    queue.PassOver(1);
    if (queue.EndPlan() > 0) reported.push_back(*queue.IdlePlans(1));
  }
  EXPECT_THAT(reported, ElementsAre(kProgressPlans));
}

TEST(FairQueueO3, PlansThatAreHeldUpDoNotCount) {
  FairQueue queue(8, 20 * kSecond);
  queue.Push(Prompt(1, 5000));
  queue.BeginPlan(0);
  queue.Admit(1, 5000);
  queue.Serve(1, 64);
  queue.EndPlan();
  for (int plan = 0; plan < 20; ++plan) {
    queue.BeginPlan(0);
    queue.PassOver(1);
    EXPECT_EQ(queue.EndPlan(true), 0u);
  }
  EXPECT_EQ(queue.IdlePlans(1), 0u);
}

}  // namespace
}  // namespace quartet::coordinator
