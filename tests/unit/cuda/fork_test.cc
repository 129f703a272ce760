// What Device::Fork and Join promise. The emulator does forked work as late as it may, a GPU as
// early as it can; slow copies before the last one make that late enough to show.

#include "tests/unit/cuda/support.h"

namespace quartet::testing {
namespace {

class ForkedWork : public CudaOps, public ::testing::WithParamInterface<cuda::Side> {
 protected:
  // Puts `from` into `to` by way of the slow buffers.
  void CopySlowly(const cuda::Buffer& to, const cuda::Buffer& from) {
    device_->Copy(slow_[0].data(), from.data(), kBytes);
    for (int i = 0; i < 16; ++i) {
      device_->Copy(slow_[(i + 1) % 2].data(), slow_[i % 2].data(), slow_[0].bytes());
    }
    device_->Copy(to.data(), slow_[0].data(), kBytes);
  }
  cuda::Buffer Value(int value) { return Upload(std::vector<int>{value}); }
  int ValueOf(const cuda::Buffer& buffer) { return Download<int>(buffer, 1)[0]; }
  void Copy(const cuda::Buffer& to, const cuda::Buffer& from) {
    device_->Copy(to.data(), from.data(), kBytes);
  }

  static constexpr size_t kBytes = sizeof(int);
  const cuda::Side side = GetParam();

 private:
  const size_t slow_bytes_ = TestDeviceIsEmulated() ? 1 << 10 : 256 << 20;
  const cuda::Buffer slow_[2] = {Poisoned<std::byte>(slow_bytes_),
                                 Poisoned<std::byte>(slow_bytes_)};
};

TEST_P(ForkedWork, SeesWhatWasOnTheStreamBeforeIt) {
  const auto first = Value(7), on_stream = Value(0), forked = Value(0);
  CopySlowly(on_stream, first);
  device_->Fork(side, [&] { Copy(forked, on_stream); });
  device_->Join();
  EXPECT_EQ(ValueOf(forked), 7);
}

TEST_P(ForkedWork, IsDoneForWhatFollowsTheJoin) {
  const auto first = Value(7), forked = Value(0), after = Value(0);
  device_->Fork(side, [&] { CopySlowly(forked, first); });
  device_->Join();
  Copy(after, forked);
  EXPECT_EQ(ValueOf(after), 7);
}

TEST_P(ForkedWork, GoesOnInItsOwnOrderAcrossForks) {
  const auto first = Value(7), forked = Value(0), second = Value(0);
  device_->Fork(side, [&] { CopySlowly(forked, first); });
  device_->Fork(side, [&] { Copy(second, forked); });
  device_->Join();
  EXPECT_EQ(ValueOf(second), 7);
}

TEST_P(ForkedWork, IsDoneWhenTheHostHasWaited) {
  const auto first = Value(7), forked = Value(0);
  device_->Fork(side, [&] { CopySlowly(forked, first); });
  EXPECT_EQ(ValueOf(forked), 7) << "CopyOut joins";
  const auto again = Value(0);
  device_->Fork(side, [&] { CopySlowly(again, first); });
  MustOk(device_->Synchronize());
  device_->Join();
  EXPECT_EQ(ValueOf(again), 7);
}

TEST_P(ForkedWork, IsABranchOfAGraph) {
  const auto input = Value(0), forked = Value(0), beside = Value(0), after = Value(0),
             unjoined = Value(0);
  const auto graph = Must(device_->Capture([&] {
    device_->Fork(side, [&] { CopySlowly(forked, input); });
    Copy(beside, input);
    device_->Join();
    Copy(after, forked);
    device_->Fork(side, [&] { Copy(unjoined, after); });  // the end of the graph joins
  }));
  EXPECT_EQ(ValueOf(forked), 0) << "recorded, not done";
  for (const int value : {7, 8}) {
    MustOk(device_->CopyIn(input.data(), &value, kBytes));
    device_->Replay(*graph);
    EXPECT_EQ(ValueOf(beside), value);
    EXPECT_EQ(ValueOf(after), value);
    EXPECT_EQ(ValueOf(unjoined), value);
  }
}

TEST_P(ForkedWork, WaitsForTheJoinInTheEmulator) {
  if (device_->info().image != "simt") GTEST_SKIP() << "on a GPU it may be done at once";
  const auto first = Value(7), forked = Value(0), too_early = Value(0);
  device_->Fork(side, [&] { Copy(forked, first); });
  Copy(too_early, forked);
  device_->Join();
  EXPECT_EQ(ValueOf(too_early), 0);
  EXPECT_EQ(ValueOf(forked), 7);
}

INSTANTIATE_TEST_SUITE_P(Sides, ForkedWork,
                         ::testing::Values(cuda::Side::kAhead, cuda::Side::kBehind),
                         [](const auto& info) {
                           return info.param == cuda::Side::kAhead ? "Ahead" : "Behind";
                         });

}  // namespace
}  // namespace quartet::testing
