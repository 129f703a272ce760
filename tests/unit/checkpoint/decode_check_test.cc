#include "shard_worker/checkpoint/decode_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <string>
#include <utility>
#include <variant>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/exl3.h"
#include "shard_worker/model/decode_probe.h"
#include "tests/support/checkpoint_writer.h"
#include "tests/support/exl3_scalar.h"
#include "tests/unit/checkpoint/weight_walk.h"

// O12: a decode that went wrong is found when weights are loaded, and the tensor is named.

namespace quartet {
namespace {

using ::testing::AllOf;
using testing::Exl3Options;
using testing::ExpertLayout;
using ::testing::HasSubstr;
using testing::ScratchFolder;
using ::testing::SizeIs;

// As the CPU's kernels decode, of a matrix that says so much about itself.
absl::StatusOr<std::vector<float>> DecodeOnCpu(const Exl3View& view) {
  ops::Exl3Matrix matrix;
  matrix.bits = view.bits;
  matrix.codebook = view.codebook == Exl3Codebook::kMcg    ? ops::Codebook::kMcg
                    : view.codebook == Exl3Codebook::kMul1 ? ops::Codebook::kMul1
                                                           : ops::Codebook::k3Inst;
  matrix.tile_order = view.tile_order == Exl3TileOrder::kSm80 ? ops::TileOrder::kSm80
                                                              : ops::TileOrder::kColumnMajor;
  matrix.in = matrix.out = kDecodeBlock;
  matrix.trellis = view.trellis;
  matrix.tile_row_stride = view.tile_row_stride_bytes / view.tile_bytes;
  std::vector<float> block;
  for (const uint16_t bits : cpu::DecodeInner(matrix)) block.push_back(HalfToFloat(bits));
  return block;
}

class DecodeCheckTest : public ::testing::Test {
 protected:
  // The miniature model with experts stored like this.
  const ModelWeights& Resolve(Exl3Options options) {
    options.with_twin = false;
    static const testing::CheckpointImage mini = *testing::ReadImage(testing::MiniModel());
    EXPECT_TRUE(testing::WriteImage(testing::ToExl3(mini, options).quantised, folder_.path()).ok());
    resolved_ = testing::ResolveFolder(folder_.path());
    EXPECT_TRUE(resolved_.ok()) << resolved_.status();
    return resolved_->weights;
  }

  const ScratchFolder folder_;
  const std::unique_ptr<cpu::CpuBackend> backend_ = cpu::MakeCpuBackend({.threads = 1});
  absl::StatusOr<testing::Resolved> resolved_ = absl::UnknownError("not resolved");
};

TEST_F(DecodeCheckTest, O12_EveryCodebookOrderAndWidthPasses) {
  for (const Exl3Codebook codebook :
       {Exl3Codebook::k3Inst, Exl3Codebook::kMcg, Exl3Codebook::kMul1}) {
    for (const Exl3TileOrder order : {Exl3TileOrder::kSm80, Exl3TileOrder::kColumnMajor}) {
      for (const int bits : {1, 2, 3, 5, 8}) {
        const ModelWeights& weights =
            Resolve({.codebook = codebook, .tile_order = order, .bits = bits, .other_bits = bits});
        const absl::Status status = CheckDecoding(weights, DecodeOnCpu);
        EXPECT_TRUE(status.ok()) << status;
        // And through the op that the worker multiplies with.
        const absl::Status multiplied = CheckDecoding(
            weights, [&](const Exl3View& view) { return DecodeBlock(*backend_, view); });
        EXPECT_TRUE(multiplied.ok()) << multiplied;
      }
    }
  }
}

TEST_F(DecodeCheckTest, TheDefinitionIsTheOneOfTheFormatsDescription) {
  for (const Exl3TileOrder order : {Exl3TileOrder::kSm80, Exl3TileOrder::kColumnMajor}) {
    const ModelWeights& weights = Resolve({.tile_order = order, .bits = 2, .other_bits = 5});
    for (const Exl3View* view : ChooseForDecodeCheck(weights)) {
      std::vector<uint16_t> trellis(view->tile_rows() * view->tile_cols() * 16 * view->bits);
      CopyTrellis(*view, trellis.data());
      const std::vector<uint16_t> block = DecodeBlockByDefinition(*view);
      for (int64_t r = 0; r < kDecodeBlock; r += 3) {
        for (int64_t c = 0; c < kDecodeBlock; ++c) {
          ASSERT_EQ(HalfToFloat(block[r * kDecodeBlock + c]),
                    testing::Exl3InnerValue(trellis, view->padded_out, view->bits, view->codebook,
                                            order, r, c));
        }
      }
    }
  }
}

TEST_F(DecodeCheckTest, O12_TheThreeMatricesHaveAllWidthsThatThereAre) {
  const ModelWeights& weights =
      Resolve({.layout = ExpertLayout::kStacked, .bits_of = [](std::string_view module) {
                 if (module.find("layers.9.") != std::string_view::npos) return 4;
                 return module.find("layers.7.") != std::string_view::npos ? 3 : 2;
               }});
  std::set<int> widths;
  for (const Exl3View* view : ChooseForDecodeCheck(weights)) widths.insert(view->bits);
  EXPECT_EQ(widths, (std::set<int>{2, 3, 4}));
}

TEST_F(DecodeCheckTest, OfOneWidthTheyAreFirstLastAndMiddle) {
  const std::vector<const Exl3View*> chosen =
      ChooseForDecodeCheck(Resolve({.bits = 2, .other_bits = 2}));
  ASSERT_THAT(chosen, SizeIs(3));
  EXPECT_THAT(chosen[0]->name, HasSubstr("layers.6.mlp.experts.0.gate_proj"));
  EXPECT_THAT(chosen[1]->name, HasSubstr("layers.9."));
  EXPECT_THAT(chosen[2]->name, HasSubstr("layers."));
}

// Each of these is a decoder that looks healthy: its weights are of the right size and spread.
TEST_F(DecodeCheckTest, O12_AWrongDecodeIsFoundAndTheTensorNamed) {
  const ModelWeights& weights = Resolve({.bits = 2, .other_bits = 2});
  const std::string first = ChooseForDecodeCheck(weights)[0]->name;
  const auto message = [&](const BlockDecoder& decode) {
    return std::string(CheckDecoding(weights, decode).message());
  };
  const auto names_it =
      AllOf(HasSubstr(folder_.path() + "/model.safetensors: tensor \"" + first + "\""),
            HasSubstr("the self-test of its decoding failed, found "));
  EXPECT_THAT(message([](Exl3View view) {
                view.tile_order = Exl3TileOrder::kColumnMajor;
                return DecodeOnCpu(view);
              }),
              names_it);
  EXPECT_THAT(message([](Exl3View view) {
                view.codebook = Exl3Codebook::k3Inst;
                return DecodeOnCpu(view);
              }),
              names_it);
  EXPECT_THAT(message([](Exl3View view) {
                view.trellis += view.tile_bytes;  // the tile beside it
                return DecodeOnCpu(view);
              }),
              names_it);
  EXPECT_THAT(message([](const Exl3View& view) {
                auto block = DecodeOnCpu(view);
                block->at(100 * kDecodeBlock + 17) *= 1.004f;  // four last places of one weight
                return block;
              }),
              AllOf(names_it, HasSubstr("at input 100, output 17")));
  EXPECT_THAT(message([](const Exl3View& view) {
                auto block = DecodeOnCpu(view);
                block->pop_back();
                return block;
              }),
              HasSubstr("found 16383 weights of a block, expected 16384"));
}

TEST_F(DecodeCheckTest, O12_TheLastOfTheThreeIsLookedAtAsWell) {
  const ModelWeights& weights = Resolve({.bits = 2, .other_bits = 2});
  const std::vector<const Exl3View*> chosen = ChooseForDecodeCheck(weights);
  const absl::Status status = CheckDecoding(weights, [&](Exl3View view) {
    if (view.name == chosen[2]->name) view.codebook = Exl3Codebook::kMul1;
    return DecodeOnCpu(view);
  });
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), HasSubstr("\"" + chosen[2]->name + "\""));
}

TEST_F(DecodeCheckTest, AModelWithoutTrellisCodesHasNothingToLookAt) {
  const auto plain = testing::ResolveFolder(testing::MiniModel());
  ASSERT_TRUE(plain.ok());
  EXPECT_TRUE(CheckDecoding(plain->weights, [](const Exl3View&) {
                return absl::InternalError("nothing to decode");
              }).ok());
}

}  // namespace
}  // namespace quartet
