#include "shard_worker/checkpoint/model_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <functional>

#include "shard_worker/checkpoint/json_text.h"
#include "tests/unit/checkpoint/weight_walk.h"

namespace quartet {
namespace {

namespace json = boost::json;
using ::testing::HasSubstr;
using testing::MiniModel;

json::object MiniConfig() {
  return json::parse(*ReadTextFile(MiniModel() + "/config.json", 1 << 20)).as_object();
}

// The message that a change of the mini model's configuration leads to; empty if none.
std::string ErrorAfter(const std::function<void(json::object& root, json::object& text)>& change) {
  json::object root = MiniConfig();
  change(root, root.at("text_config").as_object());
  const auto config = ParseModelConfig(json::serialize(root), "config.json");
  return config.ok() ? "" : std::string(config.status().message());
}

TEST(ModelConfigTest, ReadsTheMiniModel) {
  const auto config = ReadModelConfig(MiniModel());
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->vocab_size, 512);
  EXPECT_EQ(config->hidden, 128);
  EXPECT_EQ(config->layers, 9);
  EXPECT_EQ(config->CountLayers(AttentionKind::kKda), 7);
  EXPECT_EQ(config->attention[3], AttentionKind::kDsa);
  EXPECT_EQ(config->attention[8], AttentionKind::kKda);
  EXPECT_EQ(config->mlp[5], MlpKind::kDense);
  EXPECT_EQ(config->mlp[6], MlpKind::kMoe);
  EXPECT_EQ(config->kda_inner(), 128);
  EXPECT_EQ(config->kda_gate_lower_bound, -5.0f);
  EXPECT_EQ(config->index_pools(), 16);
  EXPECT_EQ(config->experts, 8);
  EXPECT_EQ(config->experts_per_token, 3);
  EXPECT_EQ(config->swiglu_limit, 2.0f);
  EXPECT_EQ(config->hc_map_rows(), 24);
  EXPECT_EQ(config->mtp_layers, 1);
  EXPECT_EQ(config->vision->depth, 2);
  EXPECT_EQ(config->quantization.method, QuantMethod::kNone);
}

TEST(ModelConfigTest, ReadsTheQuantisedDemos) {
  const auto stacked = ReadModelConfig(testing::DemoModel());
  ASSERT_TRUE(stacked.ok()) << stacked.status();
  EXPECT_EQ(stacked->quantization.method, QuantMethod::kExl3);
  EXPECT_EQ(stacked->quantization.codebook, Exl3Codebook::kMcg);
  EXPECT_EQ(stacked->quantization.tile_order, Exl3TileOrder::kColumnMajor);
  EXPECT_EQ(stacked->quantization.bits, 2);
  EXPECT_EQ(stacked->quantization.layer_bits, (std::map<int, int>{{5, 3}, {8, 3}, {9, 4}}));

  const auto standard = ReadModelConfig(testing::DemoStdModel());
  ASSERT_TRUE(standard.ok()) << standard.status();
  EXPECT_EQ(standard->quantization.bits, std::nullopt) << "a word says nothing about bits";
  EXPECT_EQ(standard->quantization.tile_order, std::nullopt);
  EXPECT_EQ(standard->quantization.allowed_bits, (std::vector<int>{3, 4}));
}

TEST(ModelConfigTest, AFolderWithoutConfigIsNamed) {
  const auto config = ReadModelConfig("/nonexistent/model");
  EXPECT_EQ(config.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(config.status().message()),
              HasSubstr("/nonexistent/model/config.json: No such file"));
}

TEST(ModelConfigTest, NotJsonIsNamed) {
  const auto config = ParseModelConfig("{\"model_type\": ", "m/config.json");
  EXPECT_THAT(std::string(config.status().message()), HasSubstr("m/config.json: not valid JSON"));
}

TEST(ModelConfigTest, AKeyGivenTwiceIsRefused) {
  const auto config = ParseModelConfig(R"({"model_type": "a", "model_type": "b"})", "config.json");
  EXPECT_EQ(config.status().message(),
            "config.json: \"model_type\" appears twice; expected every name once");
}

TEST(ModelConfigTest, WrongTypesNameFieldFoundAndExpected) {
  EXPECT_EQ(
      ErrorAfter([](auto&, auto& text) { text["hidden_size"] = "abc"; }),
      "config.json: text_config.hidden_size is \"abc\", expected a positive integer up to 2097152");
  EXPECT_EQ(
      ErrorAfter([](auto&, auto& text) { text["hidden_size"] = 128.0; }),
      "config.json: text_config.hidden_size is 1.28E2, expected a positive integer up to 2097152");
  EXPECT_EQ(
      ErrorAfter([](auto&, auto& text) { text["hidden_size"] = true; }),
      "config.json: text_config.hidden_size is true, expected a positive integer up to 2097152");
  EXPECT_EQ(
      ErrorAfter([](auto&, auto& text) { text["q_lora_rank"] = -4; }),
      "config.json: text_config.q_lora_rank is -4, expected a positive integer up to 2097152");
  EXPECT_EQ(
      ErrorAfter([](auto&, auto& text) { text["layer_types"] = 3; }),
      "config.json: text_config.layer_types is 3, expected a list of 9 of \"linear_attention\", "
      "\"deepseek_sparse_attention\", \"full_attention\"");
  EXPECT_EQ(ErrorAfter([](auto& root, auto&) { root["text_config"] = json::array{}; }),
            "config.json: text_config is [], expected an object");
}

TEST(ModelConfigTest, EveryFieldThatMattersMustBePresent) {
  for (const char* field : {"vocab_size",
                            "hidden_size",
                            "num_hidden_layers",
                            "max_position_embeddings",
                            "rms_norm_eps",
                            "swiglu_limit",
                            "linear_attn_config",
                            "layer_types",
                            "num_attention_heads",
                            "q_lora_rank",
                            "kv_lora_rank",
                            "qk_nope_head_dim",
                            "qk_rope_head_dim",
                            "v_head_dim",
                            "index_n_heads",
                            "index_head_dim",
                            "index_topk",
                            "index_kpool",
                            "intermediate_size",
                            "moe_intermediate_size",
                            "n_routed_experts",
                            "num_experts_per_tok",
                            "n_shared_experts",
                            "scoring_func",
                            "norm_topk_prob",
                            "routed_scaling_factor",
                            "hc_mult",
                            "hc_eps",
                            "hc_sinkhorn_iters"}) {
    EXPECT_THAT(
        ErrorAfter([&](auto&, auto& text) { text.erase(field); }),
        HasSubstr(absl::StrCat("config.json: text_config.", field, " is missing, expected ")));
  }
  EXPECT_THAT(ErrorAfter([](auto&, auto& text) {
                text.at("linear_attn_config").as_object().erase("gate_lower_bound");
              }),
              HasSubstr("text_config.linear_attn_config.gate_lower_bound is missing"));
}

TEST(ModelConfigTest, WhatIsNotImplementedIsRefusedByValue) {
  struct Case {
    const char* field;
    json::value value;
    const char* message;
  };
  const Case cases[] = {
      {"qk_rope_head_dim", 64, "text_config.qk_rope_head_dim is 64, expected 0"},
      {"n_group", 8, "text_config.n_group is 8, expected 1"},
      {"topk_group", 4, "text_config.topk_group is 4, expected 1"},
      {"scoring_func", "softmax", "text_config.scoring_func is \"softmax\", expected \"sigmoid\""},
      {"norm_topk_prob", false, "text_config.norm_topk_prob is false, expected true"},
      {"attention_bias", true, "text_config.attention_bias is true, expected false"},
      {"tie_word_embeddings", true, "text_config.tie_word_embeddings is true, expected false"},
      {"hidden_act", "gelu", "text_config.hidden_act is \"gelu\", expected \"silu\""},
      {"num_nextn_predict_layers", 2, "text_config.num_nextn_predict_layers is 2, expected 0 or 1"},
      {"num_key_value_heads", 1, "text_config.num_key_value_heads is 1, expected 4"},
      {"index_topk", 66, "text_config.index_topk is 66, expected a multiple of index_kpool, 4"},
      {"num_experts_per_tok", 9, "text_config.num_experts_per_tok is 9, expected 1 to n_routed"},
  };
  for (const Case& c : cases) {
    EXPECT_THAT(ErrorAfter([&](auto&, auto& text) { text[c.field] = c.value; }),
                HasSubstr(c.message));
  }
  EXPECT_EQ(ErrorAfter([](auto& root, auto&) { root["model_type"] = "llama"; }),
            "config.json: model_type is \"llama\", expected \"glm5_next\"");
}

TEST(ModelConfigTest, LayerListsMustAgree) {
  EXPECT_EQ(ErrorAfter([](auto&, auto& text) { text.at("layer_types").as_array().pop_back(); }),
            "config.json: text_config.layer_types is a list of 8, expected 9 entries "
            "(num_hidden_layers)");
  EXPECT_THAT(ErrorAfter([](auto&, auto& text) { text.at("layer_types").as_array()[2] = "mamba"; }),
              HasSubstr("text_config.layer_types[2] is \"mamba\", expected one of"));
  EXPECT_THAT(ErrorAfter([](auto&, auto& text) {
                text.at("linear_attn_config").as_object()["kda_layers"] =
                    json::array{1, 2, 3, 5, 6, 7, 9};
              }),
              HasSubstr("linear_attn_config.kda_layers is [1,2,3,5,6,7,9], expected "
                        "[0,1,2,4,5,6,8] (0-based)"));
}

TEST(ModelConfigTest, TheListOfMlpsWinsOverTheNumber) {
  json::object root = MiniConfig();
  root.at("text_config").as_object()["first_k_dense_replace"] = 1;
  auto config = ParseModelConfig(json::serialize(root), "config.json");
  ASSERT_TRUE(config.ok());
  EXPECT_EQ(config->CountLayers(MlpKind::kDense), 6);
  root.at("text_config").as_object().erase("mlp_layer_types");
  config = ParseModelConfig(json::serialize(root), "config.json");
  ASSERT_TRUE(config.ok());
  EXPECT_EQ(config->CountLayers(MlpKind::kDense), 1);
}

TEST(ModelConfigTest, QuantisationIsNeverGuessed) {
  const auto error = [](json::object quant) {
    return ErrorAfter([&](auto& root, auto&) { root["quantization_config"] = quant; });
  };
  EXPECT_EQ(
      error({{"quant_method", "gptq"}}),
      "config.json: quantization_config.quant_method is \"gptq\", expected \"fp8\" or \"exl3\"");
  EXPECT_THAT(error({{"quant_method", "exl3"}, {"tile_order", "zigzag"}}),
              HasSubstr("quantization_config.tile_order is \"zigzag\", expected \"sm80\", "
                        "\"colmajor\" or \"sm70_colmajor\""));
  EXPECT_THAT(error({{"quant_method", "exl3"}, {"codebook", "sqg"}}),
              HasSubstr("quantization_config.codebook is \"sqg\", expected \"mcg\""));
  EXPECT_THAT(error({{"quant_method", "exl3"}, {"bits", 9}}),
              HasSubstr("quantization_config.bits is 9, expected 1 to 8"));
  EXPECT_THAT(error({{"quant_method", "exl3"}, {"layer_bits", json::object{{"12", 3}}}}),
              HasSubstr("quantization_config.layer_bits is given for layer \"12\", expected layers "
                        "from 0 to 9"));
  EXPECT_THAT(error({{"quant_method", "exl3"}, {"layer_bits", json::object{{"6", true}}}}),
              HasSubstr("quantization_config.layer_bits[6] is true, expected 1 to 8"));
  EXPECT_THAT(error({{"quant_method", "exl3"},
                     {"r7_routed_experts", json::object{{"requires_loader_feature", "x"}}}}),
              HasSubstr("r7_routed_experts.requires_loader_feature is present"));
  EXPECT_THAT(error({{"quant_method", "fp8"}, {"weight_block_size", json::array{128}}}),
              HasSubstr("quantization_config.weight_block_size is [128], expected two positive"));
  EXPECT_EQ(error({{"quant_method", "exl3"}, {"bits", 2.25}}), "");
}

TEST(TensorParallelTest, SizesThatDivideEverythingAreFine) {
  const auto config = ReadModelConfig(MiniModel());
  for (int tp : {1, 2, 4}) EXPECT_TRUE(CheckTensorParallel(*config, tp).ok()) << tp;
}

TEST(TensorParallelTest, TheDimensionAndTheSizesThatWorkAreNamed) {
  const auto config = ReadModelConfig(MiniModel());
  EXPECT_EQ(CheckTensorParallel(*config, 3).message(),
            absl::StrCat("tensor parallel size 3 does not divide text_config.vocab_size = 512 in ",
                         MiniModel(), "/config.json; sizes that work: 1, 2, 4"));
  EXPECT_THAT(std::string(CheckTensorParallel(*config, 8).message()),
              HasSubstr("8 does not divide text_config.num_attention_heads = 4"));
  EXPECT_EQ(CheckTensorParallel(*config, 0).message(), "tensor parallel size 0, expected 1 to 64");
}

}  // namespace
}  // namespace quartet
