#include "shard_worker/checkpoint/weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "shard_worker/checkpoint/json_text.h"
#include "tests/support/checkpoint_writer.h"
#include "tests/unit/checkpoint/weight_walk.h"

namespace quartet {
namespace {

using testing::CheckpointImage;
using testing::Divided;
using ::testing::HasSubstr;
using testing::NamedValues;
using testing::ResolveFolder;
using testing::ScratchFolder;
using testing::WeightMap;
using testing::WeightWalk;

CheckpointImage Mini() {
  auto image = testing::ReadImage(testing::MiniModel());
  EXPECT_TRUE(image.ok()) << image.status();
  return *std::move(image);
}

absl::StatusOr<WeightMap> ReadFolder(const std::string& dir, int tp, int rank) {
  const auto resolved = ResolveFolder(dir, tp, rank);
  if (!resolved.ok()) return resolved.status();
  return WeightWalk::Read(resolved->weights);
}

// Writes the image and reads all that a rank sees of it.
absl::StatusOr<WeightMap> ReadWritten(const CheckpointImage& image, int shards = 1, int tp = 1,
                                      int rank = 0) {
  const ScratchFolder folder;
  if (absl::Status s = testing::WriteImage(image, folder.path(), shards); !s.ok()) return s;
  return ReadFolder(folder.path(), tp, rank);
}

// The standard-order demo shares a shard with the other demo by a relative link. Where a checkout
// does not keep links, this stands in for it.
class LinkedDemoStd {
 public:
  LinkedDemoStd() {
    namespace fs = std::filesystem;
    for (const char* file :
         {"config.json", "model.safetensors.index.json", "model-00002-of-00002.safetensors"}) {
      fs::create_symlink(testing::DemoStdModel() + "/" + file, folder_.path() + "/" + file);
    }
    fs::create_symlink(testing::DemoModel() + "/model-00001-of-00002.safetensors",
                       folder_.path() + "/model-00001-of-00002.safetensors");
  }
  const std::string& path() const { return folder_.path(); }

 private:
  ScratchFolder folder_;
};

// Puts the ranks' parts back together by the rule of the tensor's kind and compares with the whole.
void ExpectPartsMakeTheWhole(const std::string& dir, int tp) {
  const auto whole = ReadFolder(dir, 1, 0);
  ASSERT_TRUE(whole.ok()) << whole.status();
  std::vector<WeightMap> parts;
  for (int rank = 0; rank < tp; ++rank) {
    auto part = ReadFolder(dir, tp, rank);
    ASSERT_TRUE(part.ok()) << part.status();
    ASSERT_EQ(part->size(), whole->size());
    parts.push_back(*std::move(part));
  }
  for (const auto& [name, full] : *whole) {
    const bool rows = full.divided == Divided::kRows;
    const bool cols = full.divided == Divided::kCols;
    for (int rank = 0; rank < tp; ++rank) {
      const NamedValues& part = parts[rank].at(name);
      ASSERT_EQ(part.rows, rows ? full.rows / tp : full.rows) << name;
      ASSERT_EQ(part.cols, cols ? full.cols / tp : full.cols) << name;
      const int64_t row0 = rows ? rank * part.rows : 0;
      const int64_t col0 = cols ? rank * part.cols : 0;
      if (part.bits == 0) {
        for (int64_t r = 0; r < part.rows; ++r) {
          for (int64_t c = 0; c < part.cols; ++c) {
            ASSERT_EQ(part.values[r * part.cols + c],
                      full.values[(row0 + r) * full.cols + col0 + c])
                << name << " rank " << rank;
          }
        }
        continue;
      }
      // EXL3: [in, out] tiles of 16 x 16, `words` each.
      ASSERT_EQ(part.bits, full.bits) << name;
      const int64_t words = 16 * part.bits;
      for (int64_t i = 0; i < part.cols / 16; ++i) {
        for (int64_t j = 0; j < part.rows / 16; ++j) {
          const auto mine = part.trellis.begin() + (i * (part.rows / 16) + j) * words;
          const auto theirs =
              full.trellis.begin() + ((col0 / 16 + i) * (full.rows / 16) + row0 / 16 + j) * words;
          ASSERT_TRUE(std::equal(mine, mine + words, theirs)) << name << " rank " << rank;
        }
      }
      ASSERT_EQ(part.suh,
                std::vector<float>(full.suh.begin() + col0, full.suh.begin() + col0 + part.cols));
      ASSERT_EQ(part.svh,
                std::vector<float>(full.svh.begin() + row0, full.svh.begin() + row0 + part.rows));
    }
  }
}

TEST(ConversionTest, HalvesWidenExactly) {
  EXPECT_EQ(HalfToFloat(0x3C00), 1.0f);
  EXPECT_EQ(HalfToFloat(0xC931), -10.3828125f);
  EXPECT_EQ(HalfToFloat(0x0001), std::ldexp(1.0f, -24));
  EXPECT_EQ(HalfToFloat(0x83FF), -std::ldexp(1023.0f, -24));
  EXPECT_EQ(HalfToFloat(0x7BFF), 65504.0f);
  EXPECT_TRUE(std::isinf(HalfToFloat(0x7C00)));
  EXPECT_TRUE(std::isnan(HalfToFloat(0x7E00)));
  EXPECT_TRUE(std::signbit(HalfToFloat(0x8000)));
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float value = HalfToFloat(static_cast<uint16_t>(bits));
    if (!std::isnan(value)) {
      ASSERT_EQ(testing::FloatToHalf(value), bits);
    }
  }
}

TEST(ConversionTest, EightBitFloatsWidenExactly) {
  EXPECT_EQ(Fp8E4m3ToFloat(0x38), 1.0f);
  EXPECT_EQ(Fp8E4m3ToFloat(0x7E), 448.0f);
  EXPECT_EQ(Fp8E4m3ToFloat(0x01), std::ldexp(1.0f, -9));
  EXPECT_EQ(Fp8E4m3ToFloat(0x88), -std::ldexp(1.0f, -6));
  EXPECT_TRUE(std::isnan(Fp8E4m3ToFloat(0x7F)));
  EXPECT_TRUE(std::isnan(Fp8E4m3ToFloat(0xFF)));
  for (uint32_t bits = 0; bits < 0x100; ++bits) {
    const float value = Fp8E4m3ToFloat(static_cast<uint8_t>(bits));
    if (!std::isnan(value)) {
      ASSERT_EQ(testing::FloatToFp8E4m3(value), bits);
    }
  }
  EXPECT_EQ(Bf16ToFloat(0xC0A0), -5.0f);
}

TEST(WeightsTest, TheMiniModelResolves) {
  const auto resolved = ResolveFolder(testing::MiniModel());
  ASSERT_TRUE(resolved.ok()) << resolved.status();
  const ModelWeights& weights = resolved->weights;
  ASSERT_EQ(weights.layers.size(), 9u);
  ASSERT_TRUE(weights.mtp.has_value());
  EXPECT_EQ(OutDim(weights.head), 512);
  EXPECT_EQ(InDim(weights.head), 128);
  const auto& kda = std::get<KdaWeights>(weights.layers[0].attention);
  EXPECT_EQ(kda.q_conv.rows, 128);
  EXPECT_EQ(kda.q_conv.cols, 4);
  const auto& moe = std::get<MoeWeights>(weights.layers[8].mlp);
  EXPECT_EQ(moe.experts.size(), 8u);
  const auto& dsa = std::get<DsaWeights>(weights.layers[7].attention);
  EXPECT_EQ(OutDim(dsa.indexer.wq_b), 16 * 128);

  // Gate bounds depend on these: plain values straight from the file.
  std::vector<float> a_log(kda.a_log.count);
  ASSERT_TRUE(ReadVectorF32(kda.a_log, a_log.data()).ok());
  float stored = 0;
  std::memcpy(&stored,
              resolved->checkpoint->Find("model.language_model.layers.0.self_attn.A_log")->data,
              sizeof(stored));
  EXPECT_EQ(a_log[0], stored);
}

TEST(WeightsTest, RanksOfTheMiniModelHoldItsParts) {
  for (int tp : {2, 4}) ExpectPartsMakeTheWhole(testing::MiniModel(), tp);
}

TEST(WeightsTest, RanksOfTheStackedDemoHoldItsParts) {
  for (int tp : {2, 4}) ExpectPartsMakeTheWhole(testing::DemoModel(), tp);
}

TEST(WeightsTest, RanksOfTheStandardDemoHoldItsParts) {
  const LinkedDemoStd demo;
  for (int tp : {2, 4}) ExpectPartsMakeTheWhole(demo.path(), tp);
}

TEST(WeightsTest, TheDemosAreReadAsTheyAreStored) {
  const auto stacked = ResolveFolder(testing::DemoModel());
  ASSERT_TRUE(stacked.ok()) << stacked.status();
  const auto expert = [](const testing::Resolved& resolved, int layer, int e) -> const MlpWeights& {
    return std::get<MoeWeights>(resolved.weights.layers[layer].mlp).experts[e];
  };
  const Exl3View& gate = std::get<Exl3View>(expert(*stacked, 5, 7).gate);
  EXPECT_EQ(gate.bits, 3);
  EXPECT_EQ(gate.codebook, Exl3Codebook::kMcg);
  EXPECT_EQ(gate.tile_order, Exl3TileOrder::kColumnMajor);
  EXPECT_EQ(gate.in, 128);
  EXPECT_EQ(gate.out, 512);
  EXPECT_EQ(gate.trellis, gate.tensor->data + gate.tensor->bytes / 8 * 7);
  EXPECT_EQ(std::get<Exl3View>(stacked->weights.mtp->moe.experts[0].down).bits, 4);

  const LinkedDemoStd demo;
  const auto standard = ResolveFolder(demo.path());
  ASSERT_TRUE(standard.ok()) << standard.status();
  const MlpWeights& first = expert(*standard, 3, 0);
  EXPECT_EQ(std::get<Exl3View>(first.gate).bits, 4);
  EXPECT_EQ(std::get<Exl3View>(first.down).bits, 3) << "bits differ from matrix to matrix";
  EXPECT_EQ(std::get<Exl3View>(first.gate).tile_order, Exl3TileOrder::kSm80);
}

TEST(LayoutTest, FloatCheckpointsHoldTheSameWeights) {
  const CheckpointImage mini = Mini();
  const auto original = ReadWritten(mini);
  ASSERT_TRUE(original.ok()) << original.status();
  EXPECT_EQ(*ReadWritten(testing::Widen(mini)), *original);
  EXPECT_EQ(*ReadWritten(mini, 3), *original);

  const CheckpointImage half = testing::ToHalf(mini);
  EXPECT_EQ(*ReadWritten(half), *ReadWritten(testing::Widen(half)));
}

TEST(LayoutTest, EightBitBlocksHoldTheWeightsTimesTheirScales) {
  for (const auto& [rows, cols] : {std::pair{128, 128}, std::pair{48, 80}}) {
    const CheckpointImage fp8 = testing::ToFp8(Mini(), rows, cols);
    const CheckpointImage twin = testing::Widen(fp8);
    for (int tp : {1, 2, 4}) {
      const auto read = ReadWritten(fp8, 1, tp, tp - 1);
      ASSERT_TRUE(read.ok()) << read.status();
      EXPECT_EQ(*read, *ReadWritten(twin, 1, tp, tp - 1)) << rows << " " << tp;
    }
  }
}

TEST(LayoutTest, FusedProjectionsAreCutApart) {
  const CheckpointImage fused = testing::FuseKda(Mini());
  for (int tp : {1, 2, 4}) {
    for (int rank = 0; rank < tp; ++rank) {
      const auto read = ReadWritten(fused, 1, tp, rank);
      ASSERT_TRUE(read.ok()) << read.status();
      EXPECT_EQ(*read, *ReadFolder(testing::MiniModel(), tp, rank));
    }
  }
}

TEST(LayoutTest, AllNamePrefixesAreKnown) {
  const CheckpointImage mini = Mini();
  const auto original = ReadWritten(mini);
  for (const auto& [trunk, head] : {std::pair{"model.", "lm_head"},
                                    std::pair{"language_model.model.", "language_model.lm_head"},
                                    std::pair{"language_model.model.", "lm_head"}}) {
    const auto read = ReadWritten(testing::Rename(mini, trunk, head));
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(*read, *original);
  }
}

TEST(LayoutTest, RepeatedHeadsOfTheDraftLayerAreIgnored) {
  CheckpointImage mini = Mini();
  testing::StoredTensor copy = *mini.Find("lm_head.weight");
  copy.name = "model.language_model.layers.9.shared_head.head.weight";
  mini.tensors.push_back(copy);
  copy.name = "model.language_model.layers.9.embed_tokens.weight";
  mini.tensors.push_back(copy);
  EXPECT_TRUE(ReadWritten(mini).ok());
}

TEST(LayoutTest, FusedAndSeparateAtOnceIsRefused) {
  CheckpointImage image = testing::FuseKda(Mini());
  CheckpointImage mini = Mini();
  image.tensors.push_back(mini.Take("model.language_model.layers.4.self_attn.k_proj.weight"));
  EXPECT_THAT(std::string(ReadWritten(image).status().message()),
              HasSubstr("layers.4.self_attn.qkv_proj\" and "
                        "\"model.language_model.layers.4.self_attn.k_proj\" are both present"));
}

TEST(LayoutTest, TwoPrefixesAtOnceAreRefused) {
  CheckpointImage image = Mini();
  testing::StoredTensor copy = *image.Find("model.language_model.embed_tokens.weight");
  copy.name = "model.embed_tokens.weight";
  image.tensors.push_back(copy);
  EXPECT_THAT(std::string(ReadWritten(image).status().message()),
              HasSubstr("is stored under several names"));
}

TEST(LayoutTest, EightBitWeightsNeedTheirScales) {
  const std::string name = "model.language_model.layers.0.mlp.up_proj.weight";
  CheckpointImage fp8 = testing::ToFp8(Mini());
  fp8.Take(name + "_scale_inv");
  EXPECT_THAT(std::string(ReadWritten(fp8).status().message()),
              HasSubstr("tensor \"" + name + "_scale_inv\" is missing"));

  fp8 = testing::ToFp8(Mini());
  fp8.Find(name + "_scale_inv")->shape = {1};
  EXPECT_THAT(std::string(ReadWritten(fp8).status().message()),
              HasSubstr("\"" + name + "_scale_inv\" has shape [1], expected [1, 1]"));

  CheckpointImage mini = Mini();
  testing::StoredTensor scale = *testing::ToFp8(Mini()).Find(name + "_scale_inv");
  mini.tensors.push_back(scale);
  EXPECT_THAT(std::string(ReadWritten(mini).status().message()),
              HasSubstr("holds block scales, expected F8_E4M3 weights beside them, found BF16"));
}

TEST(LayoutTest, OnlyKnownVisionTensorsAreLeftAlone) {
  CheckpointImage image = Mini();
  image.Find("model.visual.blocks.1.norm1.weight")->name = "model.visual.blocks.2.norm1.weight";
  EXPECT_THAT(std::string(ReadWritten(image).status().message()),
              HasSubstr("tensor \"model.visual.blocks.2.norm1.weight\" is unknown"));
}

TEST(LayoutTest, ADraftLayerThatTheConfigDeniesIsNamed) {
  CheckpointImage image = Mini();
  image.config.at("text_config").as_object()["num_nextn_predict_layers"] = 0;
  EXPECT_THAT(std::string(ReadWritten(image).status().message()),
              HasSubstr("config.json says num_nextn_predict_layers 0"));
}

TEST(WeightsTest, RanksOutsideTheGroupAreRefused) {
  EXPECT_EQ(ResolveFolder(testing::MiniModel(), 2, 2).status().message(),
            "rank 2, expected 0 to 1");
}

}  // namespace
}  // namespace quartet
