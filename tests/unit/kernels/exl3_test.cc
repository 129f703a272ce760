#include "kernels/cpu/exl3.h"

#include "kernels/cpu/convert.h"
#include "kernels/cpu/linear.h"
#include "tests/support/recorded_hash.h"
#include "tests/unit/kernels/support.h"

namespace quartet::cpu {
namespace {

using ::quartet::testing::Must;
using ::quartet::testing::RecordedSha;
using ::quartet::testing::RelativeL2;
using ::quartet::testing::Scratch;
using ::quartet::testing::Sha256;
using ::quartet::testing::Tensor;
using ::quartet::testing::TensorFile;

ops::Exl3Matrix View(const TensorFile& file, const std::string& prefix, ops::Codebook codebook,
                     ops::TileOrder order) {
  const Tensor& trellis = file.Get(prefix + "trellis");
  ops::Exl3Matrix m;
  m.bits = static_cast<int>(trellis.shape[2] / 16);
  m.codebook = codebook;
  m.tile_order = order;
  m.in = trellis.shape[0] * 16;
  m.out = trellis.shape[1] * 16;
  m.trellis = trellis.data;
  m.tile_row_stride = trellis.shape[1];
  m.suh = file.Get(prefix + "suh").data;
  m.svh = file.Get(prefix + "svh").data;
  return m;
}

// One file of quantised matrices: name, codebook, tile order.
struct Case {
  std::string name;
  ops::Codebook codebook;
  ops::TileOrder order;
};

class Exl3Golden : public ::testing::TestWithParam<Case> {
 protected:
  std::string file_name() const { return GetParam().name + ".safetensors"; }
};

TEST_P(Exl3Golden, InnerMatrixIsExact) {
  const TensorFile file("exl3/" + file_name());
  const ops::Exl3Matrix m = View(file, "", GetParam().codebook, GetParam().order);
  const std::vector<uint16_t> inner = DecodeInner(m);
  EXPECT_EQ(Sha256(inner.data(), inner.size() * 2), RecordedSha(file_name(), "inner"));
}

TEST_P(Exl3Golden, ProductAgreesWithTheReference) {
  const TensorFile file("exl3/" + file_name());
  const ops::Exl3Matrix m = View(file, "", GetParam().codebook, GetParam().order);
  auto backend = MakeCpuBackend({});
  const auto linear = Must(backend->PrepareLinear(m));
  const std::vector<float> x = file.Floats("x");
  std::vector<float> y(4 * 384);
  linear->Run(x.data(), 4, y.data(), Scratch(linear->WorkspaceBytes(4)));
  // FP32 sums of 256 products and two transforms; the reference multiplies in double a matrix that
  // was itself built in FP32.
  EXPECT_LT(RelativeL2(y, file.Doubles("y_ref")), 2e-6);
}

TEST_P(Exl3Golden, WholeMatrixAgreesWithTheFactoredProduct) {
  const TensorFile file("exl3/" + file_name());
  const ops::Exl3Matrix m = View(file, "", GetParam().codebook, GetParam().order);
  const std::vector<float> w = ReconstructRows(m, Codebooks());
  const std::vector<float> x = file.Floats("x");
  std::vector<double> y(4 * 384);
  for (int r = 0; r < 4; ++r) {
    for (int n = 0; n < 384; ++n) {
      for (int k = 0; k < 256; ++k) y[r * 384 + n] += double{x[r * 256 + k]} * w[n * 256 + k];
    }
  }
  EXPECT_LT(RelativeL2(y, file.Doubles("y_ref")), 2e-6);
}

std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (int k = 1; k <= 8; ++k) {
    cases.push_back({"exl3_mcg_k" + std::to_string(k) + "_256x384", ops::Codebook::kMcg,
                     ops::TileOrder::kSm80});
  }
  for (int k = 2; k <= 4; ++k) {
    cases.push_back({"exl3_mul1_k" + std::to_string(k) + "_256x384", ops::Codebook::kMul1,
                     ops::TileOrder::kSm80});
    cases.push_back({"exl3_3inst_k" + std::to_string(k) + "_256x384", ops::Codebook::k3Inst,
                     ops::TileOrder::kSm80});
    cases.push_back({"exl3_mcg_k" + std::to_string(k) + "_256x384_colmajor", ops::Codebook::kMcg,
                     ops::TileOrder::kColumnMajor});
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Files, Exl3Golden, ::testing::ValuesIn(Cases()),
                         [](const auto& info) { return info.param.name; });

TEST(Exl3, CodebooksAreExact) {
  const Codebooks codebooks;
  for (const auto& [name, codebook] : {std::pair("mcg", ops::Codebook::kMcg),
                                       {"mul1", ops::Codebook::kMul1},
                                       {"3inst", ops::Codebook::k3Inst}}) {
    EXPECT_EQ(Sha256(codebooks.Table(codebook).data(), 2 * 65536),
              RecordedSha("exl3_codebooks.safetensors", name))
        << name;
  }
}

TEST(Exl3, StatesOfEveryPositionAreExact) {
  std::vector<uint16_t> states(16 * 24 * 256);
  for (const int bits : {2, 3, 4}) {
    const std::string name = "exl3_mcg_k" + std::to_string(bits) + "_256x384.safetensors";
    const TensorFile file("exl3/" + name);
    for (int tile = 0; tile < 16 * 24; ++tile) {
      DecodeTileStates(file.Get("trellis").data + tile * 32 * bits, bits,
                       states.data() + tile * 256);
    }
    EXPECT_EQ(Sha256(states.data(), states.size() * 2), RecordedSha(name, "states")) << bits;
  }
}

TEST(Exl3, RandomTrellisesDecodeExactlyInEveryCodebookAndWidth) {
  const std::string file_name = "exl3_random_trellis.safetensors";
  const TensorFile file("exl3/" + file_name);
  for (int bits = 1; bits <= 8; ++bits) {
    const Tensor& trellis = file.Get("trellis_k" + std::to_string(bits));
    for (const auto& [name, codebook] : {std::pair("mcg", ops::Codebook::kMcg),
                                         {"mul1", ops::Codebook::kMul1},
                                         {"3inst", ops::Codebook::k3Inst}}) {
      ops::Exl3Matrix m;
      m.bits = bits;
      m.codebook = codebook;
      m.in = 32;  // the decoder itself needs whole tiles only
      m.out = 128;
      m.trellis = trellis.data;
      m.tile_row_stride = 8;
      const std::vector<uint16_t> inner = DecodeInner(m);
      const std::string golden = "inner_" + std::string(name) + "_k" + std::to_string(bits);
      EXPECT_EQ(Sha256(inner.data(), inner.size() * 2), RecordedSha(file_name, golden)) << golden;
    }
  }
}

TEST(Exl3, ColumnMajorTilesReadAsStandardOnesAreSomethingElse) {
  for (int bits = 2; bits <= 4; ++bits) {
    const std::string name = "exl3_mcg_k" + std::to_string(bits) + "_256x384_colmajor.safetensors";
    const TensorFile file("exl3/" + name);
    const ops::Exl3Matrix wrong = View(file, "", ops::Codebook::kMcg, ops::TileOrder::kSm80);
    const std::vector<uint16_t> inner = DecodeInner(wrong);
    EXPECT_NE(Sha256(inner.data(), inner.size() * 2), RecordedSha(name, "inner"));
    auto backend = MakeCpuBackend({});
    const auto linear = Must(backend->PrepareLinear(wrong));
    std::vector<float> y(4 * 384);
    linear->Run(file.Floats("x").data(), 4, y.data(), Scratch(linear->WorkspaceBytes(4)));
    EXPECT_GT(RelativeL2(y, file.Doubles("y_ref")), 0.5);
  }
}

TEST(Exl3, TileOrdersArePermutations) {
  for (ops::TileOrder order : {ops::TileOrder::kSm80, ops::TileOrder::kColumnMajor}) {
    std::vector<int> seen(256);
    for (int t = 0; t < 256; ++t) ++seen[TileElement(order, t)];
    EXPECT_EQ(seen, std::vector<int>(256, 1));
  }
}

TEST(Exl3, StripMajorHoldsTheSameTiles) {
  // [n / 32, k / 16, 2, 16 K]: tile (i, j) of the checkpoint is (j / 2, i, j % 2) here, so both
  // tiles of a strip decode through the row stride of a strip.
  const TensorFile standard("exl3/exl3_mcg_k2_256x384.safetensors");
  const TensorFile strips("exl3/exl3_mcg_k2_strip_major.safetensors");
  const ops::Exl3Matrix m = View(standard, "", ops::Codebook::kMcg, ops::TileOrder::kSm80);
  const std::vector<uint16_t> whole = DecodeInner(m);
  for (int64_t strip = 0; strip < 12; ++strip) {
    ops::Exl3Matrix part = m;
    part.out = 32;
    part.tile_row_stride = 2;
    part.trellis = strips.Get("strip_major").data + strip * 16 * 2 * 64;
    const std::vector<uint16_t> inner = DecodeInner(part);
    for (int64_t k = 0; k < 256; ++k) {
      ASSERT_EQ(std::memcmp(inner.data() + k * 32, whole.data() + k * 384 + strip * 32, 64), 0);
    }
  }
}

TEST(Exl3, SlicesOfOneRankAreTheWholeMatrix) {
  const TensorFile file("exl3/exl3_mcg_k3_256x384.safetensors");
  const ops::Exl3Matrix whole = View(file, "", ops::Codebook::kMcg, ops::TileOrder::kSm80);
  auto backend = MakeCpuBackend({});
  const std::vector<float> x = file.Floats("x");
  const std::vector<double> reference = file.Doubles("y_ref");
  // Outputs 128..255: the trellis from tile column 8 on, svh likewise, suh whole.
  ops::Exl3Matrix columns = whole;
  columns.out = 128;
  columns.trellis += 8 * 32 * 3;
  columns.svh += 128 * 2;
  const auto by_columns = Must(backend->PrepareLinear(columns));
  std::vector<float> y(4 * 128);
  by_columns->Run(x.data(), 4, y.data(), Scratch(by_columns->WorkspaceBytes(4)));
  std::vector<double> wanted;
  for (int r = 0; r < 4; ++r) {
    wanted.insert(wanted.end(), reference.begin() + r * 384 + 128,
                  reference.begin() + r * 384 + 256);
  }
  EXPECT_LT(RelativeL2(y, wanted), 2e-6);
  // Inputs 0..127 and 128..255: two partial sums.
  std::vector<double> sum(4 * 384);
  for (int half = 0; half < 2; ++half) {
    ops::Exl3Matrix rows = whole;
    rows.in = 128;
    rows.trellis += half * 8 * whole.tile_row_stride * 32 * 3;
    rows.suh += half * 128 * 2;
    const auto by_rows = Must(backend->PrepareLinear(rows));
    std::vector<float> part_x;
    for (int r = 0; r < 4; ++r) {
      part_x.insert(part_x.end(), x.begin() + r * 256 + half * 128,
                    x.begin() + r * 256 + half * 128 + 128);
    }
    std::vector<float> part_y(4 * 384);
    by_rows->Run(part_x.data(), 4, part_y.data(), Scratch(by_rows->WorkspaceBytes(4)));
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += part_y[i];
  }
  EXPECT_LT(RelativeL2(sum, reference), 2e-6);
}

TEST(Exl3, PaddedInputsCountAsZeroAndPaddedOutputsAreDropped) {
  const TensorFile file("exl3/exl3_mcg_k4_256x384.safetensors");
  const ops::Exl3Matrix whole = View(file, "", ops::Codebook::kMcg, ops::TileOrder::kSm80);
  ops::Exl3Matrix cut = whole;
  cut.used_in = 200;
  cut.used_out = 300;
  auto backend = MakeCpuBackend({});
  const auto full = Must(backend->PrepareLinear(whole));
  const auto part = Must(backend->PrepareLinear(cut));
  EXPECT_EQ(part->in(), 200);
  EXPECT_EQ(part->out(), 300);
  const std::vector<float> x = testing::RandomFloats(3 * 200, 1.0f, 5);
  std::vector<float> padded(3 * 256);
  for (int r = 0; r < 3; ++r) std::copy_n(x.begin() + r * 200, 200, padded.begin() + r * 256);
  std::vector<float> y(3 * 300), y_full(3 * 384);
  part->Run(x.data(), 3, y.data(), Scratch(part->WorkspaceBytes(3)));
  full->Run(padded.data(), 3, y_full.data(), Scratch(full->WorkspaceBytes(3)));
  for (int r = 0; r < 3; ++r) {
    EXPECT_TRUE(testing::SameBits({y.data() + r * 300, 300}, {y_full.data() + r * 384, 300}));
  }
}

TEST(Exl3, SignBitsStandForScalesOfOne) {
  const TensorFile file("exl3/exl3_mcg_k2_256x384.safetensors");
  ops::Exl3Matrix m = View(file, "", ops::Codebook::kMcg, ops::TileOrder::kSm80);
  std::vector<uint16_t> su(16), sv(24);
  for (size_t i = 0; i < su.size(); ++i) su[i] = static_cast<uint16_t>(0x9E37 * (i + 1));
  for (size_t i = 0; i < sv.size(); ++i) sv[i] = static_cast<uint16_t>(0x85EB * (i + 3));
  m.su_signs = reinterpret_cast<const std::byte*>(su.data());
  m.sv_signs = reinterpret_cast<const std::byte*>(sv.data());
  const std::vector<float> input = InputScales(m);
  const std::vector<float> output = OutputScales(m);
  ASSERT_EQ(input.size(), 256u);
  ASSERT_EQ(output.size(), 384u);
  for (size_t i = 0; i < input.size(); ++i) {
    EXPECT_EQ(input[i], (su[i / 16] >> (i % 16) & 1) != 0 ? -1.0f : 1.0f);
  }
  for (size_t i = 0; i < output.size(); ++i) {
    EXPECT_EQ(output[i], (sv[i / 16] >> (i % 16) & 1) != 0 ? -1.0f : 1.0f);
  }
}

TEST(Exl3, ImpossibleShapesAreRefusedByName) {
  const TensorFile file("exl3/exl3_mcg_k2_256x384.safetensors");
  auto backend = MakeCpuBackend({});
  ops::Exl3Matrix m = View(file, "", ops::Codebook::kMcg, ops::TileOrder::kSm80);
  m.bits = 9;
  EXPECT_THAT(std::string(backend->PrepareLinear(m).status().message()),
              ::testing::HasSubstr("9 bits a weight; EXL3 has 1 to 8"));
  m.bits = 2;
  m.in = 192;
  EXPECT_THAT(std::string(backend->PrepareLinear(m).status().message()),
              ::testing::HasSubstr("192 x 384; both must be positive multiples of 128"));
  m.in = 256;
  m.tile_row_stride = 23;
  EXPECT_THAT(std::string(backend->PrepareLinear(m).status().message()),
              ::testing::HasSubstr("23 tiles between tile rows, at least 24"));
}

// ---- the small mixture of experts of the EXL3 data: 6 experts, top 3, no clamp, no shared expert

class Exl3Moe : public ::testing::Test {
 protected:
  static constexpr int kRows = 5, kHidden = 512, kInner = 256, kExperts = 6, kTop = 3;

  Exl3Moe() : weights_("exl3/mini_moe/model.safetensors"), io_("exl3/mini_moe/io.safetensors") {}

  ops::MlpWeights Expert(int e) const {
    const std::string p = "model.language_model.layers.3.mlp.experts." + std::to_string(e) + ".";
    ops::MlpWeights w;
    w.gate = View(weights_, p + "gate_proj.", ops::Codebook::kMcg, ops::TileOrder::kSm80);
    w.up = View(weights_, p + "up_proj.", ops::Codebook::kMcg, ops::TileOrder::kSm80);
    w.down = View(weights_, p + "down_proj.", ops::Codebook::kMcg, ops::TileOrder::kSm80);
    w.limit = 0.0f;
    return w;
  }

  TensorFile weights_, io_;
  std::unique_ptr<CpuBackend> backend_ = MakeCpuBackend({});
};

TEST_F(Exl3Moe, WeightedExpertsGiveTheReference) {
  const std::vector<float> x = io_.Floats("x");
  const std::vector<double> ids = io_.Doubles("topk_ids");
  const std::vector<double> weights = io_.Doubles("topk_weights");
  std::vector<double> y(kRows * kHidden);
  for (int e = 0; e < kExperts; ++e) {
    const auto mlp = Must(backend_->PrepareMlp(Expert(e)));
    std::vector<float> out(kRows * kHidden);
    mlp->Run(x.data(), kRows, out.data(), Scratch(mlp->WorkspaceBytes(kRows)));
    for (int slot = 0; slot < kRows * kTop; ++slot) {
      if (ids[slot] != e) continue;
      for (int c = 0; c < kHidden; ++c) {
        y[slot / kTop * kHidden + c] += weights[slot] * out[slot / kTop * kHidden + c];
      }
    }
  }
  EXPECT_LT(RelativeL2(y, io_.Doubles("y_ref")), 2e-6);
}

TEST_F(Exl3Moe, OpWithARouterMadeForTheseWeightsGivesTheReference) {
  const std::vector<float> x = io_.Floats("x");
  const std::vector<double> ids = io_.Doubles("topk_ids");
  const std::vector<double> weights = io_.Doubles("topk_weights");
  // The router that gives sigmoid(logit) = weight / 2 for the wanted experts and 2^-20 for the
  // rest on these five rows: logits L = X R^T has the solution R = (X^T (X X^T)^-1 L)^T.
  std::vector<double> logits(kRows * kExperts, -std::log(1048575.0));
  for (int slot = 0; slot < kRows * kTop; ++slot) {
    const double s = weights[slot] / 2;
    logits[slot / kTop * kExperts + static_cast<int>(ids[slot])] = std::log(s / (1 - s));
  }
  std::vector<double> gram(kRows * kRows);
  for (int a = 0; a < kRows; ++a) {
    for (int b = 0; b < kRows; ++b) {
      for (int c = 0; c < kHidden; ++c) {
        gram[a * kRows + b] += double{x[a * kHidden + c]} * x[b * kHidden + c];
      }
    }
  }
  for (int p = 0; p < kRows; ++p) {  // Gauss-Jordan; the Gram matrix is positive definite
    const double pivot = gram[p * kRows + p];
    for (int c = 0; c < kRows; ++c) gram[p * kRows + c] /= pivot;
    for (int e = 0; e < kExperts; ++e) logits[p * kExperts + e] /= pivot;
    for (int r = 0; r < kRows; ++r) {
      if (r == p) continue;
      const double factor = gram[r * kRows + p];
      for (int c = 0; c < kRows; ++c) gram[r * kRows + c] -= factor * gram[p * kRows + c];
      for (int e = 0; e < kExperts; ++e)
        logits[r * kExperts + e] -= factor * logits[p * kExperts + e];
    }
  }
  std::vector<float> router(kExperts * kHidden);
  for (int e = 0; e < kExperts; ++e) {
    for (int c = 0; c < kHidden; ++c) {
      double sum = 0;
      for (int r = 0; r < kRows; ++r) sum += logits[r * kExperts + e] * x[r * kHidden + c];
      router[e * kHidden + c] = static_cast<float>(sum);
    }
  }
  const std::vector<float> zeros(kHidden * 16), bias(kExperts);
  ops::MoeWeights moe;
  moe.router = testing::DenseF32(router, kExperts, kHidden);
  moe.correction_bias = testing::VectorF32(bias);
  for (int e = 0; e < kExperts; ++e) moe.experts.push_back(Expert(e));
  moe.shared = {testing::DenseF32(zeros, 16, kHidden), testing::DenseF32(zeros, 16, kHidden),
                testing::DenseF32(zeros, kHidden, 16), 0.0f};
  moe.top_k = kTop;
  const auto op = Must(backend_->PrepareMoe(moe));
  std::vector<float> y(kRows * kHidden), used(kRows * kTop);
  std::vector<int32_t> chosen(kRows * kTop);
  op->Run(x.data(), kRows, y.data(), {chosen.data(), used.data(), nullptr},
          Scratch(op->WorkspaceBytes(kRows)));
  // The op renormalises; the given weights, rounded to FP16, sum to one only nearly. A row's
  // output is linear in its weights, so the reference is scaled by the ratio of the sums.
  std::vector<double> reference = io_.Doubles("y_ref");
  for (int r = 0; r < kRows; ++r) {
    double sum = 0;
    for (int j = 0; j < kTop; ++j) sum += weights[r * kTop + j];
    EXPECT_NEAR(sum, 1.0, 1e-3);
    for (int c = 0; c < kHidden; ++c) reference[r * kHidden + c] /= sum;
    for (int j = 0; j < kTop; ++j) {
      int at = 0;
      while (at < kTop && chosen[r * kTop + at] != ids[r * kTop + j]) ++at;
      ASSERT_LT(at, kTop) << "row " << r << " lacks expert " << ids[r * kTop + j];
      EXPECT_NEAR(used[r * kTop + at], weights[r * kTop + j] / sum, 2e-6);
    }
  }
  EXPECT_LT(RelativeL2(y, reference), 2e-6);
}

}  // namespace
}  // namespace quartet::cpu
