#include "shard_worker/checkpoint/synthetic.h"

#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <cmath>
#include <vector>

#include "shard_worker/checkpoint/json_text.h"
#include "shard_worker/checkpoint/weights.h"

namespace quartet {
namespace {

// The demo model's configuration without its vision tower, as text.
std::string TextConfig() {
  const std::string path = QUARTET_SOURCE_DIR "/models/quartet-demo-exl3/config.json";
  boost::json::value json = ParseJsonText(ReadTextFile(path, 1 << 20).value(), path).value();
  json.as_object().erase("vision_config");
  return boost::json::serialize(json);
}

TEST(SyntheticCheckpointTest, HasEveryTensorOfTheModelAndNoOther) {
  const ModelConfig config = ParseModelConfig(TextConfig(), "config.json").value();
  const auto checkpoint = MakeSyntheticCheckpoint(config, "nowhere").value();
  for (const int tp : {1, 2, 4}) {
    const absl::StatusOr<ModelWeights> weights = ResolveWeights(*checkpoint, config, tp, tp - 1);
    ASSERT_TRUE(weights.ok()) << weights.status();
    EXPECT_EQ(weights->layers.size(), static_cast<size_t>(config.layers));
    EXPECT_TRUE(weights->mtp.has_value());
  }
}

TEST(SyntheticCheckpointTest, DenseWeightsKeepTheVariance) {
  const ModelConfig config = ParseModelConfig(TextConfig(), "config.json").value();
  const auto checkpoint = MakeSyntheticCheckpoint(config, "nowhere").value();
  const ModelWeights weights = ResolveWeights(*checkpoint, config, 1, 0).value();
  const auto& head = std::get<DenseView>(weights.head);
  std::vector<float> values(head.rows * head.cols);
  ASSERT_TRUE(ReadDenseF32(head, values.data()).ok());
  double sum = 0;
  double squares = 0;
  for (const float v : values) {
    sum += v;
    squares += static_cast<double>(v) * v;
  }
  const auto count = static_cast<double>(values.size());
  EXPECT_NEAR(sum / count, 0, 1e-3);
  EXPECT_NEAR(squares / count * static_cast<double>(head.cols), 1, 0.02);
}

TEST(SyntheticCheckpointTest, AskForAConfigurationThatSaysHowExpertsAreStored) {
  boost::json::value json = boost::json::parse(TextConfig());
  json.as_object().erase("quantization_config");
  const ModelConfig config = ParseModelConfig(boost::json::serialize(json), "config.json").value();
  const absl::Status status = MakeSyntheticCheckpoint(config, "nowhere").status();
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_NE(std::string(status.message()).find("quantization_config"), std::string::npos);
}

TEST(SyntheticCheckpointTest, TheFullSizeConfigurationIsTheModelsOwn) {
  const ModelConfig config = ReadModelConfig(QUARTET_SOURCE_DIR "/models/glm-5.3-flash").value();
  EXPECT_EQ(config.layers, 45);
  EXPECT_EQ(config.CountLayers(AttentionKind::kKda), 34);
  EXPECT_EQ(config.CountLayers(MlpKind::kMoe), 42);
  EXPECT_EQ(config.experts, 288);
  EXPECT_EQ(config.hidden, 4096);
  EXPECT_EQ(config.index_pools(), 512);
}

}  // namespace
}  // namespace quartet
