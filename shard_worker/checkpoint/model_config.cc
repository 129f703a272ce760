#include "shard_worker/checkpoint/model_config.h"

#include <algorithm>
#include <boost/json/value.hpp>
#include <cmath>

#include "shard_worker/checkpoint/json_text.h"
#include "shard_worker/checkpoint/message.h"

namespace quartet {
namespace {

namespace json = boost::json;

// No dimension of a plausible model is larger, and products of three of them fit 64 bits.
constexpr int64_t kMaxDimension = int64_t{1} << 21;
constexpr uint64_t kMaxConfigBytes = 16u << 20;

// Reads fields of one JSON object. The first error is kept and every later read does nothing, so
// that a list of fields can be read without a check after each.
class FieldReader {
 public:
  FieldReader(const json::object& object, std::string path, std::string prefix)
      : object_(object), path_(std::move(path)), prefix_(std::move(prefix)) {}

  absl::Status status() const { return status_; }

  bool has(std::string_view key) const { return Find(key) != nullptr; }

  const json::value* Find(std::string_view key) const {
    return object_.if_contains(json::string_view(key.data(), key.size()));
  }

  void Fail(std::string_view key, std::string_view found, std::string_view expected) {
    if (!status_.ok()) return;
    status_ = absl::InvalidArgumentError(
        Cat(path_, ": ", prefix_, key, " is ", found, ", expected ", expected));
  }

  int64_t Int(std::string_view key, int64_t min, int64_t max, std::string_view expected) {
    const json::value* value = Find(key);
    if (value == nullptr) {
      Fail(key, "missing", expected);
      return min;
    }
    const std::optional<int64_t> number = AsInt(*value);
    if (!number || *number < min || *number > max) {
      Fail(key, DescribeJson(*value), expected);
      return min;
    }
    return *number;
  }

  int64_t Dim(std::string_view key) {
    return Int(key, 1, kMaxDimension, "a positive integer up to 2097152");
  }

  // A field with only one value that this program implements. Absent is accepted when `required` is
  // false: then the key's default is that value.
  void MustBe(std::string_view key, const json::value& expected, bool required) {
    const json::value* value = Find(key);
    if (value == nullptr) {
      if (required) Fail(key, "missing", DescribeJson(expected));
      return;
    }
    const bool equal = expected.is_number()
                           ? AsInt(*value) && AsInt(expected) && *AsInt(*value) == *AsInt(expected)
                           : *value == expected;
    if (!equal) Fail(key, DescribeJson(*value), DescribeJson(expected));
  }

  float Float(std::string_view key, double min, double max, std::string_view expected) {
    const json::value* value = Find(key);
    if (value == nullptr) {
      Fail(key, "missing", expected);
      return 0;
    }
    if (!value->is_number()) {
      Fail(key, DescribeJson(*value), expected);
      return 0;
    }
    const double number = value->to_number<double>();
    if (!std::isfinite(number) || number < min || number > max) {
      Fail(key, DescribeJson(*value), expected);
      return 0;
    }
    return static_cast<float>(number);
  }

  std::string Text(std::string_view key, std::string_view expected) {
    const json::value* value = Find(key);
    if (value == nullptr || !value->is_string()) {
      Fail(key, value == nullptr ? "missing" : DescribeJson(*value), expected);
      return "";
    }
    return std::string(value->get_string().c_str(), value->get_string().size());
  }

  // Integers only: booleans, fractions and strings are refused. A float that holds an integer (1.0)
  // is not one either.
  static std::optional<int64_t> AsInt(const json::value& value) {
    if (value.is_int64()) return value.get_int64();
    if (value.is_uint64() && value.get_uint64() <= INT64_MAX) {
      return static_cast<int64_t>(value.get_uint64());
    }
    return std::nullopt;
  }

  std::optional<std::vector<int64_t>> IntList(std::string_view key, std::string_view expected) {
    const json::value* value = Find(key);
    if (value == nullptr) return std::nullopt;
    std::vector<int64_t> list;
    if (!value->is_array()) {
      Fail(key, DescribeJson(*value), expected);
      return std::nullopt;
    }
    for (const json::value& item : value->get_array()) {
      const std::optional<int64_t> number = AsInt(item);
      if (!number) {
        Fail(key, Cat("a list with ", DescribeJson(item)), expected);
        return std::nullopt;
      }
      list.push_back(*number);
    }
    return list;
  }

  const std::string& path() const { return path_; }

  // Takes over another reader's error.
  void Adopt(const absl::Status& status) {
    if (status_.ok()) status_ = status;
  }

 private:
  const json::object& object_;
  std::string path_;
  std::string prefix_;
  absl::Status status_;
};

// A list with one word per layer, each of which must be in `words`; the result holds indices into
// it.
std::vector<size_t> ReadWordPerLayer(FieldReader& reader, std::string_view key, int64_t layers,
                                     const std::vector<std::string_view>& words) {
  const std::string expected = Cat("a list of ", layers, " of \"", Join(words, "\", \""), "\"");
  std::vector<size_t> result;
  const json::value* value = reader.Find(key);
  if (value == nullptr || !value->is_array()) {
    reader.Fail(key, value == nullptr ? "missing" : DescribeJson(*value), expected);
    return result;
  }
  const json::array& list = value->get_array();
  if (static_cast<int64_t>(list.size()) != layers) {
    reader.Fail(key, Cat("a list of ", list.size()), Cat(layers, " entries (num_hidden_layers)"));
    return result;
  }
  for (size_t i = 0; i < list.size(); ++i) {
    size_t index = words.size();
    if (list[i].is_string()) {
      const std::string_view word(list[i].get_string().data(), list[i].get_string().size());
      index = std::find(words.begin(), words.end(), word) - words.begin();
    }
    if (index == words.size()) {
      reader.Fail(Cat(key, "[", i, "]"), DescribeJson(list[i]),
                  Cat("one of \"", Join(words, "\", \""), "\""));
      return result;
    }
    result.push_back(index);
  }
  return result;
}

void ReadAttention(FieldReader& text, FieldReader& linear, ModelConfig& config) {
  config.kda_heads = linear.Dim("num_heads");
  config.kda_head_dim = linear.Dim("head_dim");
  config.kda_conv_kernel = linear.Int("short_conv_kernel_size", 2, 16, "an integer from 2 to 16");
  config.kda_gate_lower_bound =
      linear.Float("gate_lower_bound", -80.0, -1e-6, "a negative number not below -80");
  if (linear.has("safe_gate")) linear.MustBe("safe_gate", true, false);

  const std::vector<size_t> kinds =
      ReadWordPerLayer(text, "layer_types", config.layers,
                       {"linear_attention", "deepseek_sparse_attention", "full_attention"});
  for (size_t kind : kinds) {
    config.attention.push_back(kind == 0 ? AttentionKind::kKda : AttentionKind::kDsa);
  }
  if (!text.status().ok()) return;

  // The 0-based lists repeat layer_types; a list that says something else means that one of the two
  // was written under another convention.
  const auto check_list = [&](std::string_view key, AttentionKind kind) {
    const auto list = linear.IntList(key, "a list of layer indices");
    if (!list) return;
    std::vector<int64_t> expected;
    for (int64_t i = 0; i < config.layers; ++i) {
      if (config.attention[i] == kind) expected.push_back(i);
    }
    if (*list != expected) {
      linear.Fail(key, Cat("[", Join(*list, ","), "]"),
                  Cat("[", Join(expected, ","), "] (0-based) as text_config.layer_types says"));
    }
  };
  check_list("kda_layers", AttentionKind::kKda);
  check_list("full_attn_layers", AttentionKind::kDsa);

  config.mla_heads = text.Dim("num_attention_heads");
  if (text.has("num_key_value_heads")) {
    text.MustBe("num_key_value_heads", config.mla_heads, false);
  }
  config.q_lora_rank = text.Dim("q_lora_rank");
  config.kv_lora_rank = text.Dim("kv_lora_rank");
  config.qk_nope_head_dim = text.Dim("qk_nope_head_dim");
  text.MustBe("qk_rope_head_dim", 0, true);
  if (text.has("qk_head_dim")) text.MustBe("qk_head_dim", config.qk_nope_head_dim, false);
  config.v_head_dim = text.Dim("v_head_dim");
  text.MustBe("mla_use_nope", true, false);
  text.MustBe("attention_bias", false, false);

  config.index_heads = text.Dim("index_n_heads");
  config.index_head_dim = text.Dim("index_head_dim");
  config.index_topk = text.Dim("index_topk");
  // Libraries disagree about the default, so an absent key cannot be filled in.
  config.index_kpool = text.Int("index_kpool", 1, 256, "an integer from 1 to 256");
  if (text.status().ok() && config.index_topk % config.index_kpool != 0) {
    text.Fail("index_topk", Cat(config.index_topk),
              Cat("a multiple of index_kpool, ", config.index_kpool));
  }
  if (text.status().ok() && kTokensPerPage % config.index_kpool != 0) {
    text.Fail("index_kpool", Cat(config.index_kpool),
              Cat("a divisor of ", kTokensPerPage, ", the tokens of a page"));
  }
  text.MustBe("index_kpool_compress", true, false);
  text.MustBe("index_kpool_always_select_tail", true, false);
  if (text.has("indexer_types")) {
    ReadWordPerLayer(text, "indexer_types", config.layers, {"full"});
  }
  if (const json::value* share = text.Find("index_share_for_mtp_iteration")) {
    if (!share->is_bool()) {
      text.Fail("index_share_for_mtp_iteration", DescribeJson(*share), "true or false");
    } else {
      config.index_share_for_mtp = share->get_bool();
    }
  }
}

void ReadMlps(FieldReader& text, ModelConfig& config) {
  if (text.has("mlp_layer_types")) {
    for (size_t kind :
         ReadWordPerLayer(text, "mlp_layer_types", config.layers, {"dense", "sparse"})) {
      config.mlp.push_back(kind == 0 ? MlpKind::kDense : MlpKind::kMoe);
    }
  } else {
    const int64_t dense =
        text.Int("first_k_dense_replace", 0, config.layers, "0 to num_hidden_layers");
    for (int64_t i = 0; i < config.layers; ++i) {
      config.mlp.push_back(i < dense ? MlpKind::kDense : MlpKind::kMoe);
    }
  }
  if (!text.status().ok()) return;
  if (config.CountLayers(MlpKind::kDense) > 0) config.intermediate = text.Dim("intermediate_size");
  if (!config.has_moe()) return;

  config.moe_intermediate = text.Dim("moe_intermediate_size");
  config.experts = text.Dim("n_routed_experts");
  config.experts_per_token = text.Int(
      "num_experts_per_tok", 1, std::max<int64_t>(config.experts, 1), "1 to n_routed_experts");
  config.shared_experts = text.Int("n_shared_experts", 1, 64, "an integer from 1 to 64");
  text.MustBe("n_group", 1, false);
  text.MustBe("topk_group", 1, false);
  text.MustBe("scoring_func", "sigmoid", true);
  text.MustBe("topk_method", "noaux_tc", false);
  text.MustBe("norm_topk_prob", true, true);
  config.routed_scaling_factor =
      text.Float("routed_scaling_factor", 1e-6, 1e6, "a positive number");
}

void ReadHyperConnections(FieldReader& text, ModelConfig& config) {
  text.MustBe("mhc", true, false);
  // The kernels keep one token's mixing matrix in fixed arrays.
  config.hc_mult = text.Int("hc_mult", 1, 8, "an integer from 1 to 8");
  config.hc_eps = text.Float("hc_eps", 0.0, 1.0, "a number from 0 to 1");
  config.hc_sinkhorn_iters = text.Int("hc_sinkhorn_iters", 1, 1000, "an integer from 1 to 1000");
}

std::optional<Exl3TileOrder> TileOrderByName(std::string_view name) {
  if (name == "sm80") return Exl3TileOrder::kSm80;
  if (name == "colmajor" || name == "sm70_colmajor") return Exl3TileOrder::kColumnMajor;
  return std::nullopt;
}

std::optional<Exl3Codebook> CodebookByName(std::string_view name) {
  if (name == "3inst") return Exl3Codebook::k3Inst;
  if (name == "mcg") return Exl3Codebook::kMcg;
  if (name == "mul1") return Exl3Codebook::kMul1;
  return std::nullopt;
}

void ReadExl3(FieldReader& quant, int64_t max_layer, QuantizationConfig& config) {
  if (quant.has("codebook")) {
    const std::string name = quant.Text("codebook", "\"mcg\", \"mul1\" or \"3inst\"");
    config.codebook = CodebookByName(name);
    if (!config.codebook) {
      quant.Fail("codebook", Cat("\"", name, "\""), "\"mcg\", \"mul1\" or \"3inst\"");
    }
  }
  if (quant.has("tile_order")) {
    constexpr std::string_view kExpected =
        "\"sm80\", \"colmajor\" or \"sm70_colmajor\" (an unknown order cannot be decoded)";
    const std::string name = quant.Text("tile_order", kExpected);
    config.tile_order = TileOrderByName(name);
    if (!config.tile_order) quant.Fail("tile_order", Cat("\"", name, "\""), kExpected);
  }
  if (quant.has("codebook_overrides")) {
    quant.Fail("codebook_overrides", "present", "one codebook for all tensors");
  }
  if (const json::value* bits = quant.Find("bits")) {
    if (const auto number = FieldReader::AsInt(*bits)) {
      config.bits = quant.Int("bits", 1, 8, "1 to 8 bits per weight");
    } else if (!bits->is_number() && !bits->is_string()) {
      quant.Fail("bits", DescribeJson(*bits), "an integer, an average or a word");
    }
  }
  if (const json::value* map = quant.Find("layer_bits")) {
    if (!map->is_object()) {
      quant.Fail("layer_bits", DescribeJson(*map), "an object of layer to bits");
      return;
    }
    for (const auto& item : map->get_object()) {
      const std::string key(item.key());
      const bool digits =
          !key.empty() && key.size() < 6 &&
          std::all_of(key.begin(), key.end(), [](char c) { return c >= '0' && c <= '9'; });
      if (!digits || std::stoll(key) > max_layer) {
        quant.Fail("layer_bits", Cat("given for layer \"", key, "\""),
                   Cat("layers from 0 to ", max_layer));
        return;
      }
      const auto bits = FieldReader::AsInt(item.value());
      if (!bits || *bits < 1 || *bits > 8) {
        quant.Fail(Cat("layer_bits[", key, "]"), DescribeJson(item.value()), "1 to 8");
        return;
      }
      config.layer_bits[static_cast<int>(std::stoll(key))] = static_cast<int>(*bits);
    }
  }
  const auto read_allowed = [&](FieldReader& reader, std::string_view key) {
    const auto list = reader.IntList(key, "a list of integers from 1 to 8");
    if (!list) return;
    for (int64_t bits : *list) {
      if (bits < 1 || bits > 8) {
        reader.Fail(key, Cat("a list with ", bits), "integers from 1 to 8");
        return;
      }
      config.allowed_bits.push_back(static_cast<int>(bits));
    }
  };
  read_allowed(quant, "allowed_bits");

  const json::value* scope = quant.Find("scope");
  config.bits_are_exact =
      config.bits && config.allowed_bits.empty() &&
      (!config.layer_bits.empty() ||
       (scope != nullptr && *scope == json::value("glm53_routed_experts_only")));

  // A block that some converters write in place of `scope`: bits vary per tensor within k_values.
  const json::value* routed = quant.Find("r7_routed_experts");
  if (routed == nullptr || !quant.status().ok()) return;
  if (!routed->is_object()) {
    quant.Fail("r7_routed_experts", DescribeJson(*routed), "an object");
    return;
  }
  config.bits_are_exact = false;
  FieldReader block(routed->get_object(), quant.path(), "quantization_config.r7_routed_experts.");
  for (std::string_view feature : {"requires_loader_feature", "bit_map_manifests", "feature"}) {
    if (block.has(feature))
      block.Fail(feature, "present", "none: such checkpoints are not supported");
  }
  block.IntList("moe_layers", "a list of layer indices");
  read_allowed(block, "k_values");
  if (block.has("codebook")) {
    const std::string name = block.Text("codebook", "\"mcg\", \"mul1\" or \"3inst\"");
    const std::optional<Exl3Codebook> codebook = CodebookByName(name);
    if (!codebook || (config.codebook && *config.codebook != *codebook)) {
      block.Fail("codebook", Cat("\"", name, "\""),
                 config.codebook ? ToString(*config.codebook) : "\"mcg\", \"mul1\" or \"3inst\"");
    }
    config.codebook = codebook;
  }
  if (!block.status().ok()) quant.Adopt(block.status());
}

absl::Status ReadQuantization(const json::object& root, const std::string& path,
                              ModelConfig& config) {
  const json::value* value = root.if_contains("quantization_config");
  if (value == nullptr || value->is_null()) return absl::OkStatus();
  if (!value->is_object()) {
    return absl::InvalidArgumentError(
        Cat(path, ": quantization_config is ", DescribeJson(*value), ", expected an object"));
  }
  FieldReader quant(value->get_object(), path, "quantization_config.");
  constexpr std::string_view kMethods = "\"fp8\" or \"exl3\"";
  const std::string method = quant.Text("quant_method", kMethods);
  if (method == "fp8") {
    config.quantization.method = QuantMethod::kFp8;
    if (quant.has("fmt")) quant.MustBe("fmt", "e4m3", false);
    if (const auto block = quant.IntList("weight_block_size", "two block sizes")) {
      if (block->size() != 2 || (*block)[0] < 1 || (*block)[1] < 1 || (*block)[0] > kMaxDimension ||
          (*block)[1] > kMaxDimension) {
        quant.Fail("weight_block_size", Cat("[", Join(*block, ","), "]"),
                   "two positive sizes such as [128,128]");
      } else {
        config.quantization.block_rows = (*block)[0];
        config.quantization.block_cols = (*block)[1];
      }
    }
  } else if (method == "exl3") {
    config.quantization.method = QuantMethod::kExl3;
    ReadExl3(quant, config.layers - 1 + config.mtp_layers, config.quantization);
  } else {
    quant.Fail("quant_method", Cat("\"", method, "\""), kMethods);
  }
  return quant.status();
}

}  // namespace

std::string_view ToString(AttentionKind kind) {
  return kind == AttentionKind::kKda ? "kda" : "dsa";
}
std::string_view ToString(MlpKind kind) {
  return kind == MlpKind::kDense ? "dense" : "moe";
}
std::string_view ToString(QuantMethod method) {
  switch (method) {
    case QuantMethod::kNone:
      return "none";
    case QuantMethod::kFp8:
      return "fp8";
    case QuantMethod::kExl3:
      return "exl3";
  }
  return "?";
}
std::string_view ToString(Exl3Codebook codebook) {
  switch (codebook) {
    case Exl3Codebook::k3Inst:
      return "3inst";
    case Exl3Codebook::kMcg:
      return "mcg";
    case Exl3Codebook::kMul1:
      return "mul1";
  }
  return "?";
}
std::string_view ToString(Exl3TileOrder order) {
  return order == Exl3TileOrder::kSm80 ? "sm80" : "colmajor";
}

int64_t ModelConfig::CountLayers(AttentionKind kind) const {
  return std::count(attention.begin(), attention.end(), kind);
}
int64_t ModelConfig::CountLayers(MlpKind kind) const {
  return std::count(mlp.begin(), mlp.end(), kind);
}

absl::StatusOr<ModelConfig> ParseModelConfig(std::string_view text, const std::string& path) {
  absl::StatusOr<json::value> parsed = ParseJsonText(text, path);
  if (!parsed.ok()) return parsed.status();
  if (!parsed->is_object()) {
    return absl::InvalidArgumentError(Cat(path, ": expected a JSON object"));
  }
  const json::object& root = parsed->get_object();
  FieldReader top(root, path, "");
  top.MustBe("model_type", "glm5_next", true);
  const json::value* text_value = root.if_contains("text_config");
  if (text_value == nullptr || !text_value->is_object()) {
    top.Fail("text_config", text_value == nullptr ? "missing" : DescribeJson(*text_value),
             "an object");
  }
  if (!top.status().ok()) return top.status();

  ModelConfig config;
  config.path = path;
  const json::object& text_object = text_value->get_object();
  FieldReader reader(text_object, path, "text_config.");
  reader.MustBe("model_type", "glm5_next_text", false);
  reader.MustBe("tie_word_embeddings", false, false);
  reader.MustBe("hidden_act", "silu", false);
  config.vocab_size = reader.Dim("vocab_size");
  config.hidden = reader.Dim("hidden_size");
  config.layers = reader.Int("num_hidden_layers", 1, 1024, "an integer from 1 to 1024");
  config.mtp_layers = reader.has("num_nextn_predict_layers")
                          ? reader.Int("num_nextn_predict_layers", 0, 1, "0 or 1")
                          : 0;
  config.max_position_embeddings =
      reader.Int("max_position_embeddings", 1, int64_t{1} << 31, "a positive integer");
  config.rms_norm_eps = reader.Float("rms_norm_eps", 0.0, 1.0, "a number from 0 to 1");
  config.swiglu_limit = reader.Float("swiglu_limit", 1e-6, 1e30, "a positive number");

  const json::value* linear_value = text_object.if_contains("linear_attn_config");
  if (linear_value == nullptr || !linear_value->is_object()) {
    reader.Fail("linear_attn_config",
                linear_value == nullptr ? "missing" : DescribeJson(*linear_value), "an object");
  }
  if (!reader.status().ok()) return reader.status();
  FieldReader linear(linear_value->get_object(), path, "text_config.linear_attn_config.");
  ReadAttention(reader, linear, config);
  if (!linear.status().ok()) return linear.status();
  if (!reader.status().ok()) return reader.status();
  ReadMlps(reader, config);
  ReadHyperConnections(reader, config);
  if (!reader.status().ok()) return reader.status();

  if (const json::value* vision = root.if_contains("vision_config");
      vision != nullptr && vision->is_object()) {
    FieldReader fields(vision->get_object(), path, "vision_config.");
    config.vision = VisionConfig{fields.Int("depth", 1, 1024, "an integer from 1 to 1024")};
    if (!fields.status().ok()) return fields.status();
  }
  if (absl::Status status = ReadQuantization(root, path, config); !status.ok()) return status;
  return config;
}

absl::StatusOr<ModelConfig> ReadModelConfig(const std::string& dir) {
  const std::string path = dir + "/config.json";
  absl::StatusOr<std::string> text = ReadTextFile(path, kMaxConfigBytes);
  if (!text.ok()) {
    return absl::Status(
        text.status().code(),
        Cat(text.status().message(), "; expected a model folder that holds config.json"));
  }
  return ParseModelConfig(*text, path);
}

absl::Status CheckTensorParallel(const ModelConfig& config, int tp) {
  struct Dimension {
    std::string_view name;
    int64_t size;
  };
  std::vector<Dimension> dimensions = {
      {"text_config.vocab_size", config.vocab_size},
      {"text_config.num_attention_heads", config.mla_heads},
      {"text_config.linear_attn_config.num_heads", config.kda_heads},
  };
  if (config.intermediate > 0) {
    dimensions.push_back({"text_config.intermediate_size", config.intermediate});
  }
  if (config.has_moe()) {
    dimensions.push_back({"text_config.moe_intermediate_size", config.moe_intermediate});
  }
  const auto divides = [&](int ranks) {
    return std::all_of(dimensions.begin(), dimensions.end(),
                       [&](const Dimension& d) { return d.size % ranks == 0; });
  };
  if (tp < 1 || tp > 64) {
    return absl::InvalidArgumentError(Cat("tensor parallel size ", tp, ", expected 1 to 64"));
  }
  if (divides(tp)) return absl::OkStatus();
  std::vector<int> good;
  for (int ranks = 1; ranks <= 8; ++ranks) {
    if (divides(ranks)) good.push_back(ranks);
  }
  for (const Dimension& d : dimensions) {
    if (d.size % tp == 0) continue;
    return absl::InvalidArgumentError(Cat("tensor parallel size ", tp, " does not divide ", d.name,
                                          " = ", d.size, " in ", config.path,
                                          "; sizes that work: ", Join(good, ", ")));
  }
  return absl::OkStatus();
}

}  // namespace quartet
