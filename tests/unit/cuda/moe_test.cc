#include "kernels/cuda/moe.h"

#include <limits>
#include <memory>

#include "kernels/cuda/device/counters.h"
#include "tests/unit/cuda/exl3_weights.h"
#include "tests/unit/cuda/support.h"

namespace quartet::testing {
namespace {

using Kind = RandomExl3::Kind;

struct MoeShape {
  int hidden = 256;
  int inner = 128;
  int experts = 8;
  int top_k = 3;
};

// A layer of random EXL3 experts: matrix number i (gate, up, down of expert 0, then of expert 1,
// ...) is of kind i modulo the number of kinds. Owns what the weights point to.
class RandomMoe {
 public:
  RandomMoe(const MoeShape& s, const std::vector<Kind>& kinds, uint32_t seed)
      : router_(RandomFloats(s.experts * s.hidden, 1.0f / std::sqrt(s.hidden), seed)),
        bias_(RandomFloats(s.experts, 0.1f, seed + 1)),
        shared_(RandomFloats(3 * kSharedInner * s.hidden, 1.0f / std::sqrt(s.hidden), seed + 2)) {
    size_t next = 0;
    const auto matrix = [&](int64_t in, int64_t out) {
      matrices_.emplace_back(in, out, kinds[next++ % kinds.size()], seed += 3);
      return matrices_.back().view();
    };
    matrices_.reserve(3 * s.experts);
    weights_.router = DenseF32(router_, s.experts, s.hidden);
    weights_.correction_bias = VectorF32(bias_);
    for (int e = 0; e < s.experts; ++e) {
      ops::MlpWeights w;
      w.gate = matrix(s.hidden, s.inner);
      w.up = matrix(s.hidden, s.inner);
      w.down = matrix(s.inner, s.hidden);
      weights_.experts.push_back(w);
    }
    const auto shared = [&](int part, int64_t rows, int64_t cols) {
      ops::DenseMatrix m = DenseF32(shared_, rows, cols);
      m.data += sizeof(float) * part * kSharedInner * s.hidden;
      return m;
    };
    weights_.shared = {shared(0, kSharedInner, s.hidden), shared(1, kSharedInner, s.hidden),
                       shared(2, s.hidden, kSharedInner), 10.0f};
    weights_.top_k = s.top_k;
    weights_.routed_scaling = 2.5f;
  }

  ops::MoeWeights& weights() { return weights_; }

 private:
  static constexpr int kSharedInner = 32;
  std::vector<float> router_, bias_, shared_;
  std::vector<RandomExl3> matrices_;
  ops::MoeWeights weights_;
};

struct MoeResult {
  std::vector<float> y, weights, logits;
  std::vector<int32_t> experts;
};

class MoeOnCuda : public CudaOps {
 protected:
  MoeResult OnCpu(const ops::Moe& op, const ops::MoeWeights& w, const std::vector<float>& x,
                  int rows) {
    MoeResult r;
    r.y.resize(x.size());
    r.experts.resize(rows * w.top_k);
    r.weights.resize(rows * w.top_k);
    r.logits.resize(rows * w.experts.size());
    op.Run(x.data(), rows, r.y.data(), {r.experts.data(), r.weights.data(), r.logits.data()},
           Scratch(op.WorkspaceBytes(rows)));
    return r;
  }
  MoeResult OnCuda(const ops::Moe& op, const ops::MoeWeights& w, const std::vector<float>& x,
                   int rows) {
    const size_t slots = rows * w.top_k;
    const auto dx = Upload(x);
    const auto dy = Poisoned<float>(x.size());
    const auto experts = Poisoned<int32_t>(slots);
    const auto weights = Poisoned<float>(slots);
    const auto logits = Poisoned<float>(rows * w.experts.size());
    op.Run(dx.as<float>(), rows, dy.as<float>(),
           {experts.as<int32_t>(), weights.as<float>(), logits.as<float>()},
           Workspace(op.WorkspaceBytes(rows)));
    return {Download<float>(dy, x.size()), Download<float>(weights, slots),
            Download<float>(logits, rows * w.experts.size()), Download<int32_t>(experts, slots)};
  }

  void ExpectAgrees(const ops::MoeWeights& w, const std::vector<int>& all_rows, uint32_t seed,
                    const std::string& what) {
    const auto oracle = Must(cpu_->PrepareMoe(w));
    const auto op = Must(cuda_->PrepareMoe(w));
    for (int rows : all_rows) {
      const auto x = RandomFloats(rows * Hidden(w), 1.0f, ++seed);
      ExpectClose(OnCuda(*op, w, x, rows), OnCpu(*oracle, w, x, rows), rows,
                  what + ", " + std::to_string(rows) + " rows");
    }
  }
  // In the norm, and no element far off.
  static void ExpectClose(const MoeResult& got, const MoeResult& expected, int rows,
                          const std::string& what) {
    EXPECT_EQ(got.experts, expected.experts) << what;
    EXPECT_LT(MaxDifference(got.weights, expected.weights), 1e-4) << what;
    EXPECT_LT(MaxDifference(got.logits, expected.logits), 1e-4) << what;
    EXPECT_LT(RelativeL2(got.y, expected.y), 2e-3) << what;
    const size_t width = expected.y.size() / rows;
    for (int r = 0; r < rows; ++r) {
      double square = 0;
      for (size_t c = 0; c < width; ++c) square += std::pow(expected.y[r * width + c], 2);
      const double root_mean = std::sqrt(square / width);
      for (size_t c = 0; c < width; ++c) {
        ASSERT_NEAR(got.y[r * width + c], expected.y[r * width + c], 1e-2 * root_mean)
            << what << " row " << r << " output " << c;
      }
    }
  }

 private:
  static int64_t Hidden(const ops::MoeWeights& w) {
    return std::get<ops::DenseMatrix>(w.router).cols;
  }
};

// Gate, up and down of one width, of different ones, and with the other codebooks.
std::vector<std::vector<Kind>> KindsOfExperts(ops::TileOrder order) {
  const auto mcg = ops::Codebook::kMcg;
  return {
      {{2, mcg, order}},
      {{3, mcg, order}},
      {{4, mcg, order}},
      {{6, mcg, order}, {8, mcg, order}},
      {{2, mcg, order}, {3, mcg, order}, {4, mcg, order}, {2, mcg, order}},
      {{2, ops::Codebook::k3Inst, order}, {3, mcg, order}},
      {{2, ops::Codebook::kMul1, order}, {4, ops::Codebook::kMul1, order}},
  };
}

std::string Name(const std::vector<Kind>& kinds) {
  std::string name;
  for (const Kind& kind : kinds) name += (name.empty() ? "" : ", ") + RandomExl3::Name(kind);
  return name;
}

TEST_F(MoeOnCuda, AgreesWithTheCpuInEveryKindOfExpert) {
  for (ops::TileOrder order : kTileOrders) {
    uint32_t seed = 1;
    for (const std::vector<Kind>& kinds : KindsOfExperts(order)) {
      RandomMoe moe({}, kinds, seed);
      ExpectAgrees(moe.weights(), {2, 12}, 77, Name(kinds));
      seed += 10;
    }
  }
}

TEST_F(MoeOnCuda, AnyNumberOfRows) {
  RandomMoe moe({}, {{2}, {3}}, 5);
  ExpectAgrees(moe.weights(), {1, 2, 3, 4, 5, 6, 7, 8, 9, 33}, 40, "K2 and K3");
}

TEST_F(MoeOnCuda, RowsThatAllChooseTheSameExpertsShareTheirWeights) {
  RandomMoe all({.top_k = 8}, {{2}}, 6);
  ExpectAgrees(all.weights(), {8}, 3, "all of eight");
  // More rows than one tile of the product of many rows has.
  RandomMoe both({.experts = 2, .top_k = 2}, {{2}}, 6);
  ExpectAgrees(both.weights(), {132}, 3, "both of two");
}

TEST_F(MoeOnCuda, PaddedExperts) {
  RandomMoe moe({.hidden = 256, .inner = 256}, {{3}}, 7);
  ops::MoeWeights w = moe.weights();
  const auto router = RandomFloats(8 * 200, 0.1f, 8);
  const auto shared = RandomFloats(200 * 16, 0.1f, 9);
  w.router = DenseF32(router, 8, 200);
  w.shared = {DenseF32(shared, 16, 200), DenseF32(shared, 16, 200), DenseF32(shared, 200, 16)};
  for (ops::MlpWeights& e : w.experts) {
    for (ops::LinearWeights* m : {&e.gate, &e.up}) {
      std::get<ops::Exl3Matrix>(*m).used_in = 200;
      std::get<ops::Exl3Matrix>(*m).used_out = 136;
    }
    std::get<ops::Exl3Matrix>(e.down).used_in = 136;
    std::get<ops::Exl3Matrix>(e.down).used_out = 200;
  }
  ExpectAgrees(w, {3, 11}, 10, "padded");
}

TEST_F(MoeOnCuda, DenseExperts) {
  constexpr int kHidden = 128, kInner = 40, kExperts = 8;
  const auto router = RandomFloats(kExperts * kHidden, 0.1f, 20);
  const auto bias = RandomFloats(kExperts, 0.1f, 21);
  const auto data = RandomFloats((kExperts + 1) * 3 * kInner * kHidden, 0.1f, 22);
  int next = 0;
  const auto matrix = [&](int64_t rows, int64_t cols) {
    ops::DenseMatrix m = DenseF32(data, rows, cols);
    m.data += sizeof(float) * next++ * kInner * kHidden;
    return m;
  };
  ops::MoeWeights w;
  w.router = DenseF32(router, kExperts, kHidden);
  w.correction_bias = VectorF32(bias);
  for (int e = 0; e <= kExperts; ++e) {
    ops::MlpWeights expert;
    expert.gate = matrix(kInner, kHidden);
    expert.up = matrix(kInner, kHidden);
    expert.down = matrix(kHidden, kInner);
    expert.limit = 2.0f;
    (e < kExperts ? w.experts.emplace_back() : w.shared) = expert;
  }
  w.top_k = 3;
  w.routed_scaling = 2.5f;
  ExpectAgrees(w, {1, 12}, 23, "dense");
}

TEST_F(MoeOnCuda, TiesGoToTheLowerIndexAndNanRowsStillChooseDifferentExperts) {
  RandomMoe moe({.experts = 5}, {{2}}, 12);
  ops::MoeWeights w = moe.weights();
  const std::vector<float> zeros(5 * 256), bias(5);
  w.router = DenseF32(zeros, 5, 256);
  w.correction_bias = VectorF32(bias);
  auto x = RandomFloats(2 * 256, 1.0f, 13);
  auto op = Must(cuda_->PrepareMoe(w));
  EXPECT_EQ(OnCuda(*op, w, x, 2).experts, (std::vector<int32_t>{0, 1, 2, 0, 1, 2}));
  x[256] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(OnCuda(*op, w, x, 2).experts, (std::vector<int32_t>{0, 1, 2, 0, 1, 2}));
  // A bias that is no number comes after all that are.
  const std::vector<float> odd = {NAN, 0, -INFINITY, 1, -9};
  w.correction_bias = VectorF32(odd);
  op = Must(cuda_->PrepareMoe(w));
  x.resize(256);
  EXPECT_EQ(OnCuda(*op, w, x, 1).experts, (std::vector<int32_t>{3, 1, 4}));
}

TEST_F(MoeOnCuda, TheSameCallGivesTheSameBits) {
  RandomMoe moe({}, {{2}, {4}}, 14);
  const auto op = Must(cuda_->PrepareMoe(moe.weights()));
  for (int rows : {1, 8, 33}) {
    const auto x = RandomFloats(rows * 256, 1.0f, 15);
    const auto first = OnCuda(*op, moe.weights(), x, rows);
    const auto second = OnCuda(*op, moe.weights(), x, rows);
    EXPECT_TRUE(SameBits(first.y, second.y)) << rows << " rows";
  }
}

TEST_F(MoeOnCuda, TheHookChoosesInPlaceOfTheRouter) {
  RandomMoe moe({}, {{2}}, 16);
  cuda::StepLimits limits = Limits();
  const auto step = Must(cuda::StepState::Create(*device_, limits));
  const auto counters = Upload(std::vector<unsigned long long>{0, 0});
  cuda::Context context = {device_.get(), step.get(), counters.as<cuda::SaturationCounters>()};
  cuda::MoeTestHook hook;
  const auto op = Must(cuda::PrepareMoeOp(moe.weights(), context, &hook));
  const std::vector<int32_t> forced = {7, 2, 5, 1, 0, 6};
  const auto device_forced = Upload(forced);
  hook.forced_experts = device_forced.as<int32_t>();
  const auto x = RandomFloats(2 * 256, 1.0f, 17);
  EXPECT_EQ(OnCuda(*op, moe.weights(), x, 2).experts, forced);
  hook.forced_experts = nullptr;
  EXPECT_EQ(OnCuda(*op, moe.weights(), x, 2).experts,
            OnCpu(*Must(cpu_->PrepareMoe(moe.weights())), moe.weights(), x, 2).experts);
}

// Alone a row is multiplied in another way than with others beside it (device/exl3_single.cuh), so
// only a batch-invariant layer gives it the same bits.
TEST_F(MoeOnCuda, ARowsResultDependsLittleOnWhoSharesItsExperts) {
  RandomMoe moe({}, {{2}, {4}}, 19);
  const auto step = Must(cuda::StepState::Create(*device_, Limits()));
  const auto counters = Upload(std::vector<unsigned long long>{0, 0});
  const auto x = RandomFloats(3 * 256, 1.0f, 20);
  for (const bool invariant : {false, true}) {
    cuda::Context context = {device_.get(), step.get(), counters.as<cuda::SaturationCounters>()};
    context.batch_invariant = invariant;
    cuda::MoeTestHook hook;
    const auto op = Must(cuda::PrepareMoeOp(moe.weights(), context, &hook));
    const auto first_row = [&](const std::vector<int32_t>& forced) {
      const auto device_forced = Upload(forced);
      hook.forced_experts = device_forced.as<int32_t>();
      std::vector<float> y = OnCuda(*op, moe.weights(), x, 3).y;
      y.resize(256);
      return y;
    };
    const std::vector<float> alone = first_row({7, 2, 5, 1, 0, 6, 3, 4, 0});
    const std::vector<float> shared = first_row({7, 2, 5, 5, 2, 7, 7, 0, 2});
    EXPECT_LT(RelativeL2(shared, alone), 2e-3);
    EXPECT_EQ(SameBits(shared, alone), invariant);
  }
}

// Several blocks of down make the same inputs; only one counts what does not fit FP16. The second
// row is the first one negated, so that the gate of element 0, all that enters down, is open in one
// of them: its transform is 128 values that do not fit.
TEST_F(MoeOnCuda, ActivationsThatSaturateAreCountedOnce) {
  RandomMoe moe({.experts = 1, .top_k = 1}, {{2}}, 21);
  ops::MoeWeights w = moe.weights();
  const std::vector<uint16_t> thousand(128, 0x63D0);
  std::vector<uint16_t> first(128);
  first[0] = 0x7BFF;  // the largest
  for (ops::LinearWeights* m : {&w.experts[0].gate, &w.experts[0].up}) {
    std::get<ops::Exl3Matrix>(*m).svh = reinterpret_cast<const std::byte*>(thousand.data());
    std::get<ops::Exl3Matrix>(*m).sv_signs = nullptr;
  }
  std::get<ops::Exl3Matrix>(w.experts[0].down).suh =
      reinterpret_cast<const std::byte*>(first.data());
  std::get<ops::Exl3Matrix>(w.experts[0].down).su_signs = nullptr;
  auto x = RandomFloats(2 * 256, 1.0f, 22);
  for (int i = 0; i < 256; ++i) x[256 + i] = -x[i];
  const auto step = Must(cuda::StepState::Create(*device_, Limits()));
  const auto counters = Upload(std::vector<unsigned long long>{0, 0});
  cuda::Context context = {device_.get(), step.get(), counters.as<cuda::SaturationCounters>()};
  OnCuda(*Must(cuda::PrepareMoeOp(w, context, nullptr)), w, x, 2);
  EXPECT_EQ(Download<unsigned long long>(counters, 1)[0], 128u);
}

TEST_F(MoeOnCuda, WhatIsNoNumberIsNotClampedAway) {
  RandomMoe moe({.experts = 1, .top_k = 1}, {{2}}, 23);
  ops::MoeWeights w = moe.weights();
  std::vector<uint16_t> scales(128, 0x3C00);
  scales[5] = 0x7E00;  // NaN
  ops::MlpWeights& expert = w.experts[0];
  expert.limit = 10.0f;
  const auto x = RandomFloats(2 * 256, 1.0f, 24);
  for (ops::LinearWeights* m : {&expert.gate, &expert.up}) {
    auto& matrix = std::get<ops::Exl3Matrix>(*m);
    const auto before = matrix;
    matrix.svh = reinterpret_cast<const std::byte*>(scales.data());
    matrix.sv_signs = nullptr;
    const auto op = Must(cuda_->PrepareMoe(w));
    for (int rows : {1, 2}) {
      for (float v : OnCuda(*op, w, {x.begin(), x.begin() + rows * 256}, rows).y) {
        ASSERT_TRUE(std::isnan(v)) << rows;
      }
    }
    matrix = before;
  }
}

TEST_F(MoeOnCuda, ContradictoryWeightsAreRefusedByName) {
  RandomMoe moe({}, {{2}}, 18);
  ops::MoeWeights w = moe.weights();
  w.top_k = 9;
  EXPECT_THAT(std::string(cuda_->PrepareMoe(w).status().message()),
              ::testing::HasSubstr("the best 9 of 8 experts"));
  w = moe.weights();
  std::get<ops::Exl3Matrix>(w.experts[5].down).used_in = 64;
  EXPECT_THAT(std::string(cuda_->PrepareMoe(w).status().message()),
              ::testing::HasSubstr("expert 5 down: shape [256, 64], should be [256, 128]"));
  w = moe.weights();
  std::get<ops::Exl3Matrix>(w.experts[2].up).tile_order = ops::TileOrder::kColumnMajor;
  EXPECT_THAT(std::string(cuda_->PrepareMoe(w).status().message()),
              ::testing::HasSubstr("expert 2 up and expert 0 gate differ in tile order"));
}

TEST_F(MoeOnCuda, TheModelsShapes) {
  if (TestDeviceIsEmulated()) GTEST_SKIP() << "too much for the emulator";
  for (int inner : {512, 2048}) {
    RandomMoe moe({.hidden = 4096, .inner = inner, .experts = 16, .top_k = 8}, {{2}, {2}, {3}},
                  inner);
    ExpectAgrees(moe.weights(), {1, 4, 8, 64}, 50, "inner " + std::to_string(inner));
  }
}

TEST_F(MoeOnCuda, TheModelsShapesInEveryKindOfExpert) {
  if (TestDeviceIsEmulated()) GTEST_SKIP() << "too much for the emulator";
  for (int inner : {512, 2048}) {
    for (ops::TileOrder order : kTileOrders) {
      for (const std::vector<Kind>& kinds : KindsOfExperts(order)) {
        RandomMoe moe({.hidden = 4096, .inner = inner, .experts = 4, .top_k = 2}, kinds, inner);
        ExpectAgrees(moe.weights(), {1, 5, 12}, 60,
                     "inner " + std::to_string(inner) + ", " + Name(kinds));
      }
    }
  }
}

}  // namespace
}  // namespace quartet::testing
