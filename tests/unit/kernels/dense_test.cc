// Dense products, norms, embedding and the entry of the draft layer.
#include "kernels/cpu/linear.h"
#include "kernels/cpu/packed_matrix.h"
#include "tests/unit/kernels/support.h"

namespace quartet::cpu {
namespace {

using testing::DenseF32;
using testing::MaxDifference;
using testing::Must;
using testing::RandomFloats;
using testing::SameBits;
using testing::Scratch;
using testing::VectorF32;

TEST(PackedMatrix, EveryShapeOfTileGivesTheProduct) {
  ThreadPool pool(1);
  for (int n : {1, 15, 16, 17, 24, 63, 64, 65, 80, 100, 128, 200}) {
    for (int k : {1, 7, 64, 130}) {
      const std::vector<float> w = RandomFloats(n * k, 1.0f, static_cast<uint32_t>(n * 1000 + k));
      std::vector<float> turned(w.size());
      for (int c = 0; c < n; ++c) {
        for (int i = 0; i < k; ++i) turned[i * n + c] = w[c * k + i];
      }
      const PackedMatrix rows = PackedMatrix::FromRows(w.data(), n, k);
      const PackedMatrix columns = PackedMatrix::FromColumns(turned.data(), n, k);
      for (int count : {1, 2, 3, 4, 5, 6, 7, 13}) {
        const int ldx = k + 3, ldy = n + 5;
        const std::vector<float> x = RandomFloats(count * ldx, 1.0f, 7);
        std::vector<float> y(count * ldy, 42.0f), again(y);
        rows.Multiply(x.data(), ldx, count, y.data(), ldy, &pool);
        columns.Multiply(x.data(), ldx, count, again.data(), ldy, &pool);
        ASSERT_TRUE(SameBits(y, again)) << n << " " << k << " " << count;
        for (int r = 0; r < count; ++r) {
          for (int c = 0; c < ldy; ++c) {
            if (c >= n) {
              ASSERT_EQ(y[r * ldy + c], 42.0f) << "wrote beyond the row";
              continue;
            }
            double sum = 0;
            for (int i = 0; i < k; ++i) sum += double{x[r * ldx + i]} * w[c * k + i];
            ASSERT_NEAR(y[r * ldy + c], sum, 2e-5) << n << " " << k << " " << count;
          }
        }
      }
    }
  }
}

TEST(PackedMatrix, ARowHasTheSameBitsInEveryTileOfRowsAndOnEveryNumberOfThreads) {
  ThreadPool one(1), two(2), three(3);
  const int n = 344, k = 256, count = 64;
  const std::vector<float> w = RandomFloats(n * k, 1.0f, 1);
  const std::vector<float> x = RandomFloats(count * k, 1.0f, 2);
  const PackedMatrix matrix = PackedMatrix::FromRows(w.data(), n, k);
  std::vector<float> alone(count * n);
  for (int r = 0; r < count; ++r) {
    matrix.Multiply(&x[r * k], k, 1, &alone[r * n], n, &one);
  }
  for (ThreadPool* pool : {&one, &two, &three}) {
    for (int rows = 1; rows <= count; ++rows) {
      std::vector<float> y(rows * n);
      matrix.Multiply(x.data(), k, rows, y.data(), n, pool);
      ASSERT_TRUE(SameBits(y, {alone.data(), y.size()})) << rows << " rows";
    }
  }
}

TEST(PackedMatrix, AColumnHasTheSameBitsWhereverItStands) {
  // A slice of the outputs, as a rank holds it, against the whole.
  ThreadPool pool(1);
  const int n = 200, k = 96;
  const std::vector<float> w = RandomFloats(n * k, 1.0f, 1);
  const std::vector<float> x = RandomFloats(2 * k, 1.0f, 2);
  std::vector<float> whole(2 * n);
  PackedMatrix::FromRows(w.data(), n, k).Multiply(x.data(), k, 2, whole.data(), n, &pool);
  for (int begin : {0, 50, 64, 130}) {
    const int width = 50;
    std::vector<float> slice(2 * width);
    PackedMatrix::FromRows(&w[begin * k], width, k)
        .Multiply(x.data(), k, 2, slice.data(), width, &pool);
    for (int r = 0; r < 2; ++r) {
      EXPECT_TRUE(SameBits({&slice[r * width], static_cast<size_t>(width)},
                           {&whole[r * n + begin], static_cast<size_t>(width)}));
    }
  }
}

TEST(Linear, StackedPartsEqualThePartsAlone) {
  auto backend = MakeCpuBackend({});
  ThreadPool pool(1);
  SaturationCounters counters;
  const Codebooks codebooks;
  const Context context{&pool, &counters, &codebooks, nullptr};
  const int k = 64;
  const std::vector<float> a = RandomFloats(40 * k, 1.0f, 1), b = RandomFloats(7 * k, 1.0f, 2);
  const ops::LinearWeights wa = DenseF32(a, 40, k), wb = DenseF32(b, 7, k);
  const FusedLinear fused = Must(FusedLinear::Prepare({{&wa, "a"}, {&wb, "b"}}, context));
  const std::vector<float> x = RandomFloats(5 * k, 1.0f, 3);
  std::vector<float> both(5 * 47), first(5 * 40), second(5 * 7);
  fused.Run(x.data(), k, 5, both.data(), nullptr, &pool);
  Must(backend->PrepareLinear(wa))->Run(x.data(), 5, first.data(), Scratch(0));
  Must(backend->PrepareLinear(wb))->Run(x.data(), 5, second.data(), Scratch(0));
  EXPECT_EQ(fused.offset(1), 40);
  for (int r = 0; r < 5; ++r) {
    EXPECT_TRUE(SameBits({&both[r * 47], 40}, {&first[r * 40], 40}));
    EXPECT_TRUE(SameBits({&both[r * 47 + 40], 7}, {&second[r * 7], 7}));
  }
  const ops::LinearWeights wrong = DenseF32(b, 7, 32);
  EXPECT_THAT(
      std::string(FusedLinear::Prepare({{&wa, "a"}, {&wrong, "b"}}, context).status().message()),
      ::testing::HasSubstr("b: shape [7, 32], should be [7, 64]"));
}

TEST(Norms, FollowTheirFormulas) {
  auto backend = MakeCpuBackend({});
  constexpr int kWidth = 70, kRows = 3;
  const std::vector<float> w = RandomFloats(kWidth, 1.0f, 1);
  const std::vector<float> x = RandomFloats(kRows * kWidth, 1.0f, 2);
  const std::vector<float> p0 = RandomFloats(kRows * kWidth, 1.0f, 3);
  const std::vector<float> p1 = RandomFloats(kRows * kWidth, 1.0f, 4);
  // An eps that matters.
  const ops::NormWeights weights{VectorF32(w), 0.5f};
  const auto formula = [&](const std::vector<double>& in) {
    std::vector<double> out(in.size());
    for (int r = 0; r < kRows; ++r) {
      double square = 0;
      for (int c = 0; c < kWidth; ++c) square += in[r * kWidth + c] * in[r * kWidth + c];
      for (int c = 0; c < kWidth; ++c) {
        out[r * kWidth + c] = in[r * kWidth + c] / std::sqrt(square / kWidth + 0.5) * w[c];
      }
    }
    return out;
  };
  std::vector<float> y(x.size());
  Must(backend->PrepareRmsNorm(weights))->Run(x.data(), kRows, y.data());
  EXPECT_LT(MaxDifference(y, formula(std::vector<double>(x.begin(), x.end()))), 2e-6);

  std::vector<double> sum(x.size());
  for (size_t i = 0; i < x.size(); ++i) sum[i] = double{x[i]} + p0[i] + p1[i];
  std::vector<float> updated = x;
  const float* partials[] = {p0.data(), p1.data()};
  Must(backend->PrepareResidualNorm(weights))->Run(updated.data(), partials, kRows, y.data());
  EXPECT_LT(MaxDifference(updated, sum), 2e-6);
  EXPECT_LT(MaxDifference(y, formula(sum)), 3e-6);
}

TEST(Embedding, RanksHoldTheirRowsAndZerosElsewhere) {
  auto backend = MakeCpuBackend({});
  const std::vector<float> table = RandomFloats(6 * 8, 1.0f, 1);
  const std::vector<int32_t> ids = {0, 5, 2, 3, -1, 6};
  std::vector<float> sum(ids.size() * 8);
  for (int rank = 0; rank < 2; ++rank) {
    const std::vector<float> slice(table.begin() + rank * 24, table.begin() + (rank + 1) * 24);
    const auto op = Must(backend->PrepareEmbedding({DenseF32(slice, 3, 8), rank * 3}));
    std::vector<float> x(sum.size(), NAN);
    op->Run(ids.data(), static_cast<int>(ids.size()), x.data());
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += x[i];
  }
  for (size_t r = 0; r < ids.size(); ++r) {
    for (int c = 0; c < 8; ++c) {
      const bool held = ids[r] >= 0 && ids[r] < 6;
      EXPECT_EQ(sum[r * 8 + c], held ? table[ids[r] * 8 + c] : 0.0f) << r;
    }
  }
}

TEST(MtpEntry, NormsBothHalvesEmbeddingFirstAndZeroesPositionZero) {
  auto backend = MakeCpuBackend({});
  constexpr int kHidden = 32, kRows = 3;
  const std::vector<float> e = RandomFloats(kHidden, 1.0f, 1), h = RandomFloats(kHidden, 1.0f, 2);
  const std::vector<float> w = RandomFloats(kHidden * 2 * kHidden, 0.1f, 3);
  const std::vector<float> embedding = RandomFloats(kRows * kHidden, 1.0f, 4);
  const std::vector<float> hidden = RandomFloats(kRows * kHidden, 1.0f, 5);
  const std::vector<int32_t> positions = {7, 0, 1};
  const auto op = Must(backend->PrepareMtpEntry(
      {{VectorF32(e), 1e-5f}, {VectorF32(h), 1e-5f}, DenseF32(w, kHidden, 2 * kHidden)}));
  std::vector<float> x(kRows * kHidden);
  op->Run(embedding.data(), hidden.data(), positions.data(), kRows, x.data(),
          Scratch(op->WorkspaceBytes(kRows)));
  for (int r = 0; r < kRows; ++r) {
    double e2 = 0, h2 = 0;
    for (int c = 0; c < kHidden; ++c) {
      e2 += double{embedding[r * kHidden + c]} * embedding[r * kHidden + c] / kHidden;
      h2 += double{hidden[r * kHidden + c]} * hidden[r * kHidden + c] / kHidden;
    }
    for (int n = 0; n < kHidden; ++n) {
      double sum = 0;
      for (int c = 0; c < kHidden; ++c) {
        if (positions[r] != 0) {
          sum += embedding[r * kHidden + c] / std::sqrt(e2 + 1e-5) * e[c] * w[n * 2 * kHidden + c];
        }
        sum += hidden[r * kHidden + c] / std::sqrt(h2 + 1e-5) * h[c] * w[(n * 2 + 1) * kHidden + c];
      }
      EXPECT_NEAR(x[r * kHidden + n], sum, 5e-6) << r;
    }
  }
}

}  // namespace
}  // namespace quartet::cpu
