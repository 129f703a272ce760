#include "kernels/cuda/linear.h"

#include <cmath>
#include <limits>

#include "kernels/cpu/convert.h"
#include "kernels/cuda/cublas.h"
#include "kernels/cuda/device/counters.h"
#include "kernels/cuda/weights.h"
#include "tests/unit/cuda/support.h"

namespace quartet::testing {
namespace {

using cuda::PackedLinear;
using ops::DType;
using Precision = PackedLinear::Precision;

constexpr double kF16Tolerance = 1e-3;    // relative L2: weights and x rounded to FP16
constexpr double kExactTolerance = 2e-6;  // relative L2: FP32 sums in another order

// A random matrix in its stored form. Rows lie `gap` elements apart; E4M3 has scale blocks of 16 x
// 24 and begins in the middle of one.
class Stored {
 public:
  Stored(DType dtype, int64_t rows, int64_t cols, uint32_t seed, int64_t gap = 0,
         float deviation = 0.1f) {
    view_.dtype = dtype;
    view_.rows = rows;
    view_.cols = cols;
    view_.row_stride = cols + gap;
    // Big ones repeat with a period that no row length divides.
    const size_t count = rows * view_.row_stride;
    for (float v : RandomFloats(std::min<size_t>(count, 1'000'003), deviation, seed)) Append(v);
    const size_t period = bytes_.size();
    bytes_.resize(count * cuda::ElementBytes(dtype));
    for (size_t at = period; at < bytes_.size(); at += period) {
      std::memcpy(bytes_.data() + at, bytes_.data(), std::min(period, bytes_.size() - at));
    }
    view_.data = bytes_.data();
    if (dtype != DType::kF8E4M3) return;
    view_.block_rows = 16;
    view_.block_cols = 24;
    view_.row_offset = 5;
    view_.col_offset = 7;
    view_.scale_stride = (cols + 7) / 24 + 1;
    scales_ = RandomFloats(((rows + 5) / 16 + 1) * view_.scale_stride, 0.05f, seed + 1);
    view_.scales = reinterpret_cast<const std::byte*>(scales_.data());
  }

  const ops::DenseMatrix& view() const { return view_; }

 private:
  void Append(float v) {
    bool saturated = false;
    switch (view_.dtype) {
      case DType::kF32:
        return Push(v);
      case DType::kF16:
        return Push(cpu::F32ToF16(v, &saturated));
      case DType::kBF16:
        return Push(static_cast<uint16_t>(std::bit_cast<uint32_t>(v) >> 16));
      case DType::kF8E4M3:
        return Push(cpu::F32ToE4m3(30 * v, &saturated));
    }
  }
  template <class T>
  void Push(T v) {
    const auto* from = reinterpret_cast<const std::byte*>(&v);
    bytes_.insert(bytes_.end(), from, from + sizeof(T));
  }

  std::vector<std::byte> bytes_;
  std::vector<float> scales_;
  ops::DenseMatrix view_;
};

class LinearOnCuda : public CudaOps {
 protected:
  LinearOnCuda() { device_->Fill(counters_.data(), 0, sizeof(cuda::SaturationCounters)); }

  PackedLinear Make(const std::vector<ops::LinearWeights>& stack, Precision precision) {
    return Must(PackedLinear::Make(context_, stack, precision, "weights"));
  }

  // x [rows, in] on `linear`, with `gap` more floats between rows of x and of y; checks that the
  // gaps of y stay as they were.
  std::vector<float> Run(const PackedLinear& linear, const std::vector<float>& x, int rows,
                         int gap = 0) {
    const int64_t in = linear.in();
    const int64_t out = linear.out();
    std::vector<float> wide(rows * (in + gap), std::nanf(""));
    for (int r = 0; r < rows; ++r) {
      std::copy_n(x.data() + r * in, in, wide.data() + r * (in + gap));
    }
    const cuda::Buffer dx = Upload(wide);
    const cuda::Buffer dy = Poisoned<float>(rows * (out + gap));
    linear.Run(dx.as<float>(), in + gap, rows, dy.as<float>(), out + gap,
               Workspace(linear.WorkspaceBytes(rows)));
    const auto all = Download<float>(dy, rows * (out + gap));
    std::vector<float> y;
    for (int r = 0; r < rows; ++r) {
      const auto row = all.begin() + r * (out + gap);
      y.insert(y.end(), row, row + out);
      for (int i = 0; i < gap; ++i) EXPECT_TRUE(std::isnan(row[out + i])) << "row " << r;
    }
    return y;
  }

  // The CPU's answer for a stack.
  std::vector<float> Oracle(const std::vector<ops::LinearWeights>& stack,
                            const std::vector<float>& x, int rows) {
    std::vector<std::vector<float>> parts;
    int64_t width = 0;
    for (const ops::LinearWeights& weights : stack) {
      const auto op = Must(cpu_->PrepareLinear(weights));
      parts.emplace_back(rows * op->out());
      op->Run(x.data(), rows, parts.back().data(), Scratch(op->WorkspaceBytes(rows)));
      width += op->out();
    }
    std::vector<float> y;
    for (int r = 0; r < rows; ++r) {
      for (const auto& part : parts) {
        const size_t out = part.size() / rows;
        y.insert(y.end(), part.begin() + r * out, part.begin() + (r + 1) * out);
      }
    }
    return y;
  }

  uint64_t SaturatedF16() { return Download<cuda::SaturationCounters>(counters_, 1)[0].f16; }

  cuda::Buffer counters_ = Must(device_->Allocate(sizeof(cuda::SaturationCounters), "counters"));
  std::unique_ptr<cuda::Cublas> cublas_ = cuda::Cublas::Load(*device_);
  cuda::Context context_ = {device_.get(), nullptr, counters_.as<cuda::SaturationCounters>(),
                            cublas_.get()};
};

struct Shape {
  int in, out;
};
constexpr int kRowCounts[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 17, 64, 130};
// Mini and demo model, odd sizes, and so many inputs that blocks share a tile.
constexpr Shape kShapes[] = {{64, 40},   {128, 96},  {100, 24}, {257, 33},
                             {256, 200}, {1100, 70}, {5000, 33}};

TEST_F(LinearOnCuda, F16AgreesWithTheCpu) {
  for (const Shape s : kShapes) {
    const Stored w(DType::kF16, s.out, s.in, 1);
    const PackedLinear linear = Make({w.view()}, Precision::kF16);
    ASSERT_EQ(linear.in(), s.in);
    ASSERT_EQ(linear.out(), s.out);
    for (int rows : kRowCounts) {
      const auto x = RandomFloats(rows * s.in, 1.0f, 2);
      EXPECT_LT(RelativeL2(Run(linear, x, rows), Oracle({w.view()}, x, rows)), kF16Tolerance)
          << rows << " x " << s.in << " x " << s.out;
    }
  }
}

// The largest tiles, which few rows never take.
TEST_F(LinearOnCuda, F16AgreesWithTheCpuForManyRows) {
  const int rows = TestDeviceIsEmulated() ? 300 : 700;
  for (const Shape s : TestDeviceIsEmulated() ? std::vector<Shape>{{100, 300}, {200, 257}}
                                              : std::vector<Shape>{{328, 4001}, {1030, 6400}}) {
    const Stored w(DType::kF16, s.out, s.in, 1);
    const auto x = RandomFloats(rows * s.in, 1.0f, 2);
    const auto expected = Oracle({w.view()}, x, rows);
    // By the library, where it is there, and by own kernels.
    for (const bool shared_decision : {false, true}) {
      const auto linear =
          Must(PackedLinear::Make(context_, std::vector<ops::LinearWeights>{w.view()},
                                  Precision::kF16, "weights", shared_decision));
      EXPECT_LT(RelativeL2(Run(linear, x, rows), expected), kF16Tolerance) << shared_decision;
    }
  }
}

TEST_F(LinearOnCuda, ExactAgreesWithTheCpu) {
  for (const Shape s : kShapes) {
    const Stored w(DType::kF32, s.out, s.in, 1);
    const PackedLinear linear = Make({w.view()}, Precision::kF32);
    for (int rows : kRowCounts) {
      const auto x = RandomFloats(rows * s.in, 1.0f, 2);
      EXPECT_LT(RelativeL2(Run(linear, x, rows), Oracle({w.view()}, x, rows)), kExactTolerance)
          << rows << " x " << s.in << " x " << s.out;
    }
  }
}

// Every stored type, alone and stacked, rows with gaps (column slices), strided x and y.
TEST_F(LinearOnCuda, StacksOfAllTypesLieSideBySide) {
  for (const int in : {104, 171}) {
    const Stored f16(DType::kF16, 20, in, 1), f16_gap(DType::kF16, 33, in, 2, 5);
    const Stored bf16(DType::kBF16, 17, in, 3, 3), f32(DType::kF32, 40, in, 4);
    const Stored f32_gap(DType::kF32, 3, in, 5, 1), f8(DType::kF8E4M3, 70, in, 6, 2);
    const std::vector<ops::LinearWeights> stack = {f16.view(), f16_gap.view(), bf16.view(),
                                                   f32.view(), f32_gap.view(), f8.view()};
    const PackedLinear half = Make(stack, Precision::kF16);
    const PackedLinear exact = Make(stack, Precision::kF32);
    ASSERT_EQ(half.out(), 183);
    for (int rows : {1, 3, 8, 12, 70}) {
      const auto x = RandomFloats(rows * in, 1.0f, 7);
      const auto expected = Oracle(stack, x, rows);
      for (int gap : {0, 3, 4}) {
        EXPECT_LT(RelativeL2(Run(half, x, rows, gap), expected), kF16Tolerance) << rows;
        EXPECT_LT(RelativeL2(Run(exact, x, rows, gap), expected), kExactTolerance) << rows;
      }
    }
  }
}

// EXL3 matrices take their own kernels in the middle of a stack.
TEST_F(LinearOnCuda, StacksMayHoldExl3) {
  constexpr int kIn = 128, kOut = 256, kBits = 3;
  std::mt19937 random = Random(1);
  std::vector<uint16_t> trellis(kIn / 16 * (kOut / 16) * 16 * kBits), suh(kIn), svh(kOut);
  for (uint16_t& v : trellis) v = static_cast<uint16_t>(random());
  for (uint16_t& v : suh) v = random() % 2 == 0 ? 0x3C00 : 0xBC00;  // +-1
  for (uint16_t& v : svh) v = random() % 2 == 0 ? 0x3000 : 0xB000;  // +-1/8
  ops::Exl3Matrix exl3;
  exl3.bits = kBits;
  exl3.in = kIn;
  exl3.out = kOut;
  exl3.trellis = reinterpret_cast<const std::byte*>(trellis.data());
  exl3.tile_row_stride = kOut / 16;
  exl3.suh = reinterpret_cast<const std::byte*>(suh.data());
  exl3.svh = reinterpret_cast<const std::byte*>(svh.data());
  const Stored before(DType::kF16, 20, kIn, 1), after(DType::kF32, 30, kIn, 2);
  const std::vector<ops::LinearWeights> stack = {before.view(), exl3, after.view()};
  const PackedLinear linear = Make(stack, Precision::kF16);
  ASSERT_EQ(linear.out(), 20 + kOut + 30);
  for (int rows : {1, 5, 20}) {
    const auto x = RandomFloats(rows * kIn, 1.0f, 3);
    EXPECT_LT(RelativeL2(Run(linear, x, rows, 4), Oracle(stack, x, rows)), 2e-3) << rows;
  }
}

// A row's bits are the same alone, in a decode batch and in a prefill, by whichever kernel and
// however the work was cut; and the same again on the next run.
TEST_F(LinearOnCuda, ExactRowsDoNotDependOnTheOtherRows) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (const Shape s :
         {Shape{1100, 70}, Shape{2100, 20}, Shape{90, 65}, Shape{1024, 64}, Shape{4200, 5}}) {
      const Stored w(dtype, s.out, s.in, 1);
      const PackedLinear linear = Make({w.view()}, Precision::kF32);
      constexpr int kRows = 520;
      const auto x = RandomFloats(kRows * s.in, 1.0f, 2);
      const std::vector<float> all = Run(linear, x, kRows);
      EXPECT_TRUE(SameBits(Run(linear, x, kRows), all));
      for (int rows : {1, 7, 8, 9, 64, 65, 130}) {
        for (int first : {0, 301}) {
          const std::vector<float> some(x.begin() + first * s.in,
                                        x.begin() + (first + rows) * s.in);
          EXPECT_TRUE(SameBits(Run(linear, some, rows),
                               std::span(all).subspan(first * s.out, rows * s.out)))
              << rows << " of " << kRows << " rows, " << s.in << " x " << s.out;
        }
      }
      if (TestDeviceIsEmulated() && dtype != DType::kF32) break;
    }
  }
}

// Everything that Run does can be recorded, and leaves nothing behind that changes the next run.
TEST_F(LinearOnCuda, CapturedRunsRepeatBitForBit) {
  constexpr int kIn = 5000, kOut = 33;
  const Stored w(DType::kF16, kOut, kIn, 1);
  for (const Precision precision : {Precision::kF16, Precision::kF32}) {
    const PackedLinear linear = Make({w.view()}, precision);
    for (int rows : {1, 5, 20, 130}) {
      const auto x = RandomFloats(rows * kIn, 1.0f, 2);
      const cuda::Buffer dx = Upload(x);
      const cuda::Buffer dy = Poisoned<float>(rows * kOut);
      const ops::Workspace workspace = Workspace(linear.WorkspaceBytes(rows));
      const auto graph = Must(device_->Capture(
          [&] { linear.Run(dx.as<float>(), kIn, rows, dy.as<float>(), kOut, workspace); }));
      const std::vector<float> expected = Oracle({w.view()}, x, rows);
      std::vector<float> first;
      for (int replay = 0; replay < 3; ++replay) {
        device_->Fill(dy.data(), 0xFF, dy.bytes());
        device_->Replay(*graph);
        const auto y = Download<float>(dy, rows * kOut);
        if (replay == 0) {
          first = y;
          EXPECT_LT(RelativeL2(y, expected), kF16Tolerance);
        } else {
          EXPECT_TRUE(SameBits(y, first)) << rows << " rows, replay " << replay;
        }
      }
    }
  }
}

// One workspace of the largest number of rows serves any smaller number.
TEST_F(LinearOnCuda, WorkspaceOfManyRowsIsEnoughForFewer) {
  for (const Shape s : {Shape{64, 40}, Shape{1100, 70}, Shape{4096, 2304}}) {
    const Stored w(DType::kF16, s.out, s.in, 1);
    for (const Precision precision : {Precision::kF16, Precision::kF32}) {
      const PackedLinear linear = Make({w.view()}, precision);
      for (const int max_rows : {1, 8, 40, 64, 300, 2000}) {
        const size_t most = linear.WorkspaceBytes(max_rows);
        for (int rows = 1; rows <= max_rows; ++rows) {
          ASSERT_LE(linear.WorkspaceBytes(rows), most) << rows << " of " << max_rows;
        }
      }
    }
  }
}

TEST_F(LinearOnCuda, XBeyondF16SaturatesAndCounts) {
  constexpr int kIn = 128, kOut = 40;
  const Stored w(DType::kF16, kOut, kIn, 1);
  const PackedLinear linear = Make({w.view()}, Precision::kF16);
  auto x = RandomFloats(12 * kIn, 1.0f, 2);
  x[3 * kIn + 5] = 1e6f;
  x[11 * kIn + 127] = -70000.0f;
  auto clamped = x;
  clamped[3 * kIn + 5] = 65504.0f;
  clamped[11 * kIn + 127] = -65504.0f;
  EXPECT_LT(RelativeL2(Run(linear, x, 12), Oracle({w.view()}, clamped, 12)), kF16Tolerance);
  EXPECT_EQ(SaturatedF16(), 2u);

  // Few rows may keep x in FP32; where they round it, each element counts once.
  const std::vector<float> few(x.begin(), x.begin() + 4 * kIn);
  const std::vector<float> few_clamped(clamped.begin(), clamped.begin() + 4 * kIn);
  const auto y = Run(linear, few, 4);
  const bool rounds = SaturatedF16() != 2;
  EXPECT_LT(RelativeL2(y, Oracle({w.view()}, rounds ? few_clamped : few, 4)), kF16Tolerance);
  EXPECT_EQ(SaturatedF16(), rounds ? 3u : 2u);
}

TEST_F(LinearOnCuda, NanStaysInItsRow) {
  constexpr int kIn = 200, kOut = 40;
  const Stored w(DType::kF16, kOut, kIn, 1);
  for (const Precision precision : {Precision::kF16, Precision::kF32}) {
    const PackedLinear linear = Make({w.view()}, precision);
    for (int rows : {3, 12, 70}) {
      auto x = RandomFloats(rows * kIn, 1.0f, 2);
      x[1 * kIn + 199] = std::nanf("");
      const auto y = Run(linear, x, rows);
      for (int r = 0; r < rows; ++r) {
        for (int o = 0; o < kOut; ++o) ASSERT_EQ(std::isnan(y[r * kOut + o]), r == 1) << r;
      }
    }
  }
}

TEST_F(LinearOnCuda, WeightsBeyondF16AreRefusedByName) {
  auto values = RandomFloats(30 * 50, 1.0f, 1);
  values[7 * 50 + 9] = 1e5f;
  const std::vector<ops::LinearWeights> stack = {DenseF32(values, 30, 50)};
  const auto refused = PackedLinear::Make(context_, stack, Precision::kF16, "layer 3 o_proj");
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kOutOfRange);
  EXPECT_THAT(std::string(refused.status().message()),
              ::testing::AllOf(::testing::HasSubstr("layer 3 o_proj"),
                               ::testing::HasSubstr("(7, 9)"), ::testing::HasSubstr("100000")));
  EXPECT_TRUE(PackedLinear::Make(context_, stack, Precision::kF32, "layer 3 o_proj").ok());
}

TEST_F(LinearOnCuda, StacksOfUnlikeInputsAreRefused) {
  const Stored a(DType::kF16, 8, 32, 1), b(DType::kF16, 8, 40, 2), c(DType::kF32, 8, 40, 2);
  for (const Precision precision : {Precision::kF16, Precision::kF32}) {
    for (const Stored* second : {&b, &c}) {
      const std::vector<ops::LinearWeights> stack = {a.view(), second->view()};
      EXPECT_EQ(PackedLinear::Make(context_, stack, precision, "w").status().code(),
                absl::StatusCode::kInvalidArgument);
    }
  }
}

class MlpOnCuda : public CudaOps {};

TEST_F(MlpOnCuda, AgreesWithTheCpu) {
  struct Case {
    int hidden, inner;
    float limit;
  };
  for (const Case& c : {Case{64, 48, 10.0f}, Case{100, 52, 0.5f}, Case{256, 160, 0.0f},
                        Case{1200, 33, 1.0f}, Case{2500, 20, 1.0f}}) {
    // Gate and up of about 4, so that the clamps act on many and not on nearly all: what a clamp
    // leaves is small, and would show the 16-bit inputs' rounding of what it has cut.
    const float deviation = 2 / std::sqrt(static_cast<float>(c.hidden));
    const Stored gate(DType::kF16, c.inner, c.hidden, 1, 0, deviation);
    const Stored up(DType::kF32, c.inner, c.hidden, 2, 0, deviation);
    const Stored down(DType::kBF16, c.hidden, c.inner, 3);
    const ops::MlpWeights weights = {gate.view(), up.view(), down.view(), c.limit};
    const auto oracle = Must(cpu_->PrepareMlp(weights));
    const auto op = Must(cuda_->PrepareMlp(weights));
    for (int rows : {1, 4, 9, 70}) {
      const auto x = RandomFloats(rows * c.hidden, 2.0f, 4);
      std::vector<float> expected(rows * c.hidden);
      oracle->Run(x.data(), rows, expected.data(), Scratch(oracle->WorkspaceBytes(rows)));
      const cuda::Buffer dx = Upload(x);
      const cuda::Buffer dy = Poisoned<float>(expected.size());
      op->Run(dx.as<float>(), rows, dy.as<float>(), Workspace(op->WorkspaceBytes(rows)));
      EXPECT_LT(RelativeL2(Download<float>(dy, expected.size()), expected), 2e-3)
          << rows << " rows, limit " << c.limit;
    }
  }
}

TEST_F(MlpOnCuda, UnlikeWidthsAreRefused) {
  const Stored gate(DType::kF16, 16, 32, 1), down(DType::kF16, 32, 24, 2);
  EXPECT_EQ(cuda_->PrepareMlp({gate.view(), gate.view(), down.view(), 0.0f}).status().code(),
            absl::StatusCode::kInvalidArgument);
  const Stored up(DType::kF16, 32, 32, 1);  // 16 + 32 = 2 x 24
  EXPECT_EQ(cuda_->PrepareMlp({gate.view(), up.view(), down.view(), 0.0f}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

class EmbeddingOnCuda : public CudaOps {};

TEST_F(EmbeddingOnCuda, RowsOfThisRankAreExactAndOthersZero) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kF8E4M3}) {
    constexpr int kRows = 40, kWidth = 300, kBegin = 1000;
    const Stored table(dtype, kRows, kWidth, 1, 2);
    const ops::EmbeddingWeights weights = {table.view(), kBegin};
    const std::vector<int32_t> ids = {1000, 1039, 1040, 999, 0, 1017, 1017, 154879, -1};
    const int rows = static_cast<int>(ids.size());
    std::vector<float> expected(rows * kWidth);
    Must(cpu_->PrepareEmbedding(weights))->Run(ids.data(), rows, expected.data());
    const cuda::Buffer dids = Upload(ids);
    const cuda::Buffer dx = Poisoned<float>(expected.size());
    const auto op = Must(cuda_->PrepareEmbedding(weights));
    op->Run(dids.as<int32_t>(), rows, dx.as<float>());
    EXPECT_TRUE(SameBits(Download<float>(dx, expected.size()), expected));
  }
}

TEST_F(EmbeddingOnCuda, HeadIsTheProductWithItsSlice) {
  constexpr int kVocab = 333, kHidden = 128;
  const Stored w(DType::kBF16, kVocab, kHidden, 1);
  const auto oracle = Must(cpu_->PrepareHead({w.view()}));
  const auto op = Must(cuda_->PrepareHead({w.view()}));
  ASSERT_EQ(op->vocab_local(), kVocab);
  for (int rows : {1, 4, 11}) {
    const auto h = RandomFloats(rows * kHidden, 1.0f, 2);
    std::vector<float> expected(rows * kVocab);
    oracle->Run(h.data(), rows, expected.data(), Scratch(oracle->WorkspaceBytes(rows)));
    const cuda::Buffer dh = Upload(h);
    const cuda::Buffer logits = Poisoned<float>(expected.size());
    op->Run(dh.as<float>(), rows, logits.as<float>(), Workspace(op->WorkspaceBytes(rows)));
    EXPECT_LT(RelativeL2(Download<float>(logits, expected.size()), expected), kF16Tolerance);
  }
}

// The real model's matrices, whole and as one of four ranks has them, against sums in double of
// sampled outputs.
TEST_F(LinearOnCuda, RealShapesAgreeWithSumsInDouble) {
  if (TestDeviceIsEmulated()) GTEST_SKIP() << "needs a GPU";
  struct Real {
    int in, out;
    Precision precision;
    DType dtype;
  };
  const Precision f16 = Precision::kF16, f32 = Precision::kF32;
  const DType half = DType::kF16;
  for (const Real& s :
       {Real{4096, 24896, f16, half}, Real{4096, 6464, f16, half}, Real{128, 8192, f16, half},
        Real{8192, 4096, f16, half}, Real{2048, 4096, f16, half}, Real{4096, 2304, f16, half},
        Real{1536, 16384, f16, half}, Real{16384, 4096, f16, half}, Real{4096, 6144, f16, half},
        Real{12288, 4096, f16, half}, Real{512, 4096, f16, half}, Real{4096, 38720, f16, half},
        Real{4096, 288, f32, DType::kF32}, Real{4096, 288, f32, DType::kBF16},
        Real{4096, 256, f32, half}}) {
    const Stored w(s.dtype, s.out, s.in, 1);
    const PackedLinear linear = Make({w.view()}, s.precision);
    for (int rows : {1, 2, 4, 8, 9, 16, 33, 64}) {
      const auto x = RandomFloats(rows * s.in, 1.0f, 2);
      const auto y = Run(linear, x, rows);
      for (float v : y) ASSERT_TRUE(std::isfinite(v));
      std::vector<float> sampled, expected;
      for (int i = 0; i < 64; ++i) {
        const int out = i == 63 ? s.out - 1 : static_cast<int>(int64_t{i} * s.out / 63);
        ops::DenseMatrix row = w.view();
        row.data += int64_t{out} * s.in * static_cast<int64_t>(cuda::ElementBytes(s.dtype));
        row.rows = 1;
        const auto wide = Must(cpu::Widen(row, "row"));
        for (int r = 0; r < rows; ++r) {
          double sum = 0;
          for (int k = 0; k < s.in; ++k) sum += static_cast<double>(wide[k]) * x[r * s.in + k];
          expected.push_back(static_cast<float>(sum));
          sampled.push_back(y[int64_t{r} * s.out + out]);
        }
      }
      EXPECT_LT(RelativeL2(sampled, expected), s.precision == f16 ? kF16Tolerance : kExactTolerance)
          << rows << " x " << s.in << " x " << s.out;
    }
  }
}

}  // namespace
}  // namespace quartet::testing
