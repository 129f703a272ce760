#include "kernels/cpu/mlp.h"

#include <limits>

#include "kernels/cpu/math.h"
#include "tests/unit/kernels/golden_model.h"
#include "tests/unit/kernels/support.h"

namespace quartet::cpu {
namespace {

using testing::GoldenModel;
using testing::MaxDifference;
using testing::MaxMagnitude;
using testing::Must;
using testing::Scratch;
using testing::TensorFile;

constexpr int kRows = 12, kHidden = GoldenModel::kHidden;

class MlpGolden : public ::testing::Test {
 protected:
  GoldenModel model_;
  TensorFile text_{"model/golden_text.safetensors"};
  std::unique_ptr<CpuBackend> backend_ = MakeCpuBackend({});
};

TEST_F(MlpGolden, DenseLayersFollowTheReference) {
  for (int layer = 0; layer < 6; ++layer) {
    const std::string p = "a.L" + std::to_string(layer) + ".";
    const auto mlp = Must(backend_->PrepareMlp(model_.DenseMlp(layer)));
    std::vector<float> y(kRows * kHidden);
    mlp->Run(text_.Floats(p + "mlp_in").data(), kRows, y.data(),
             Scratch(mlp->WorkspaceBytes(kRows)));
    const std::vector<float> golden = text_.Floats(p + "mlp_out");
    // FP32 on both sides, sums of 128 products.
    EXPECT_LT(MaxDifference(y, golden), 1e-5 * std::max(1.0, MaxMagnitude(golden))) << layer;
  }
}

TEST_F(MlpGolden, MixturesFollowTheReference) {
  for (int layer = 6; layer < 9; ++layer) {
    const std::string p = "a.L" + std::to_string(layer) + ".";
    const auto moe = Must(backend_->PrepareMoe(model_.Moe(layer)));
    std::vector<float> y(kRows * kHidden), weights(kRows * 3), logits(kRows * 8);
    std::vector<int32_t> experts(kRows * 3);
    moe->Run(text_.Floats(p + "mlp_in").data(), kRows, y.data(),
             {experts.data(), weights.data(), logits.data()}, Scratch(moe->WorkspaceBytes(kRows)));
    const std::vector<float> golden = text_.Floats(p + "mlp_out");
    EXPECT_LT(MaxDifference(y, golden), 2e-5 * std::max(1.0, MaxMagnitude(golden))) << layer;
    EXPECT_LT(MaxDifference(logits, text_.Floats(p + "router_logits")), 1e-5) << layer;
    // The reference orders by final weight, the op by biased score: compare as maps.
    const std::vector<double> ids = text_.Doubles(p + "router_idx");
    const std::vector<double> golden_weights = text_.Doubles(p + "router_w");
    for (int slot = 0; slot < kRows * 3; ++slot) {
      const int row = slot / 3;
      int at = 0;
      while (at < 3 && experts[row * 3 + at] != ids[slot]) ++at;
      ASSERT_LT(at, 3) << "layer " << layer << " row " << row << " lacks expert " << ids[slot];
      EXPECT_NEAR(weights[row * 3 + at], golden_weights[slot], 1e-5);
    }
  }
}

TEST(Route, BiasChoosesButDoesNotWeigh) {
  const std::vector<float> logits = {0, 1, 2, 3};
  const std::vector<float> bias = {9, 0, 0, 0};
  std::vector<float> scores(4), weights(2);
  std::vector<int32_t> experts(2);
  Route(logits.data(), bias.data(), 4, 2, 2.5f, scores.data(), experts.data(), weights.data());
  EXPECT_EQ(experts, (std::vector<int32_t>{0, 3}));
  const float a = Sigmoid(0), b = Sigmoid(3);
  EXPECT_FLOAT_EQ(weights[0], a / (a + b) * 2.5f);
  EXPECT_FLOAT_EQ(weights[1], b / (a + b) * 2.5f);
}

TEST(Route, TiesGoToTheLowerIndexAndNanRowsStillChooseDifferentExperts) {
  std::vector<float> logits(5, 0.25f), bias(5), scores(5), weights(3);
  std::vector<int32_t> experts(3);
  Route(logits.data(), bias.data(), 5, 3, 1.0f, scores.data(), experts.data(), weights.data());
  EXPECT_EQ(experts, (std::vector<int32_t>{0, 1, 2}));
  logits = {NAN, 0, NAN, NAN, NAN};
  Route(logits.data(), bias.data(), 5, 3, 1.0f, scores.data(), experts.data(), weights.data());
  EXPECT_EQ(experts, (std::vector<int32_t>{1, 0, 2}));
}

TEST(SwiGlu, GateHasNoLowerClampAndUpHasBoth) {
  const std::vector<float> gate = {20, -20, 3}, up = {50, -50, 0.5f};
  std::vector<float> out(3);
  ClampedSwiGlu(gate.data(), up.data(), 3, 10.0f, out.data());
  EXPECT_FLOAT_EQ(out[0], Silu(10) * 10);
  EXPECT_FLOAT_EQ(out[1], Silu(-20) * -10);
  EXPECT_FLOAT_EQ(out[2], Silu(3) * 0.5f);
  ClampedSwiGlu(gate.data(), up.data(), 3, 0.0f, out.data());
  EXPECT_FLOAT_EQ(out[0], Silu(20) * 50);
}

TEST(Moe, SlotsAreSummedBestFirstThenTheSharedExpert) {
  GoldenModel model;
  auto backend = MakeCpuBackend({});
  const ops::MoeWeights w = model.Moe(7);
  const auto moe = Must(backend->PrepareMoe(w));
  const auto shared = Must(backend->PrepareMlp(w.shared));
  constexpr int kMany = 200;  // more than one block of rows for some expert
  const std::vector<float> x = testing::RandomFloats(kMany * kHidden, 1.0f, 8);
  std::vector<float> y(kMany * kHidden), weights(kMany * 3), expected(kMany * kHidden);
  std::vector<int32_t> chosen(kMany * 3);
  moe->Run(x.data(), kMany, y.data(), {chosen.data(), weights.data(), nullptr},
           Scratch(moe->WorkspaceBytes(kMany)));
  std::vector<std::vector<float>> outputs(8, std::vector<float>(kMany * kHidden));
  for (int e = 0; e < 8; ++e) {
    const auto expert = Must(backend->PrepareMlp(w.experts[e]));
    expert->Run(x.data(), kMany, outputs[e].data(), Scratch(expert->WorkspaceBytes(kMany)));
  }
  std::vector<float> common(kMany * kHidden);
  shared->Run(x.data(), kMany, common.data(), Scratch(shared->WorkspaceBytes(kMany)));
  for (int i = 0; i < kMany * kHidden; ++i) {
    const int row = i / kHidden;
    float sum = 0;
    for (int j = 0; j < 3; ++j) sum += weights[row * 3 + j] * outputs[chosen[row * 3 + j]][i];
    expected[i] = sum + common[i];
  }
  EXPECT_TRUE(testing::SameBits(y, expected));
}

TEST(Moe, ContradictoryShapesAreRefusedByName) {
  GoldenModel model;
  auto backend = MakeCpuBackend({});
  ops::MoeWeights w = model.Moe(7);
  w.top_k = 9;
  EXPECT_THAT(std::string(backend->PrepareMoe(w).status().message()),
              ::testing::HasSubstr("the best 9 of 8 experts"));
  w = model.Moe(7);
  std::get<ops::DenseMatrix>(w.experts[5].down).cols = 64;
  EXPECT_THAT(std::string(backend->PrepareMoe(w).status().message()),
              ::testing::HasSubstr("expert 5 down: shape [128, 64], should be [128, 128]"));
}

}  // namespace
}  // namespace quartet::cpu
