#include "tests/unit/cuda/support.h"
#include "tests/unit/kernels/kda_windows.h"

namespace quartet::testing {
namespace {

class KdaWindowsOnCuda : public KdaWindowTest {
 protected:
  KdaWindowsOnCuda() : KdaWindowsOnCuda(std::shared_ptr<cuda::Device>(OpenTestDevice())) {}

 private:
  explicit KdaWindowsOnCuda(const std::shared_ptr<cuda::Device>& device)
      : KdaWindowTest(Must(cuda::MakeCudaBackend(*device, {.max_rows = 64, .max_segments = 8})),
                      device) {}
};

TEST_F(KdaWindowsOnCuda, AnyAcceptanceContinuesWithTheBitsOfPlainDecoding) {
  for (const KdaShape& shape : {KdaShape{.heads = 3, .dim = 32},
                                {.heads = 2, .dim = 48},
                                {.heads = 2, .dim = 128},
                                {.heads = 3, .dim = 32, .conv_kernel = 2}}) {
    Prepare(shape);
    CheckAnyAcceptance(16);
  }
}
TEST_F(KdaWindowsOnCuda, AWindowLeavesTheLiveStateAsItWas) {
  Prepare({.heads = 2, .dim = 64});
  CheckThatWindowsLeaveTheState();
}
TEST_F(KdaWindowsOnCuda, ACommitInTwoPartsPassesThroughThePlainStates) {
  Prepare({.heads = 2});
  CheckCommitsInTwoParts();
}
TEST_F(KdaWindowsOnCuda, SequencesOfAStepKeepToTheirSlots) {
  Prepare({});
  CheckSequencesTogether();
}
TEST_F(KdaWindowsOnCuda, AtTheShapeOfTheLargeModel) {
  if (TestDeviceIsEmulated()) GTEST_SKIP() << "too large for the emulator";
  Prepare({.heads = 16, .dim = 128, .hidden = 512, .rank = 128});
  CheckAnyAcceptance(64);
  CheckSequencesTogether();
}

}  // namespace
}  // namespace quartet::testing
