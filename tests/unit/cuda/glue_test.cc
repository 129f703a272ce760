// Norms, mHC sites, the draft layer's entry and row moves on CUDA, against the CPU's.

#include <bit>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/cpu/convert.h"
#include "kernels/cuda/mhc_params.h"
#include "kernels/cuda/rows.h"
#include "tests/unit/cuda/support.h"

namespace quartet::testing {
namespace {

constexpr int kStreams = cuda::kMhcStreams;
constexpr int kMap = cuda::kMhcMap;
constexpr int kManyRows = 705;  // so many that a site takes the kernel for prefill

double RelativeToLargest(const std::vector<float>& a, const std::vector<float>& b) {
  return MaxDifference(a, b) / MaxMagnitude(b);
}

ops::DenseMatrix DenseBits(const std::vector<uint16_t>& data, ops::DType dtype, int64_t rows,
                           int64_t cols) {
  ops::DenseMatrix matrix;
  matrix.dtype = dtype;
  matrix.data = reinterpret_cast<const std::byte*>(data.data());
  matrix.rows = rows;
  matrix.cols = cols;
  matrix.row_stride = cols;
  return matrix;
}

class GlueOnCuda : public CudaOps {
 protected:
  // Small ones in the emulator, the real model's on a GPU too.
  std::vector<int> HiddenSizes() const {
    return TestDeviceIsEmulated() ? std::vector<int>{128, 256, 516}
                                  : std::vector<int>{128, 256, 516, 4096};
  }
  std::vector<cuda::Buffer> UploadAll(const std::vector<std::vector<float>>& all) {
    std::vector<cuda::Buffer> buffers;
    for (const auto& one : all) buffers.push_back(Upload(one));
    return buffers;
  }
};

template <class T>
std::vector<const float*> Pointers(const std::vector<T>& all) {
  std::vector<const float*> out;
  for (const T& one : all) {
    if constexpr (std::is_same_v<T, cuda::Buffer>) {
      out.push_back(one.template as<float>());
    } else {
      out.push_back(one.data());
    }
  }
  return out;
}

std::vector<std::vector<float>> RandomPartials(int count, size_t size, uint32_t seed) {
  std::vector<std::vector<float>> out;
  for (int i = 0; i < count; ++i) out.push_back(RandomFloats(size, 1.0f, seed + i));
  return out;
}

// ---- norms

TEST_F(GlueOnCuda, RmsNormAgreesWithTheCpu) {
  for (const int width : HiddenSizes()) {
    const auto w = RandomFloats(width, 1.0f, 1);
    for (const int rows : {1, 3, 40}) {
      auto x = RandomFloats(rows * width, 3.0f, 2);
      if (rows > 1) std::fill_n(x.begin(), width, 0.0f);  // a row of zeros stays one
      std::vector<float> expected(x.size());
      Must(cpu_->PrepareRmsNorm({VectorF32(w)}))->Run(x.data(), rows, expected.data());

      const auto dx = Upload(x);
      const auto dy = Poisoned<float>(x.size());
      Must(cuda_->PrepareRmsNorm({VectorF32(w)}))->Run(dx.as<float>(), rows, dy.as<float>());
      EXPECT_LT(RelativeToLargest(Download<float>(dy, x.size()), expected), 1e-6)
          << rows << " x " << width;
      if (rows > 1) {
        EXPECT_EQ(MaxMagnitude(Download<float>(dy, width)), 0.0);
      }
    }
  }
}

TEST_F(GlueOnCuda, ResidualNormAddsThePartialsInRankOrder) {
  for (const int width : HiddenSizes()) {
    const auto w = RandomFloats(width, 1.0f, 1);
    for (const int count : {1, 2, 4, 8}) {
      const int rows = 3;
      auto x = RandomFloats(rows * width, 1.0f, 2);
      const auto partials = RandomPartials(count, x.size(), 10);
      const auto dx = Upload(x);
      const auto dpartials = UploadAll(partials);
      std::vector<float> expected(x.size());
      Must(cpu_->PrepareResidualNorm({VectorF32(w)}))
          ->Run(x.data(), Pointers(partials), rows, expected.data());

      const auto dy = Poisoned<float>(x.size());
      Must(cuda_->PrepareResidualNorm({VectorF32(w)}))
          ->Run(dx.as<float>(), Pointers(dpartials), rows, dy.as<float>());
      EXPECT_TRUE(SameBits(Download<float>(dx, x.size()), x)) << count << " x " << width;
      EXPECT_LT(RelativeToLargest(Download<float>(dy, x.size()), expected), 1e-6);
    }
  }
}

TEST_F(GlueOnCuda, WidthsThatNoBlockCanHoldAreRefused) {
  const std::vector<float> odd(126), long_row(24'580);
  EXPECT_EQ(cuda_->PrepareRmsNorm({VectorF32(odd)}).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(cuda_->PrepareRmsNorm({VectorF32(long_row)}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

// ---- mHC

// Weights and a state in the middle of the network.
struct Site {
  Site(int hidden, uint32_t seed, float logit_scale = 1.0f)
      : fn(RandomFloats(static_cast<size_t>(kMap) * kStreams * hidden,
                        0.5f / std::sqrt(static_cast<float>(hidden)), seed)),
        base(RandomFloats(kMap, logit_scale, seed + 1)),
        scale(RandomFloats(3, logit_scale, seed + 2)),
        norm(RandomFloats(hidden, 1.0f, seed + 3)),
        hidden(hidden) {}

  ops::MhcSiteWeights Weights() const {
    ops::MhcSiteWeights w;
    w.fn = DenseF32(fn, kMap, int64_t{kStreams} * hidden);
    w.base = VectorF32(base);
    w.scale = VectorF32(scale);
    w.norm = {VectorF32(norm)};
    return w;
  }

  std::vector<float> fn, base, scale, norm;
  int hidden;
};

struct State {
  State(int rows, int hidden, uint32_t seed)
      : streams(RandomFloats(static_cast<size_t>(rows) * kStreams * hidden, 2.0f, seed)),
        post(RandomFloats(rows * kStreams, 0.5f, seed + 1)),
        comb(RandomFloats(rows * kStreams * kStreams, 0.25f, seed + 2)),
        x(static_cast<size_t>(rows) * hidden, NAN) {}

  ops::MhcMix mix() { return {post.data(), comb.data()}; }
  // The rows [begin, begin + count) alone.
  State Rows(int begin, int count, int hidden) const {
    State out(count, hidden, 0);
    const auto cut = [&](const std::vector<float>& from, std::vector<float>& to) {
      std::copy_n(from.begin() + begin * (to.size() / count), to.size(), to.begin());
    };
    cut(streams, out.streams);
    cut(post, out.post);
    cut(comb, out.comb);
    cut(x, out.x);
    return out;
  }

  std::vector<float> streams, post, comb, x;
};

class MhcOnCuda : public GlueOnCuda {
 protected:
  // What a GPU makes of this state; `partials` empty: Begin with `embedding`.
  State Run(const ops::MhcSite& op, const State& state, int rows,
            const std::vector<std::vector<float>>& partials,
            const std::vector<float>& embedding = {}) {
    const auto streams =
        partials.empty() ? Poisoned<float>(state.streams.size()) : Upload(state.streams);
    const auto post = Upload(state.post), comb = Upload(state.comb);
    const auto x = Poisoned<float>(state.x.size());
    const auto inputs =
        UploadAll(partials.empty() ? std::vector<std::vector<float>>{embedding} : partials);
    const ops::MhcMix mix{post.as<float>(), comb.as<float>()};
    if (partials.empty()) {
      op.Begin(inputs[0].as<float>(), rows, streams.as<float>(), mix, x.as<float>());
    } else {
      op.Boundary(Pointers(inputs), rows, streams.as<float>(), mix, x.as<float>());
    }
    State out = state;
    out.streams = Download<float>(streams, state.streams.size());
    out.post = Download<float>(post, state.post.size());
    out.comb = Download<float>(comb, state.comb.size());
    out.x = Download<float>(x, state.x.size());
    return out;
  }

  static void ExpectClose(const State& got, const State& expected, double mix_tolerance = 1e-5) {
    EXPECT_LT(RelativeToLargest(got.streams, expected.streams), 2e-5);
    EXPECT_LT(RelativeToLargest(got.x, expected.x), 2e-5);
    EXPECT_LT(MaxDifference(got.post, expected.post), mix_tolerance);
    EXPECT_LT(MaxDifference(got.comb, expected.comb), mix_tolerance);
  }
};

TEST_F(MhcOnCuda, BoundaryAgreesWithTheCpu) {
  for (const int hidden : HiddenSizes()) {
    const Site site(hidden, 20);
    const auto cpu = Must(cpu_->PrepareMhcSite(site.Weights()));
    const auto cuda = Must(cuda_->PrepareMhcSite(site.Weights()));
    for (const int rows : {1, 3, 8, 40, 100, kManyRows}) {
      for (const int count : {1, 2, 4}) {
        if (rows == kManyRows && count != 2) continue;
        SCOPED_TRACE(absl::StrCat(rows, " rows, ", count, " partials, hidden ", hidden));
        const State before(rows, hidden, 30 + rows);
        const auto partials = RandomPartials(count, static_cast<size_t>(rows) * hidden, 40);
        State expected = before;
        cpu->Boundary(Pointers(partials), rows, expected.streams.data(), expected.mix(),
                      expected.x.data());
        ExpectClose(Run(*cuda, before, rows, partials), expected);
      }
    }
  }
}

TEST_F(MhcOnCuda, BeginCopiesTheEmbeddingIntoEveryStream) {
  for (const int hidden : HiddenSizes()) {
    const Site site(hidden, 50);
    const auto cpu = Must(cpu_->PrepareMhcSite(site.Weights()));
    const auto cuda = Must(cuda_->PrepareMhcSite(site.Weights()));
    for (const int rows : {1, 5, kManyRows}) {
      SCOPED_TRACE(absl::StrCat(rows, " rows, hidden ", hidden));
      const auto embedding = RandomFloats(static_cast<size_t>(rows) * hidden, 1.0f, 60);
      State expected(rows, hidden, 61);
      cpu->Begin(embedding.data(), rows, expected.streams.data(), expected.mix(),
                 expected.x.data());
      const State got = Run(*cuda, State(rows, hidden, 61), rows, {}, embedding);
      ExpectClose(got, expected);
      EXPECT_TRUE(SameBits(got.streams, expected.streams));
    }
  }
}

// fn in 16 bits stays in 16 bits on the device; FP16 is exact, BF16 of usual size too.
TEST_F(MhcOnCuda, MapsOfSixteenBitsAgreeWithTheCpu) {
  for (const ops::DType dtype : {ops::DType::kF16, ops::DType::kBF16}) {
    for (const int hidden : HiddenSizes()) {
      const Site site(hidden, 70);
      std::vector<uint16_t> bits(site.fn.size());
      for (size_t i = 0; i < bits.size(); ++i) {
        bool saturated = false;
        bits[i] = dtype == ops::DType::kF16
                      ? cpu::F32ToF16(site.fn[i], &saturated)
                      : static_cast<uint16_t>(std::bit_cast<uint32_t>(site.fn[i]) >> 16);
      }
      ops::MhcSiteWeights w = site.Weights();
      w.fn = DenseBits(bits, dtype, kMap, int64_t{kStreams} * hidden);
      const auto cpu = Must(cpu_->PrepareMhcSite(w));
      const auto cuda = Must(cuda_->PrepareMhcSite(w));
      for (const int rows : {2, 10, kManyRows}) {
        SCOPED_TRACE(absl::StrCat(rows, " rows, hidden ", hidden));
        const State before(rows, hidden, 80);
        const auto partials = RandomPartials(2, static_cast<size_t>(rows) * hidden, 81);
        State expected = before;
        cpu->Boundary(Pointers(partials), rows, expected.streams.data(), expected.mix(),
                      expected.x.data());
        ExpectClose(Run(*cuda, before, rows, partials), expected);
      }
    }
  }
}

// Logits far apart leave rows of the comb matrix that are all but one-hot, also twice in a column.
TEST_F(MhcOnCuda, SinkhornOfExtremeLogitsAgreesWithTheCpu) {
  const int hidden = 128, rows = 4;
  for (uint32_t seed = 0; seed < 20; ++seed) {
    const Site site(hidden, 100 + 10 * seed, 30.0f);
    const State before(rows, hidden, 90 + seed);
    const auto partials = RandomPartials(1, rows * hidden, 91);
    State expected = before;
    Must(cpu_->PrepareMhcSite(site.Weights()))
        ->Boundary(Pointers(partials), rows, expected.streams.data(), expected.mix(),
                   expected.x.data());
    SCOPED_TRACE(seed);
    // Sums in another order move logits of a hundred by some 1e-5.
    ExpectClose(Run(*Must(cuda_->PrepareMhcSite(site.Weights())), before, rows, partials), expected,
                5e-5);
  }
}

// However many rows a call has, and whichever kernel it takes, a row comes out with the same bits.
TEST_F(MhcOnCuda, ARowDoesNotDependOnTheOthers) {
  const int hidden = HiddenSizes().back(), rows = kManyRows;
  const Site site(hidden, 110);
  const auto op = Must(cuda_->PrepareMhcSite(site.Weights()));
  const State before(rows, hidden, 111);
  const auto partials = RandomPartials(2, static_cast<size_t>(rows) * hidden, 112);
  const State whole = Run(*op, before, rows, partials);
  for (const auto& [begin, count] : {std::pair{0, 1}, {33, 3}, {60, 100}}) {
    std::vector<std::vector<float>> part;
    for (const auto& one : partials) {
      part.emplace_back(one.begin() + begin * hidden, one.begin() + (begin + count) * hidden);
    }
    const State alone = Run(*op, before.Rows(begin, count, hidden), count, part);
    const State expected = whole.Rows(begin, count, hidden);
    EXPECT_TRUE(SameBits(alone.streams, expected.streams));
    EXPECT_TRUE(SameBits(alone.x, expected.x));
    EXPECT_TRUE(SameBits(alone.post, expected.post));
    EXPECT_TRUE(SameBits(alone.comb, expected.comb));
  }
}

TEST_F(MhcOnCuda, AGraphCanBeReplayed) {
  const int hidden = 256, rows = 2;
  const Site site(hidden, 120);
  const auto cpu = Must(cpu_->PrepareMhcSite(site.Weights()));
  const auto op = Must(cuda_->PrepareMhcSite(site.Weights()));
  State expected(rows, hidden, 121);
  const auto partials = RandomPartials(1, rows * hidden, 122);
  const auto streams = Upload(expected.streams), post = Upload(expected.post),
             comb = Upload(expected.comb), y = Upload(partials[0]);
  const auto x = Poisoned<float>(expected.x.size());
  const float* const pointers[] = {y.as<float>()};
  const auto graph = Must(device_->Capture([&] {
    op->Boundary(pointers, rows, streams.as<float>(), {post.as<float>(), comb.as<float>()},
                 x.as<float>());
  }));
  for (int i = 0; i < 3; ++i) {
    device_->Replay(*graph);
    cpu->Boundary(Pointers(partials), rows, expected.streams.data(), expected.mix(),
                  expected.x.data());
  }
  EXPECT_LT(RelativeToLargest(Download<float>(x, expected.x.size()), expected.x), 2e-5);
}

TEST_F(MhcOnCuda, FinishAgreesWithTheCpu) {
  for (const int hidden : HiddenSizes()) {
    const auto w = RandomFloats(hidden, 1.0f, 130);
    const auto cpu = Must(cpu_->PrepareMhcFinish({VectorF32(w)}, kStreams));
    const auto cuda = Must(cuda_->PrepareMhcFinish({VectorF32(w)}, kStreams));
    for (const int rows : {1, 3, 40}) {
      for (const int count : {1, 4}) {
        SCOPED_TRACE(absl::StrCat(rows, " rows, ", count, " partials, hidden ", hidden));
        State expected(rows, hidden, 131);
        const auto partials = RandomPartials(count, static_cast<size_t>(rows) * hidden, 132);
        const auto inputs = UploadAll(partials);
        const auto streams = Upload(expected.streams), post = Upload(expected.post),
                   comb = Upload(expected.comb);
        const auto h = Poisoned<float>(expected.x.size());
        cuda->Run(Pointers(inputs), rows, streams.as<float>(), {post.as<float>(), comb.as<float>()},
                  h.as<float>());
        cpu->Run(Pointers(partials), rows, expected.streams.data(), expected.mix(),
                 expected.x.data());
        EXPECT_LT(
            RelativeToLargest(Download<float>(streams, expected.streams.size()), expected.streams),
            2e-5);
        EXPECT_LT(RelativeToLargest(Download<float>(h, expected.x.size()), expected.x), 2e-5);
      }
    }
  }
}

TEST_F(MhcOnCuda, OtherShapesThanTheModelsAreRefused) {
  const Site site(128, 140);
  ops::MhcSiteWeights w = site.Weights();
  w.hc_mult = 3;
  EXPECT_EQ(cuda_->PrepareMhcSite(w).status().code(), absl::StatusCode::kInvalidArgument);
  w = site.Weights();
  w.fn.rows = kMap - 1;
  EXPECT_EQ(cuda_->PrepareMhcSite(w).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(cuda_->PrepareMhcFinish(w.norm, 2).status().code(), absl::StatusCode::kInvalidArgument);
}

// ---- the draft layer's entry

TEST_F(GlueOnCuda, MtpEntryAgreesWithTheCpuAndDropsTheEmbeddingAtPositionZero) {
  for (const int hidden : HiddenSizes()) {
    const auto enorm = RandomFloats(hidden, 1.0f, 150), hnorm = RandomFloats(hidden, 1.0f, 151);
    const auto eh_proj = RandomFloats(static_cast<size_t>(hidden) * 2 * hidden,
                                      1.0f / std::sqrt(static_cast<float>(hidden)), 152);
    const ops::MtpEntryWeights w{.enorm = {VectorF32(enorm), 1e-6f},
                                 .hnorm = {VectorF32(hnorm), 1e-5f},
                                 .eh_proj = DenseF32(eh_proj, hidden, 2 * hidden)};
    const auto cpu = Must(cpu_->PrepareMtpEntry(w));
    const auto cuda = Must(cuda_->PrepareMtpEntry(w));
    for (const int rows : {1, 3, 20}) {
      const auto embedding = RandomFloats(rows * hidden, 1.0f, 153);
      const auto h = RandomFloats(rows * hidden, 1.0f, 154);
      std::vector<int32_t> positions(rows);
      std::iota(positions.begin(), positions.end(), 0);
      std::vector<float> expected(rows * hidden);
      cpu->Run(embedding.data(), h.data(), positions.data(), rows, expected.data(),
               Scratch(cpu->WorkspaceBytes(rows)));
      const auto de = Upload(embedding), dh = Upload(h);
      const auto dp = Upload(positions);
      const auto dx = Poisoned<float>(expected.size());
      cuda->Run(de.as<float>(), dh.as<float>(), dp.as<int32_t>(), rows, dx.as<float>(),
                Workspace(cuda->WorkspaceBytes(rows)));
      // The product is in FP16.
      EXPECT_LT(RelativeL2(Download<float>(dx, expected.size()), expected), 1e-3)
          << rows << " x " << hidden;
    }
  }
}

// ---- rows

TEST_F(GlueOnCuda, RowsAreGatheredAndScatteredById) {
  cuda::Context context{device_.get(), nullptr, nullptr};
  const cuda::RowMover mover = Must(cuda::RowMover::Make(context));
  const int width = 132;
  const auto x = RandomFloats(10 * width, 1.0f, 160);
  const std::vector<int32_t> ids = {7, 0, 9};
  const auto dx = Upload(x);
  const auto dids = Upload(ids);
  const auto dy = Poisoned<float>(3 * width);
  mover.Gather(dx.as<float>(), dids.as<int32_t>(), 3, width, dy.as<float>());
  const auto y = Download<float>(dy, 3 * width);
  for (int r = 0; r < 3; ++r) {
    EXPECT_TRUE(SameBits(std::span(y).subspan(r * width, width),
                         std::span(x).subspan(ids[r] * width, width)));
  }
  // Back to where they came from, into rows of zeros.
  const auto dz = Upload(std::vector<float>(x.size()));
  mover.Scatter(dy.as<float>(), dids.as<int32_t>(), 3, width, dz.as<float>());
  const auto z = Download<float>(dz, x.size());
  for (int r = 0; r < 10; ++r) {
    const bool moved = std::find(ids.begin(), ids.end(), r) != ids.end();
    const std::vector<float> zeros(width);
    EXPECT_TRUE(SameBits(std::span(z).subspan(r * width, width),
                         moved ? std::span(x).subspan(r * width, width) : std::span(zeros)));
  }
}

}  // namespace
}  // namespace quartet::testing
