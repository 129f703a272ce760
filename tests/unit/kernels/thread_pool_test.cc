#include "kernels/cpu/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <numeric>
#include <thread>
#include <vector>

namespace quartet::cpu {
namespace {

TEST(ThreadPool, EveryIndexIsVisitedOnceAndPartsAreDistinct) {
  for (int threads : {1, 2, 3}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.threads(), threads);
    for (size_t count : {size_t{0}, size_t{1}, size_t{5}, size_t{6}, size_t{7}, size_t{100}}) {
      std::vector<int> visits(count);
      std::vector<std::atomic<int>> parts(static_cast<size_t>(threads));
      pool.For(count, 6, true, [&](size_t begin, size_t end, int part) {
        EXPECT_TRUE(begin % 6 == 0 && (end % 6 == 0 || end == count)) << begin << " " << end;
        EXPECT_EQ(parts[static_cast<size_t>(part)].fetch_add(1), 0);
        for (size_t i = begin; i < end; ++i) ++visits[i];
      });
      EXPECT_EQ(visits, std::vector<int>(count, 1));
    }
  }
}

TEST(ThreadPool, NestedCallsRunOnTheirCaller) {
  ThreadPool pool(3);
  std::atomic<int> inner{0};
  pool.Run([&](int, int parts) {
    EXPECT_EQ(parts, 3);
    const auto self = std::this_thread::get_id();
    pool.Run([&](int part, int nested_parts) {
      EXPECT_EQ(part, 0);
      EXPECT_EQ(nested_parts, 1);
      EXPECT_EQ(std::this_thread::get_id(), self);
      ++inner;
    });
  });
  EXPECT_EQ(inner, 3);
}

TEST(ThreadPool, TwoCallersAtOnceBothFinishTheirWork) {
  ThreadPool pool(2);
  const auto work = [&] {
    for (int round = 0; round < 500; ++round) {
      std::vector<int> out(64);
      pool.For(out.size(), 1, true, [&](size_t begin, size_t end, int) {
        for (size_t i = begin; i < end; ++i) out[i] = 1;
      });
      ASSERT_EQ(std::accumulate(out.begin(), out.end(), 0), 64);
    }
  };
  std::thread other(work);
  work();
  other.join();
}

}  // namespace
}  // namespace quartet::cpu
