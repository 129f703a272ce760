#include "services/gateway/routing/text_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>

namespace quartet::gateway {
namespace {

TEST(TextPool, RefusesWhatDoesNotFitIntoItsQueue) {
  std::promise<void> started, go;
  std::shared_future<void> gate = go.get_future().share();
  std::atomic<int> ran{0};
  {
    TextPool pool(1, {.jobs_max = 2, .bytes_max = 100});
    ASSERT_TRUE(pool.Post(1, [&] {
      started.set_value();
      gate.wait();
      ++ran;
    }));
    started.get_future().wait();  // the thread is busy and the queue is empty
    EXPECT_TRUE(pool.Post(60, [&] { ++ran; }));
    EXPECT_FALSE(pool.Post(60, [&] { ++ran; })) << "more bytes than may wait";
    EXPECT_TRUE(pool.Post(40, [&] { ++ran; }));
    EXPECT_FALSE(pool.Post(0, [&] { ++ran; })) << "more jobs than may wait";
    go.set_value();
  }
  EXPECT_EQ(ran, 3) << "what was taken is run, also when the pool ends";
}

TEST(TextPool, TakesAnyJobIntoAnEmptyQueue) {
  std::promise<void> ran;
  TextPool pool(1, {.jobs_max = 2, .bytes_max = 100});
  EXPECT_TRUE(pool.Post(1000, [&] { ran.set_value(); }));
  ran.get_future().wait();
}

}  // namespace
}  // namespace quartet::gateway
