#include "kernels/cpu/cpu_backend.h"
#include "tests/unit/kernels/kda_windows.h"

namespace quartet::cpu {
namespace {

class KdaWindows : public testing::KdaWindowTest {
 protected:
  KdaWindows() : KdaWindowTest(MakeCpuBackend({.threads = 2})) { Prepare({}); }
};

TEST_F(KdaWindows, AnyAcceptanceContinuesWithTheBitsOfPlainDecoding) {
  CheckAnyAcceptance(48);
}
TEST_F(KdaWindows, ShorterConvolutionsToo) {
  for (const int conv_kernel : {1, 2, 3}) {
    Prepare({.conv_kernel = conv_kernel});
    CheckAnyAcceptance(12);
  }
}
TEST_F(KdaWindows, AWindowLeavesTheLiveStateAsItWas) {
  CheckThatWindowsLeaveTheState();
}
TEST_F(KdaWindows, ACommitInTwoPartsPassesThroughThePlainStates) {
  CheckCommitsInTwoParts();
}
TEST_F(KdaWindows, SequencesOfAStepKeepToTheirSlots) {
  CheckSequencesTogether();
}

}  // namespace
}  // namespace quartet::cpu
