#include "kernels/cuda/exl3.h"

#include "kernels/cpu/exl3.h"
#include "tests/unit/cuda/exl3_weights.h"
#include "tests/unit/cuda/support.h"

namespace quartet::testing {
namespace {

using Kind = RandomExl3::Kind;

std::vector<Kind> Kinds() {
  std::vector<Kind> kinds;
  for (ops::TileOrder order : kTileOrders) {
    for (ops::Codebook codebook :
         {ops::Codebook::kMcg, ops::Codebook::kMul1, ops::Codebook::k3Inst}) {
      for (int bits = 1; bits <= 8; ++bits) kinds.push_back({bits, codebook, order});
    }
  }
  return kinds;
}

class Exl3OnCuda : public CudaOps {
 protected:
  // By the CUDA op.
  std::vector<float> Multiply(const ops::Exl3Matrix& m, const std::vector<float>& x, int rows) {
    cuda::Context context = {device_.get(), nullptr, counters_.as<cuda::SaturationCounters>()};
    const cuda::Exl3Linear linear = Must(cuda::Exl3Linear::Make(context, m, "test"));
    const size_t count = rows * linear.out();
    const cuda::Buffer dx = Upload(x);
    const cuda::Buffer dy = Poisoned<float>(count);
    linear.Run(dx.as<float>(), linear.in(), rows, dy.as<float>(), linear.out(),
               Workspace(linear.WorkspaceBytes(rows)));
    return Download<float>(dy, count);
  }
  std::vector<float> OnCpu(const ops::Exl3Matrix& m, const std::vector<float>& x, int rows) {
    const auto oracle = Must(cpu_->PrepareLinear(m));
    std::vector<float> y(rows * oracle->out());
    oracle->Run(x.data(), rows, y.data(), Scratch(oracle->WorkspaceBytes(rows)));
    return y;
  }
  // In the norm, and no element far off.
  static void ExpectClose(const std::vector<float>& y, const std::vector<float>& expected, int rows,
                          const std::string& what) {
    EXPECT_LT(RelativeL2(y, expected), 2e-3) << what;
    const size_t width = y.size() / rows;
    for (int r = 0; r < rows; ++r) {
      double square = 0;
      for (size_t c = 0; c < width; ++c) square += std::pow(expected[r * width + c], 2);
      const double root_mean = std::sqrt(square / width);
      for (size_t c = 0; c < width; ++c) {
        ASSERT_NEAR(y[r * width + c], expected[r * width + c], 1e-2 * root_mean)
            << what << " row " << r << " output " << c;
      }
    }
  }

  const cuda::Buffer counters_ = Upload(std::vector<unsigned long long>{0, 0});
};

TEST_F(Exl3OnCuda, AgreesWithTheCpuInEveryWidthCodebookAndTileOrder) {
  uint32_t seed = 1;
  for (const Kind& kind : Kinds()) {
    const RandomExl3 w(256, 128, kind, ++seed);
    for (int rows : {1, 3}) {
      const auto x = RandomFloats(rows * 256, 1.0f, ++seed);
      ExpectClose(Multiply(w.view(), x, rows), OnCpu(w.view(), x, rows), rows,
                  RandomExl3::Name(kind));
    }
  }
}

TEST_F(Exl3OnCuda, AnyNumberOfRows) {
  const RandomExl3 w(128, 256, {}, 3);
  for (int rows : {1, 2, 3, 4, 5, 6, 7, 8, 9, 33}) {
    const auto x = RandomFloats(rows * 128, 1.0f, rows);
    ExpectClose(Multiply(w.view(), x, rows), OnCpu(w.view(), x, rows), rows,
                std::to_string(rows) + " rows");
  }
}

// Some products of a single row are summed in FP16 (device/exl3_single.cuh), whatever the size of
// its inputs; those of several rows are not.
TEST_F(Exl3OnCuda, SumsOfASingleRowLoseLittle) {
  constexpr int kOut = 1024;  // enough for a block of 16 warps where there are few multiprocessors
  const RandomExl3 w(4096, kOut, {2}, 4);
  for (float size : {0.1f, 1.0f, 1e4f}) {
    const auto x = RandomFloats(2 * 4096, size, 5);
    const std::vector<float> expected = OnCpu(w.view(), x, 2);
    const std::vector<float> both = Multiply(w.view(), x, 2);
    EXPECT_LT(RelativeL2(both, expected), 4e-4) << size;
    const std::vector<float> first(expected.begin(), expected.begin() + kOut);
    const std::vector<float> alone = Multiply(w.view(), {x.begin(), x.begin() + 4096}, 1);
    EXPECT_LT(RelativeL2(alone, first), 9e-4) << size;
  }
}

// One input of the transformed space at a time: y holds a row of decoded weights, transformed. What
// the CPU decodes is found in it again, but for the rounding of the sum that the tensor core does
// not make.
TEST_F(Exl3OnCuda, DecodesWhatTheCpuDecodes) {
  for (const Kind& kind : Kinds()) {
    if (TestDeviceIsEmulated() && kind.bits > 4) continue;
    RandomExl3 w(128, 128, kind, 7);
    ops::Exl3Matrix m = w.view();
    const std::vector<uint16_t> no_signs(8);
    m.su_signs = m.sv_signs = reinterpret_cast<const std::byte*>(no_signs.data());
    const std::vector<uint16_t> inner = cpu::DecodeInner(m);
    // Row i of x transforms to 8 times unit vector i, exactly: 1/sqrt(128) twice is 1/128.
    std::vector<float> x(128 * 128);
    for (int i = 0; i < 128; ++i) {
      for (int j = 0; j < 128; ++j) {
        x[i * 128 + j] = (std::popcount(static_cast<unsigned>(i & j)) % 2 == 0 ? 1.0f : -1.0f);
      }
    }
    const std::vector<float> y = Multiply(m, x, 128);
    double worst = 0;
    for (int i = 0; i < 128; ++i) {
      // Undo the output transform in double.
      for (int n = 0; n < 128; ++n) {
        double sum = 0;
        for (int c = 0; c < 128; ++c) {
          const double v = y[i * 128 + c];
          sum += std::popcount(static_cast<unsigned>(n & c)) % 2 == 0 ? v : -v;
        }
        // x transformed is sqrt(128) = 11.3137, as FP16 11.3125.
        const double decoded = sum / std::sqrt(128.0) / 11.3125;
        worst = std::max(worst, std::abs(decoded - cpu::F16ToF32(inner[i * 128 + n])));
      }
    }
    // A state's value is at most 4, so its last bit 2^-9, half of which is the rounding.
    EXPECT_LT(worst, kind.codebook == ops::Codebook::kMul1 ? 1e-5 : 0x1p-10 + 1e-5)
        << RandomExl3::Name(kind);
  }
}

TEST_F(Exl3OnCuda, PaddedInputsCountAsZeroAndPaddedOutputsAreDropped) {
  const RandomExl3 w(256, 256, {3}, 5);
  ops::Exl3Matrix cut = w.view();
  cut.used_in = 203;
  cut.used_out = 130;
  const auto x = RandomFloats(2 * 203, 1.0f, 6);
  const std::vector<float> y = Multiply(cut, x, 2);
  ASSERT_EQ(y.size(), 2u * 130);
  ExpectClose(y, OnCpu(cut, x, 2), 2, "203 x 130 of 256 x 256");
}

TEST_F(Exl3OnCuda, SlicesOfAMatrixAreReadInPlace) {
  const RandomExl3 w(256, 384, {4}, 8);
  ops::Exl3Matrix slice = w.view();
  slice.in = slice.out = 128;
  slice.trellis += (8 * slice.tile_row_stride + 16) * 32 * slice.bits;
  slice.suh += 128 * 2;
  slice.svh += 256 * 2;
  const auto x = RandomFloats(128, 1.0f, 9);
  ExpectClose(Multiply(slice, x, 1), OnCpu(slice, x, 1), 1, "slice");
}

TEST_F(Exl3OnCuda, WhatDoesNotFitFp16SaturatesAndIsCounted) {
  const RandomExl3 w(128, 128, {}, 10);
  ops::Exl3Matrix m = w.view();
  const std::vector<uint16_t> no_signs(8);
  m.su_signs = reinterpret_cast<const std::byte*>(no_signs.data());
  std::vector<float> x(128);
  x[0] = 1e6f;  // every transformed element is 88388
  const std::vector<float> y = Multiply(m, x, 1);
  for (float v : y) EXPECT_TRUE(std::isfinite(v));
  EXPECT_EQ(Download<unsigned long long>(counters_, 1)[0], 128u);
}

TEST_F(Exl3OnCuda, ImpossibleMatricesAreRefusedByName) {
  const RandomExl3 w(128, 128, {}, 11);
  cuda::Context context = {device_.get(), nullptr, nullptr};
  ops::Exl3Matrix m = w.view();
  m.bits = 9;
  EXPECT_THAT(std::string(cuda::Exl3Linear::Make(context, m, "some layer").status().message()),
              ::testing::HasSubstr("some layer: 9 bits a weight; EXL3 has 1 to 8"));
}

TEST_F(Exl3OnCuda, TheModelsShapes) {
  if (TestDeviceIsEmulated()) GTEST_SKIP() << "too much for the emulator";
  struct Shape {
    int rows, in, out;
  };
  for (const Shape s :
       {Shape{1, 4096, 512}, Shape{8, 4096, 4096}, Shape{5, 512, 4096}, Shape{64, 2048, 4096}}) {
    for (ops::TileOrder order : kTileOrders) {
      for (int bits : {2, 3, 4, 6, 8}) {
        const Kind kind = {bits, ops::Codebook::kMcg, order};
        const RandomExl3 w(s.in, s.out, kind, bits);
        const auto x = RandomFloats(s.rows * s.in, 1.0f, 12);
        ExpectClose(
            Multiply(w.view(), x, s.rows), OnCpu(w.view(), x, s.rows), s.rows,
            RandomExl3::Name(kind) + " " + std::to_string(s.in) + " x " + std::to_string(s.out));
      }
    }
  }
}

}  // namespace
}  // namespace quartet::testing
