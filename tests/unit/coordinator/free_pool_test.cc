#include "services/coordinator/core/free_pool.h"

#include <gtest/gtest.h>

namespace quartet::coordinator {
namespace {

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
