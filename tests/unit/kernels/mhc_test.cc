#include "kernels/cpu/mhc.h"

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

constexpr int kRows = 12, kHidden = GoldenModel::kHidden, kStreams = GoldenModel::kStreams;

// FP32 sums of at most 512 products against a reference in FP32 (streams, module inputs and
// outputs) or double: a few units in the seventh digit of the largest term, and the sublayer
// outputs that are fed in here were themselves computed in FP32 by someone else.
constexpr double kTolerance = 2e-5;

class MhcGolden : public ::testing::Test {
 protected:
  std::string L(int layer) const { return "a.L" + std::to_string(layer) + "."; }

  std::vector<float> Embedded() const {
    const std::vector<float> table =
        model_.file().Floats("model.language_model.embed_tokens.weight");
    std::vector<float> x;
    for (double id : text_.Doubles("a.input_ids")) {
      const auto row = table.begin() + static_cast<int64_t>(id) * kHidden;
      x.insert(x.end(), row, row + kHidden);
    }
    return x;
  }

  // The intermediates of one site, given the streams that enter it.
  void CheckMap(int layer, const std::string& site, const std::vector<float>& streams) {
    const ops::MhcSiteWeights w = model_.Mhc(layer, site);
    const std::string p = GoldenModel::Layer(layer) + "hc_" + site + "_";
    const std::vector<float> fn = model_.file().Floats(p + "fn");
    const std::vector<float> base = model_.file().Floats(p + "base");
    const std::vector<float> scale = model_.file().Floats(p + "scale");
    const int flat = kStreams * kHidden;
    std::vector<float> pre(kRows * kStreams), post(kRows * kStreams);
    std::vector<float> comb(kRows * kStreams * kStreams), x(kRows * kHidden);
    for (int r = 0; r < kRows; ++r) {
      double square = 0;
      for (int c = 0; c < flat; ++c)
        square += double{streams[r * flat + c]} * streams[r * flat + c];
      std::vector<float> m(24);
      for (int i = 0; i < 24; ++i) {
        double sum = 0;
        for (int c = 0; c < flat; ++c) sum += double{streams[r * flat + c]} * fn[i * flat + c];
        m[i] = static_cast<float>(sum / std::sqrt(square / flat + w.norm_eps));
      }
      MhcMapRow({w.hc_mult, w.sinkhorn_iters, w.hc_eps}, m.data(), base.data(), scale.data(),
                &pre[r * kStreams], &post[r * kStreams], &comb[r * kStreams * kStreams]);
      MhcCollapseRow(kStreams, kHidden, &pre[r * kStreams], &streams[r * flat], &x[r * kHidden]);
    }
    const std::string ref = "a.ref.L" + std::to_string(layer) + ".hc_" + site + ".";
    EXPECT_LT(MaxDifference(pre, text_.Floats(ref + "pre")), kTolerance) << ref;
    EXPECT_LT(MaxDifference(post, text_.Floats(ref + "post")), kTolerance) << ref;
    EXPECT_LT(MaxDifference(comb, text_.Floats(ref + "comb")), kTolerance) << ref;
    // The collapsed sum reaches 30: relative to its size.
    const std::vector<float> collapsed = text_.Floats(ref + "x");
    EXPECT_LT(MaxDifference(x, collapsed), kTolerance * std::max(1.0, MaxMagnitude(collapsed)))
        << ref;
  }

  GoldenModel model_;
  TensorFile text_{"model/golden_text.safetensors"};
  std::unique_ptr<CpuBackend> backend_ = MakeCpuBackend({});
};

TEST_F(MhcGolden, EverySiteOfTheTrunkFollowsTheReference) {
  std::vector<float> streams(kRows * kStreams * kHidden), x(kRows * kHidden);
  std::vector<float> post(kRows * kStreams), comb(kRows * kStreams * kStreams);
  const ops::MhcMix mix{post.data(), comb.data()};
  const auto check_mix = [&](int layer, const std::string& site) {
    const std::string ref = "a.ref.L" + std::to_string(layer) + ".hc_" + site + ".";
    if (!text_.Has(ref + "post")) return 0;
    EXPECT_LT(MaxDifference(post, text_.Floats(ref + "post")), kTolerance) << ref;
    EXPECT_LT(MaxDifference(comb, text_.Floats(ref + "comb")), kTolerance) << ref;
    CheckMap(layer, site, streams);
    return 1;
  };
  const std::vector<float> embedded = Embedded();
  int intermediates = 0;
  for (int layer = 0; layer < GoldenModel::kLayers; ++layer) {
    const auto attn = Must(backend_->PrepareMhcSite(model_.Mhc(layer, "attn")));
    const auto ffn = Must(backend_->PrepareMhcSite(model_.Mhc(layer, "ffn")));
    if (layer == 0) {
      attn->Begin(embedded.data(), kRows, streams.data(), mix, x.data());
    } else {
      const std::vector<float> y = text_.Floats(L(layer - 1) + "mlp_out");
      const float* partial = y.data();
      attn->Boundary({&partial, 1}, kRows, streams.data(), mix, x.data());
      const std::vector<float> golden = text_.Floats(L(layer - 1) + "streams");
      EXPECT_LT(MaxDifference(streams, golden), kTolerance * std::max(1.0, MaxMagnitude(golden)))
          << "streams after layer " << layer - 1;
    }
    intermediates += check_mix(layer, "attn");
    EXPECT_LT(MaxDifference(x, text_.Floats(L(layer) + "attn_in")), kTolerance) << layer;
    const std::vector<float> y = text_.Floats(L(layer) + "attn_out");
    const float* partial = y.data();
    ffn->Boundary({&partial, 1}, kRows, streams.data(), mix, x.data());
    intermediates += check_mix(layer, "ffn");
    EXPECT_LT(MaxDifference(x, text_.Floats(L(layer) + "mlp_in")), kTolerance) << layer;
  }
  EXPECT_EQ(intermediates, 4);

  const auto finish =
      Must(backend_->PrepareMhcFinish(model_.Norm("model.language_model.norm.weight"), kStreams));
  const std::vector<float> y = text_.Floats(L(8) + "mlp_out");
  const float* partial = y.data();
  std::vector<float> h(kRows * kHidden);
  finish->Run({&partial, 1}, kRows, streams.data(), mix, h.data());
  EXPECT_LT(MaxDifference(h, text_.Floats("a.final_hidden")), kTolerance);
  const auto head = Must(backend_->PrepareHead({model_.file().Matrix("lm_head.weight")}));
  std::vector<float> logits(kRows * 512);
  head->Run(h.data(), kRows, logits.data(), Scratch(head->WorkspaceBytes(kRows)));
  EXPECT_LT(MaxDifference(logits, text_.Floats("a.logits")), 5 * kTolerance)
      << "logits are of magnitude 9";
}

TEST_F(MhcGolden, PartialSumsAreAddedInTheOrderGiven) {
  const auto site = Must(backend_->PrepareMhcSite(model_.Mhc(0, "ffn")));
  const std::vector<float> start = testing::RandomFloats(kRows * kStreams * kHidden, 1.0f, 1);
  const std::vector<float> post0 = testing::RandomFloats(kRows * kStreams, 1.0f, 2);
  const std::vector<float> comb0 = testing::RandomFloats(kRows * kStreams * kStreams, 1.0f, 3);
  std::vector<std::vector<float>> parts;
  std::vector<const float*> pointers;
  for (uint32_t p = 0; p < 4; ++p) {
    parts.push_back(testing::RandomFloats(kRows * kHidden, 1.0f, 10 + p));
  }
  std::vector<float> sum = parts[0];
  for (size_t p = 1; p < parts.size(); ++p) {
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += parts[p][i];
  }
  for (const auto& part : parts) pointers.push_back(part.data());
  const auto run = [&](std::span<const float* const> partials) {
    std::vector<float> streams = start, post = post0, comb = comb0, x(kRows * kHidden);
    site->Boundary(partials, kRows, streams.data(), {post.data(), comb.data()}, x.data());
    streams.insert(streams.end(), x.begin(), x.end());
    return streams;
  };
  const float* whole = sum.data();
  EXPECT_TRUE(testing::SameBits(run(pointers), run({&whole, 1})));
}

TEST(Mhc, SinkhornEndsOnColumnsThatSumToOne) {
  const std::vector<float> m = testing::RandomFloats(24, 2.0f, 4);
  const std::vector<float> base(24), scale(3, 1.0f);
  float pre[4], post[4], comb[16];
  MhcMapRow({}, m.data(), base.data(), scale.data(), pre, post, comb);
  for (int i = 0; i < 4; ++i) {
    float sum = 0;
    for (int j = 0; j < 4; ++j) sum += comb[j * 4 + i];
    EXPECT_NEAR(sum, 1.0f, 2e-6f);
  }
}

TEST(Mhc, MoreStreamsThanSupportedAreRefused) {
  auto backend = MakeCpuBackend({});
  const std::vector<float> w(16);
  EXPECT_FALSE(backend->PrepareMhcFinish({testing::VectorF32(w)}, 9).ok());
}

}  // namespace
}  // namespace quartet::cpu
