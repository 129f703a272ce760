#include "services/coordinator/core/queue.h"

#include <gmock/gmock.h>

#include <vector>

#include "services/coordinator/core/free_pool.h"

namespace quartet::coordinator {
namespace {

using ::testing::ElementsAre;

std::vector<uint64_t> Order(RequestQueue queue) {
  std::vector<uint64_t> order;
  for (; !queue.empty(); queue.PopFront()) order.push_back(queue.Front().id);
  return order;
}

TEST(RequestQueue, ServesInOrderOfArrival) {
  RequestQueue queue;
  for (uint64_t id : {3, 4, 7}) queue.Push({id, 10});
  EXPECT_THAT(Order(queue), ElementsAre(3, 4, 7));
}

TEST(RequestQueue, PreemptedRequestsComeFirstAndTheOldestOfThemAtTheHead) {
  RequestQueue queue;
  queue.Push({5, 10});
  queue.Push({6, 10});
  queue.PushPreempted({4, 10});  // the youngest gives up its place first
  queue.PushPreempted({2, 10});
  queue.PushPreempted({3, 10});
  EXPECT_THAT(Order(queue), ElementsAre(2, 3, 4, 5, 6));
}

TEST(RequestQueue, CountsTheTokensThatWait) {
  RequestQueue queue;
  queue.Push({1, 100});
  queue.Push({2, 20});
  queue.PushPreempted({0, 3});
  EXPECT_EQ(queue.tokens(), 123u);
  EXPECT_TRUE(queue.Remove(1));
  EXPECT_FALSE(queue.Remove(1));
  EXPECT_EQ(queue.tokens(), 23u);
  queue.PopFront();
  EXPECT_EQ(queue.tokens(), 20u);
  EXPECT_EQ(queue.size(), 1u);
}

TEST(FreePool, HandsOutEachPlaceOnceUntilItComesBack) {
  FreePool pool(3);
  EXPECT_EQ(pool.Take(), 0u);
  EXPECT_EQ(pool.Take(), 1u);
  EXPECT_EQ(pool.Take(), 2u);
  EXPECT_EQ(pool.Take(), std::nullopt);
  EXPECT_EQ(pool.used(), 3u);
  pool.Return(1);
  EXPECT_FALSE(pool.IsTaken(1));
  EXPECT_EQ(pool.free(), 1u);
  EXPECT_EQ(pool.Take(), 1u);
}

}  // namespace
}  // namespace quartet::coordinator
