#include "tests/support/checkpoint_writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "kernels/cpu/exl3.h"
#include "tests/support/exl3_scalar.h"
#include "tests/support/recorded_hash.h"
#include "tests/unit/checkpoint/weight_walk.h"

// The tools that make test data are tested against data that other programs made.

namespace quartet {
namespace {

std::vector<uint16_t> Words(const TensorView& tensor) {
  std::vector<uint16_t> words(tensor.bytes / 2);
  std::memcpy(words.data(), tensor.data, tensor.bytes);
  return words;
}

std::unique_ptr<SafetensorsFile> Golden(const std::string& name) {
  auto file = SafetensorsFile::Open(QUARTET_SOURCE_DIR "/tests/data/exl3/" + name + ".safetensors");
  EXPECT_TRUE(file.ok()) << file.status();
  return *std::move(file);
}

const TensorView& Part(const SafetensorsFile& file, std::string_view name) {
  for (const TensorView& tensor : file.tensors()) {
    if (tensor.name == name) return tensor;
  }
  ADD_FAILURE() << name;
  return file.tensors().front();
}

// The scalar values against the table that the kernels' own test compares with the reference.
TEST(Exl3ScalarTest, CodebooksAreThoseOfTheKernelsBitForBit) {
  const cpu::Codebooks codebooks;
  for (const auto& [kernel, codebook] : {std::pair{ops::Codebook::kMcg, Exl3Codebook::kMcg},
                                         std::pair{ops::Codebook::kMul1, Exl3Codebook::kMul1},
                                         std::pair{ops::Codebook::k3Inst, Exl3Codebook::k3Inst}}) {
    const auto& table = codebooks.Table(kernel);
    for (uint32_t state = 0; state < 65536; ++state) {
      ASSERT_EQ(testing::Exl3CodebookValue(codebook, static_cast<uint16_t>(state)),
                HalfToFloat(table[state]))
          << state;
    }
  }
}

struct GoldenMatrix {
  const char* file;
  int bits;
  Exl3Codebook codebook;
  Exl3TileOrder order;
};

TEST(Exl3ScalarTest, InnerMatricesAreThoseOfTheReferenceBitForBit) {
  for (const GoldenMatrix& g :
       {GoldenMatrix{"exl3_mcg_k2_256x384", 2, Exl3Codebook::kMcg, Exl3TileOrder::kSm80},
        GoldenMatrix{"exl3_mcg_k2_256x384_colmajor", 2, Exl3Codebook::kMcg,
                     Exl3TileOrder::kColumnMajor}}) {
    const auto file = Golden(g.file);
    const std::vector<uint16_t> trellis = Words(Part(*file, "trellis"));
    std::vector<uint16_t> inner;
    for (int64_t r = 0; r < 256; ++r) {
      for (int64_t c = 0; c < 384; ++c) {
        inner.push_back(testing::FloatToHalf(
            testing::Exl3InnerValue(trellis, 384, g.bits, g.codebook, g.order, r, c)));
      }
    }
    EXPECT_EQ(testing::Sha256(inner.data(), 2 * inner.size()),
              testing::RecordedSha(std::string(g.file) + ".safetensors", "inner"));
  }
}

TEST(Exl3ScalarTest, ProductsAreThoseOfTheReference) {
  for (const GoldenMatrix& g :
       {GoldenMatrix{"exl3_mcg_k7_256x384", 7, Exl3Codebook::kMcg, Exl3TileOrder::kSm80},
        GoldenMatrix{"exl3_mul1_k3_256x384", 3, Exl3Codebook::kMul1, Exl3TileOrder::kSm80},
        GoldenMatrix{"exl3_3inst_k4_256x384", 4, Exl3Codebook::k3Inst, Exl3TileOrder::kSm80},
        GoldenMatrix{"exl3_mcg_k3_256x384_colmajor", 3, Exl3Codebook::kMcg,
                     Exl3TileOrder::kColumnMajor}}) {
    const auto file = Golden(g.file);
    const auto halves = [&](std::string_view name) {
      std::vector<float> values;
      for (uint16_t bits : Words(Part(*file, name))) values.push_back(HalfToFloat(bits));
      return values;
    };
    const std::vector<double> w =
        testing::Exl3Weight(Words(Part(*file, "trellis")), 256, 384, g.bits, g.codebook, g.order,
                            halves("suh"), halves("svh"));
    const std::vector<float> x = halves("x");
    const TensorView& expected = Part(*file, "y_ref");
    ASSERT_EQ(expected.dtype, Dtype::kF64);
    double error = 0;
    double total = 0;
    for (int64_t row = 0; row < 4; ++row) {
      for (int64_t c = 0; c < 384; ++c) {
        double y = 0;
        for (int64_t r = 0; r < 256; ++r) y += x[row * 256 + r] * w[r * 384 + c];
        double reference = 0;
        std::memcpy(&reference, expected.data + 8 * (row * 384 + c), 8);
        error += (y - reference) * (y - reference);
        total += reference * reference;
      }
    }
    EXPECT_LT(std::sqrt(error / total), 1e-6) << g.file;
  }
}

TEST(CheckpointWriterTest, TwinsOfQuantisedExpertsAreUnquantisedModels) {
  const auto mini = testing::ReadImage(testing::MiniModel());
  ASSERT_TRUE(mini.ok());
  const testing::Exl3Pair pair = testing::ToExl3(*mini, {.codebook = Exl3Codebook::kMul1});
  const testing::ScratchFolder folder;
  ASSERT_TRUE(testing::WriteImage(pair.widened, folder.path()).ok());
  const auto twin = testing::ResolveFolder(folder.path());
  ASSERT_TRUE(twin.ok()) << twin.status();

  // The twin's experts are about as large as the originals, so that the model stays a model.
  const auto spread = [](const ModelWeights& weights) {
    const auto& view =
        std::get<DenseView>(std::get<MoeWeights>(weights.layers[6].mlp).experts[0].gate);
    std::vector<float> values(view.rows * view.cols);
    EXPECT_TRUE(ReadDenseF32(view, values.data()).ok());
    double squares = 0;
    for (float value : values) squares += static_cast<double>(value) * value;
    return std::sqrt(squares / static_cast<double>(values.size()));
  };
  const auto original = testing::ResolveFolder(testing::MiniModel());
  const double ratio = spread(twin->weights) / spread(original->weights);
  EXPECT_GT(ratio, 0.8);
  EXPECT_LT(ratio, 1.25);
}

}  // namespace
}  // namespace quartet
