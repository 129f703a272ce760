#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "shard_worker/checkpoint/memory_plan.h"
#include "tests/support/checkpoint_writer.h"
#include "tests/unit/checkpoint/weight_walk.h"

// What a person gets who starts a worker on a bad checkpoint: one message, at once, that names the
// file, the tensor or field, and what would be right.

namespace quartet {
namespace {

using testing::CheckpointImage;
using testing::Damage;
using ::testing::HasSubstr;
using testing::ScratchFolder;

const CheckpointImage& Mini() {
  static const CheckpointImage image = *testing::ReadImage(testing::MiniModel());
  return image;
}

struct Case {
  std::string name;
  Damage damage;
  int shards;
  bool exl3;
  std::vector<std::string> message;  // all of these, FOLDER standing for the folder's path
};

class BadCheckpointTest : public ::testing::TestWithParam<Case> {};

TEST_P(BadCheckpointTest, IsRefusedByName) {
  const Case& c = GetParam();
  const ScratchFolder folder;
  const CheckpointImage image =
      c.exl3 ? testing::ToExl3(Mini(), {.with_twin = false}).quantised : Mini();
  ASSERT_TRUE(testing::WriteImage(image, folder.path(), c.shards).ok());
  ASSERT_TRUE(testing::ResolveFolder(folder.path()).ok()) << "good before it is damaged";
  const absl::Status damaged = testing::DamageCheckpoint(folder.path(), c.damage);
  ASSERT_TRUE(damaged.ok()) << damaged;

  const absl::Time start = absl::Now();
  const auto resolved = testing::ResolveFolder(folder.path());
  EXPECT_LT(absl::Now() - start, absl::Seconds(5));
  ASSERT_FALSE(resolved.ok());
  for (std::string part : c.message) {
    if (const size_t at = part.find("FOLDER"); at != std::string::npos) {
      part.replace(at, 6, folder.path());
    }
    EXPECT_THAT(std::string(resolved.status().message()), HasSubstr(part));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Table, BadCheckpointTest,
    ::testing::Values(
        Case{"MissingShard",
             Damage::kMissingShard,
             3,
             false,
             {"FOLDER/model-00003-of-00003.safetensors: shard is missing",
              "model.safetensors.index.json names it for 133 tensors", "expected all 3 shards"}},
        Case{"O12_TruncatedTensor",
             Damage::kTruncatedTensor,
             1,
             false,
             {"FOLDER/model.safetensors: tensor \"model.visual.post_layernorm.weight\" ends at "
              "data byte",
              "cut short, expected"}},
        Case{"OverlappingTensors",
             Damage::kOverlappingTensors,
             1,
             false,
             {"FOLDER/model.safetensors: tensor \"model.language_model.layers.0.hc_attn_scale\" "
              "begins at "
              "data byte 94, inside \"model.language_model.layers.0.hc_attn_base\", which ends at "
              "96",
              "expected tensors that do not overlap"}},
        Case{"HeaderLongerThanFile",
             Damage::kHeaderLongerThanFile,
             1,
             false,
             {"FOLDER/model.safetensors: header of", "is longer than the file"}},
        Case{"WrongDtype",
             Damage::kWrongDtype,
             1,
             false,
             {"FOLDER/model.safetensors: tensor \"lm_head.weight\" has dtype I16, expected F32 or "
              "F16 "
              "or BF16"}},
        Case{
            "WrongShape",
            Damage::kWrongShape,
            1,
            false,
            {"FOLDER/model.safetensors: tensor "
             "\"model.language_model.layers.0.mlp.down_proj.weight\" has shape [256, 64], expected "
             "[128, 128]"}},
        Case{"MissingTensor",
             Damage::kMissingTensor,
             3,
             false,
             {"FOLDER/model-0000",
              "of-00003.safetensors: tensor "
              "\"model.language_model.norm.weight\" is missing, expected beside "
              "\"model.language_model.layers.9.shared_head.norm.weight\""}},
        Case{"TensorNotInItsShard",
             Damage::kTensorNotInItsShard,
             3,
             false,
             {"FOLDER/model-00003-of-00003.safetensors: does not hold tensor \"model.",
              "model.safetensors.index.json places there"}},
        Case{"TensorNotInIndex",
             Damage::kTensorNotInIndex,
             3,
             false,
             {"FOLDER/model-00003-of-00003.safetensors: tensor \"model.stray\" is not in ",
              "expected the index to name it"}},
        Case{"O12_UnknownTensor",
             Damage::kUnknownTensor,
             1,
             false,
             {"FOLDER/model.safetensors: tensor "
              "\"model.language_model.layers.0.self_attn.surprise.weight\" is unknown",
              "expected only tensors of the model that FOLDER/config.json describes"}},
        Case{
            "O12_DuplicateInHeader",
            Damage::kDuplicateInHeader,
            1,
            false,
            {"FOLDER/model.safetensors: header: \"", "\" appears twice; expected every name once"}},
        Case{"O12_DuplicateAcrossShards",
             Damage::kDuplicateAcrossShards,
             3,
             false,
             {"tensor \"model.language_model.layers.0.hc_attn_base\" ", "expected it once"}},
        Case{"O12_UnknownTileOrder",
             Damage::kUnknownTileOrder,
             1,
             true,
             {"FOLDER/config.json: quantization_config.tile_order is \"sm120_zigzag\", expected "
              "\"sm80\", \"colmajor\" or \"sm70_colmajor\""}},
        Case{"O12_ContradictoryTileOrder",
             Damage::kContradictoryTileOrder,
             1,
             true,
             {"FOLDER/model.safetensors: tensor \"",
              ".tile_order\" marks column-major tiles, expected", "found no tile_order"}},
        Case{"UnsupportedModelType",
             Damage::kUnsupportedModelType,
             1,
             false,
             {"FOLDER/config.json: model_type is \"deepseek_v4\", expected \"glm5_next\""}}),
    [](const auto& info) { return info.param.name; });

// The two rows of the table that need no damage.

TEST(BadRequestTest, ATensorParallelSizeThatDoesNotDivide) {
  EXPECT_THAT(std::string(testing::ResolveFolder(testing::MiniModel(), 3, 0).status().message()),
              HasSubstr("tensor parallel size 3 does not divide text_config.vocab_size = 512"));
}

TEST(BadRequestTest, AContextLargerThanTheMemory) {
  const auto resolved = testing::ResolveFolder(testing::MiniModel());
  ASSERT_TRUE(resolved.ok());
  MemoryPlanOptions options;
  options.max_model_len = 4096;
  options.max_num_batched_tokens = 64;
  const int64_t weights = WidenedWeightBytes(resolved->weights);
  options.budget_bytes = weights + (int64_t{6} << 20);
  const auto plan = PlanMemory(resolved->config, 1, weights, options);
  ASSERT_EQ(plan.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(
      std::string(plan.status().message()),
      HasSubstr("one context of --max-model-len 4096 tokens needs 7.5 MiB of pages (16 of 256 "
                "tokens)"));
  EXPECT_THAT(std::string(plan.status().message()),
              HasSubstr("the largest --max-model-len that fits is "));
}

}  // namespace
}  // namespace quartet
