#include "kernels/cuda/linear.h"

#include "tests/unit/cuda/support.h"

namespace quartet::testing {
namespace {

class LinearOnCuda : public CudaOps {};

TEST_F(LinearOnCuda, AgreesWithTheCpu) {
  struct Shape {
    int rows, in, out;
  };
  for (const Shape s : {Shape{1, 64, 40}, Shape{3, 100, 24}, Shape{17, 256, 96}}) {
    const auto w = RandomFloats(s.in * s.out, 0.1f, 1);
    const auto x = RandomFloats(s.rows * s.in, 1.0f, 2);
    const auto oracle = Must(cpu_->PrepareLinear(DenseF32(w, s.out, s.in)));
    std::vector<float> expected(s.rows * s.out);
    oracle->Run(x.data(), s.rows, expected.data(), Scratch(oracle->WorkspaceBytes(s.rows)));

    const auto op = Must(cuda_->PrepareLinear(DenseF32(w, s.out, s.in)));
    const cuda::Buffer dx = Upload(x);
    const cuda::Buffer dy = Poisoned<float>(expected.size());
    op->Run(dx.as<float>(), s.rows, dy.as<float>(), Workspace(op->WorkspaceBytes(s.rows)));
    EXPECT_LT(RelativeL2(Download<float>(dy, expected.size()), expected), 1e-3)
        << s.rows << " x " << s.in << " x " << s.out;
  }
}

}  // namespace
}  // namespace quartet::testing
