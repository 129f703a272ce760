#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <boost/json/object.hpp>
#include <cstring>
#include <fstream>

#include "shard_worker/checkpoint/weights.h"
#include "tests/support/checkpoint_writer.h"
#include "tests/unit/checkpoint/weight_walk.h"

// EXL3 storage says how it is to be decoded in several places. All of them have to agree: a wrong
// tile order or codebook gives plausible noise, never an error later.

namespace quartet {
namespace {

namespace json = boost::json;
using testing::CheckpointImage;
using testing::Exl3Options;
using testing::ExpertLayout;
using ::testing::HasSubstr;
using testing::ScratchFolder;
using testing::StoredTensor;

constexpr char kGate[] = "model.language_model.layers.7.mlp.experts.2.gate_proj";
constexpr char kStack[] = "model.language_model.layers.7.mlp.experts.exl3_gate";

CheckpointImage Quantised(Exl3Options options) {
  options.with_twin = false;
  static const CheckpointImage mini = *testing::ReadImage(testing::MiniModel());
  return testing::ToExl3(mini, options).quantised;
}

json::object& Quant(CheckpointImage& image) {
  return image.config.at("quantization_config").as_object();
}

std::string ErrorOf(const CheckpointImage& image, int tp = 1) {
  const ScratchFolder folder;
  EXPECT_TRUE(testing::WriteImage(image, folder.path()).ok());
  const auto resolved = testing::ResolveFolder(folder.path(), tp, 0);
  return resolved.ok() ? "" : std::string(resolved.status().message());
}

StoredTensor Scalar(const std::string& name, uint32_t value) {
  StoredTensor tensor{name, Dtype::kI32, {}, std::string(4, '\0')};
  std::memcpy(tensor.bytes.data(), &value, 4);
  return tensor;
}

TEST(Exl3RulesTest, EveryWrittenLayoutIsAccepted) {
  for (Exl3Codebook codebook : {Exl3Codebook::k3Inst, Exl3Codebook::kMcg, Exl3Codebook::kMul1}) {
    for (Exl3TileOrder order : {Exl3TileOrder::kSm80, Exl3TileOrder::kColumnMajor}) {
      for (ExpertLayout layout : {ExpertLayout::kStacked, ExpertLayout::kPerExpert}) {
        const CheckpointImage image =
            Quantised({.codebook = codebook, .tile_order = order, .layout = layout});
        const ScratchFolder folder;
        ASSERT_TRUE(testing::WriteImage(image, folder.path(), 3).ok());
        const auto resolved = testing::ResolveFolder(folder.path());
        ASSERT_TRUE(resolved.ok()) << resolved.status();
        const auto& view = std::get<Exl3View>(
            std::get<MoeWeights>(resolved->weights.layers[7].mlp).experts[2].gate);
        EXPECT_EQ(view.codebook, codebook);
        EXPECT_EQ(view.tile_order, order);
      }
    }
  }
}

TEST(Exl3RulesTest, OlderSignFieldsAndMarkersAreAccepted) {
  CheckpointImage image = Quantised({.tile_order = Exl3TileOrder::kColumnMajor,
                                     .legacy_signs = true,
                                     .tile_order_markers = true});
  const ScratchFolder folder;
  ASSERT_TRUE(testing::WriteImage(image, folder.path()).ok());
  const auto resolved = testing::ResolveFolder(folder.path());
  ASSERT_TRUE(resolved.ok()) << resolved.status();
  const auto& view =
      std::get<Exl3View>(std::get<MoeWeights>(resolved->weights.layers[7].mlp).experts[2].gate);
  EXPECT_TRUE(view.suh.signs);
  std::vector<float> signs(view.suh.count);
  ASSERT_TRUE(ReadExl3VectorF32(view.suh, signs.data()).ok());
  EXPECT_THAT(signs, ::testing::Each(::testing::AnyOf(1.0f, -1.0f)));
  EXPECT_THAT(signs, ::testing::Contains(-1.0f));
}

TEST(Exl3RulesTest, CodebookMarkerAndConfigurationMustAgree) {
  CheckpointImage image = Quantised({});
  Quant(image)["codebook"] = "mul1";
  EXPECT_THAT(ErrorOf(image), HasSubstr(".mcg\" marks codebook mcg, expected mul1 as "
                                        "quantization_config.codebook in"));

  image = Quantised({});
  image.Take(std::string(kGate) + ".mcg");
  EXPECT_THAT(ErrorOf(image),
              HasSubstr(absl::StrCat("\"", kGate,
                                     "\" has no codebook marker, which means codebook "
                                     "3inst, but ")));

  image = Quantised({});
  image.tensors.push_back(Scalar(std::string(kGate) + ".mul1", 0x83DCD12D));
  EXPECT_THAT(ErrorOf(image), HasSubstr("expected at most one codebook marker"));

  image = Quantised({});
  *image.Find(std::string(kGate) + ".mcg") = Scalar(std::string(kGate) + ".mcg", 0xCBAC1FEE);
  EXPECT_THAT(ErrorOf(image), HasSubstr(absl::StrCat("\"", kGate,
                                                     ".mcg\" holds 0xCBAC1FEE, an unknown "
                                                     "codebook, expected 0xCBAC1FED")));

  image = Quantised({.layout = ExpertLayout::kStacked});
  Quant(image).erase("codebook");
  EXPECT_THAT(ErrorOf(image), HasSubstr("is a stack, which carries no codebook marker, expected "
                                        "quantization_config.codebook in"));
}

TEST(Exl3RulesTest, MarkersWithoutCodebookInTheConfigurationAreEnough) {
  CheckpointImage image = Quantised({.codebook = Exl3Codebook::kMul1});
  Quant(image).erase("codebook");
  EXPECT_EQ(ErrorOf(image), "");
}

TEST(Exl3RulesTest, O12_TileOrderMarkersAndConfigurationMustAgree) {
  const Exl3Options marked = {.tile_order = Exl3TileOrder::kColumnMajor,
                              .tile_order_markers = true};
  CheckpointImage image = Quantised(marked);
  Quant(image).erase("tile_order");
  EXPECT_THAT(ErrorOf(image), HasSubstr("marks column-major tiles, expected "
                                        "quantization_config.tile_order \"colmajor\" in "));
  EXPECT_THAT(ErrorOf(image), HasSubstr("found no tile_order"));

  image = Quantised(marked);
  Quant(image)["tile_order"] = "sm80";
  EXPECT_THAT(ErrorOf(image), HasSubstr("found tile_order sm80"));

  image = Quantised(marked);
  image.Take(std::string(kGate) + ".tile_order");
  EXPECT_THAT(ErrorOf(image),
              HasSubstr(absl::StrCat("tensor \"", kGate, ".tile_order\" is missing")));
  EXPECT_THAT(ErrorOf(image), HasSubstr("so all must"));

  image = Quantised(marked);
  *image.Find(std::string(kGate) + ".tile_order") =
      Scalar(std::string(kGate) + ".tile_order", 0x50);
  EXPECT_THAT(ErrorOf(image),
              HasSubstr("holds 0x50, an unknown tile order, expected 0x70C0 (column-major)"));

  image = Quantised({.layout = ExpertLayout::kStacked});
  Quant(image).erase("tile_order");
  EXPECT_THAT(ErrorOf(image), HasSubstr("is a stack, whose tile order differs between writers, "
                                        "expected quantization_config.tile_order in"));
}

TEST(Exl3RulesTest, O12_BitsMustBeThoseOfTheConfiguration) {
  CheckpointImage image = Quantised({.layout = ExpertLayout::kStacked, .bits = 2, .other_bits = 5});
  Quant(image)["layer_bits"].as_object()["7"] = 3;
  EXPECT_THAT(ErrorOf(image), HasSubstr(absl::StrCat("\"", kStack,
                                                     "_trellis\" holds 5 bits per weight, "
                                                     "expected 3 as "
                                                     "quantization_config.layer_bits[7] in ")));

  image = Quantised({.layout = ExpertLayout::kStacked, .bits = 2, .other_bits = 5});
  Quant(image)["layer_bits"].as_object().erase("7");
  EXPECT_THAT(ErrorOf(image), HasSubstr("expected 2 as quantization_config.bits in "));

  image = Quantised({.bits = 3, .other_bits = 4});
  Quant(image)["allowed_bits"] = json::array{3};
  EXPECT_THAT(ErrorOf(image), HasSubstr("holds 4 bits per weight, expected one of [3] as "));

  image = Quantised({.bits = 3, .other_bits = 4});
  Quant(image).erase("allowed_bits");
  Quant(image)["bits"] = 3.5;
  EXPECT_EQ(ErrorOf(image), "") << "an average cannot be checked";
}

TEST(Exl3RulesTest, ADescriptionBesideTheWeightsMustTellTheSame) {
  const CheckpointImage image = Quantised({.bits = 3, .other_bits = 3});
  const ScratchFolder folder;
  ASSERT_TRUE(testing::WriteImage(image, folder.path()).ok());
  std::ofstream(folder.path() + "/quantization_config.json")
      << "{\"tensor_storage\":{\"" << kGate
      << "\":{\"quant_format\":\"exl3\",\"bits_per_weight\":4}}}";
  EXPECT_THAT(std::string(testing::ResolveFolder(folder.path()).status().message()),
              HasSubstr(absl::StrCat(kGate,
                                     ".trellis\" holds 3 bits per weight, expected 4 as "
                                     "quantization_config.json says")));
}

TEST(Exl3RulesTest, ShapesAndTypesAreChecked) {
  CheckpointImage image = Quantised({});
  image.Find(std::string(kGate) + ".trellis")->dtype = Dtype::kF16;
  EXPECT_THAT(ErrorOf(image), HasSubstr(".trellis\" has dtype F16, expected I16 or U16"));

  image = Quantised({});
  std::swap(image.Find(std::string(kGate) + ".trellis")->shape[1],
            image.Find(std::string(kGate) + ".trellis")->shape[2]);
  EXPECT_THAT(ErrorOf(image), HasSubstr("expected [8, 8, 16 * bits] with 1 to 8 bits per weight"));

  image = Quantised({});
  image.Find(std::string(kGate) + ".svh")->shape = {64, 2};
  EXPECT_THAT(ErrorOf(image), HasSubstr(".svh\" has shape [64, 2], expected [128]"));

  image = Quantised({});
  image.Take(std::string(kGate) + ".suh");
  EXPECT_THAT(ErrorOf(image), HasSubstr(absl::StrCat("tensor \"", kGate, ".suh\" is missing")));

  image = Quantised({});
  image.Take(std::string(kGate) + ".trellis");
  EXPECT_THAT(ErrorOf(image), HasSubstr(absl::StrCat("tensor \"", kGate, ".trellis\" is missing")));

  image = Quantised({.layout = ExpertLayout::kStacked});
  image.Find(std::string(kStack) + "_suh")->shape = {4, 256};
  EXPECT_THAT(ErrorOf(image), HasSubstr("_suh\" has shape [4, 256], expected [8, 128]"));
}

TEST(Exl3RulesTest, O12_NothingIsStoredTwice) {
  const CheckpointImage mini = *testing::ReadImage(testing::MiniModel());
  const auto dense =
      std::find_if(mini.tensors.begin(), mini.tensors.end(),
                   [](const StoredTensor& t) { return t.name == std::string(kGate) + ".weight"; });
  ASSERT_NE(dense, mini.tensors.end());
  CheckpointImage image = Quantised({});
  image.tensors.push_back(*dense);
  EXPECT_THAT(ErrorOf(image), HasSubstr("is stored twice"));

  image = Quantised({.layout = ExpertLayout::kStacked});
  image.tensors.push_back(*dense);
  EXPECT_THAT(ErrorOf(image), HasSubstr("are both present and hold the same weights"));
}

TEST(Exl3RulesTest, O12_UnknownSuffixesAndObsoleteScalesAreRefused) {
  for (const char* suffix : {".scale", ".sqg", ".bias"}) {
    CheckpointImage image = Quantised({});
    image.tensors.push_back(Scalar(std::string(kGate) + suffix, 1));
    EXPECT_THAT(ErrorOf(image),
                HasSubstr(absl::StrCat("tensor \"", kGate, suffix, "\" is unknown")));
  }
}

TEST(Exl3RulesTest, TheConfigurationMustSayThatItIsExl3) {
  CheckpointImage image = Quantised({});
  image.config.erase("quantization_config");
  EXPECT_THAT(ErrorOf(image), HasSubstr("is EXL3, expected quantization_config.quant_method "
                                        "\"exl3\" in "));
}

TEST(Exl3RulesTest, CutsInsideABlockOf128NameTheSizesThatWork) {
  EXPECT_THAT(ErrorOf(Quantised({}), 2),
              HasSubstr("has 128 outputs, which tensor parallel size 2 cuts into parts of 64, "
                        "expected parts that are multiples of 128"));
  EXPECT_THAT(ErrorOf(Quantised({}), 2), HasSubstr("sizes that work: 1"));
  const auto demo = testing::ResolveFolder(testing::DemoModel(), 8, 0);
  EXPECT_THAT(std::string(demo.status().message()), HasSubstr("has 512 outputs"));
  EXPECT_THAT(std::string(demo.status().message()), HasSubstr("sizes that work: 1, 2, 4"));
}

TEST(Exl3RulesTest, AScaleThatIsNotFiniteIsFoundWhenItIsRead) {
  CheckpointImage image = Quantised({});
  StoredTensor* suh = image.Find(std::string(kGate) + ".suh");
  suh->bytes[6] = '\x00';
  suh->bytes[7] = '\x7C';
  const ScratchFolder folder;
  ASSERT_TRUE(testing::WriteImage(image, folder.path()).ok());
  const auto resolved = testing::ResolveFolder(folder.path());
  ASSERT_TRUE(resolved.ok());
  const auto& view =
      std::get<Exl3View>(std::get<MoeWeights>(resolved->weights.layers[7].mlp).experts[2].gate);
  std::vector<float> values(view.suh.count);
  EXPECT_THAT(std::string(ReadExl3VectorF32(view.suh, values.data()).message()),
              HasSubstr(absl::StrCat(kGate, ".suh\" element 3 is inf, expected a finite scale")));
}

TEST(Exl3RulesTest, AnyLinearLayerMayBeExl3) {
  CheckpointImage image = Quantised({});
  const std::string module = "model.language_model.layers.0.self_attn.o_proj";
  image.Take(module + ".weight");
  for (const char* part : {".trellis", ".suh", ".svh", ".mcg"}) {
    StoredTensor copy = *image.Find(std::string(kGate) + part);
    copy.name = module + part;
    image.tensors.push_back(std::move(copy));
  }
  const ScratchFolder folder;
  ASSERT_TRUE(testing::WriteImage(image, folder.path()).ok());
  const auto resolved = testing::ResolveFolder(folder.path());
  ASSERT_TRUE(resolved.ok()) << resolved.status();
  const auto& kda = std::get<KdaWeights>(resolved->weights.layers[0].attention);
  EXPECT_EQ(std::get<Exl3View>(kda.o_proj).name, module);
}

}  // namespace
}  // namespace quartet
