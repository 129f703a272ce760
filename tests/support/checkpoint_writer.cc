#include "tests/support/checkpoint_writer.h"

#include <stdlib.h>

#include <algorithm>
#include <boost/json/array.hpp>
#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "shard_worker/checkpoint/json_text.h"
#include "shard_worker/checkpoint/weights.h"
#include "tests/support/exl3_scalar.h"

namespace quartet::testing {
namespace {

namespace json = boost::json;

template <typename T>
void Append(std::string& bytes, T value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

template <typename T>
T Load(const std::string& bytes, int64_t index) {
  T value;
  std::memcpy(&value, bytes.data() + index * sizeof(T), sizeof(T));
  return value;
}

int64_t Count(const std::vector<int64_t>& shape) {
  int64_t count = 1;
  for (int64_t size : shape) count *= size;
  return count;
}

bool IsFloat(Dtype dtype) {
  return dtype == Dtype::kF32 || dtype == Dtype::kF16 || dtype == Dtype::kBf16 ||
         dtype == Dtype::kF8E4M3;
}

std::vector<float> Values(const StoredTensor& tensor) {
  std::vector<float> values(Count(tensor.shape));
  for (int64_t i = 0; i < static_cast<int64_t>(values.size()); ++i) {
    switch (tensor.dtype) {
      case Dtype::kF16:
        values[i] = HalfToFloat(Load<uint16_t>(tensor.bytes, i));
        break;
      case Dtype::kBf16:
        values[i] = Bf16ToFloat(Load<uint16_t>(tensor.bytes, i));
        break;
      case Dtype::kF8E4M3:
        values[i] = Fp8E4m3ToFloat(Load<uint8_t>(tensor.bytes, i));
        break;
      default:
        values[i] = Load<float>(tensor.bytes, i);
    }
  }
  return values;
}

StoredTensor FloatTensor(std::string name, std::vector<int64_t> shape,
                         const std::vector<float>& values) {
  StoredTensor tensor{std::move(name), Dtype::kF32, std::move(shape), {}};
  tensor.bytes.assign(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
  return tensor;
}

StoredTensor HalfTensor(std::string name, std::vector<int64_t> shape,
                        const std::vector<float>& values) {
  StoredTensor tensor{std::move(name), Dtype::kF16, std::move(shape), {}};
  for (float value : values) Append(tensor.bytes, FloatToHalf(value));
  return tensor;
}

bool EndsWithAny(std::string_view name, std::initializer_list<std::string_view> endings) {
  return std::any_of(endings.begin(), endings.end(),
                     [&](std::string_view ending) { return name.ends_with(ending); });
}

absl::Status WriteFile(const std::string& path, std::string_view bytes) {
  std::filesystem::remove(path);
  std::ofstream stream(path, std::ios::binary);
  stream.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  stream.close();
  return stream ? absl::OkStatus() : absl::UnavailableError(absl::StrCat(path, ": not written"));
}

std::string Encode(const std::vector<const StoredTensor*>& tensors) {
  json::object header;
  int64_t offset = 0;
  for (const StoredTensor* tensor : tensors) {
    const int64_t end = offset + static_cast<int64_t>(tensor->bytes.size());
    const std::string_view dtype = ToString(tensor->dtype);
    json::array shape;
    for (int64_t size : tensor->shape) shape.push_back(size);
    json::object entry;
    entry["dtype"] = json::string_view(dtype.data(), dtype.size());
    entry["shape"] = std::move(shape);
    entry["data_offsets"] = json::array{offset, end};
    header[tensor->name] = std::move(entry);
    offset = end;
  }
  std::string text = json::serialize(header);
  text.resize((text.size() + 7) / 8 * 8, ' ');
  std::string file;
  Append(file, static_cast<uint64_t>(text.size()));
  file += text;
  for (const StoredTensor* tensor : tensors) file += tensor->bytes;
  return file;
}

}  // namespace

uint16_t FloatToHalf(float value) {
  const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  const double magnitude = std::fabs(static_cast<double>(value));
  if (std::isnan(value)) return sign | 0x7E00;
  if (magnitude == 0.0) return sign;
  if (magnitude >= 65520.0) return sign | 0x7C00;
  // Below 2^-14 values are multiples of 2^-24; above, 11 significant bits.
  int exponent = 0;
  std::frexp(magnitude, &exponent);
  exponent = std::max(exponent - 1, -14);
  const int64_t steps = std::llrint(std::ldexp(magnitude, 10 - exponent));
  // `steps` counts units of the last place; reaching 2048 carries into the exponent by itself.
  return static_cast<uint16_t>(sign + ((exponent + 14) << 10) + steps);
}

uint8_t FloatToFp8E4m3(float value) {
  const uint8_t sign = std::signbit(value) ? 0x80 : 0;
  const double magnitude = std::fabs(static_cast<double>(value));
  if (std::isnan(value)) return sign | 0x7F;
  if (magnitude == 0.0) return sign;
  if (magnitude >= 448.0) return sign | 0x7E;
  int exponent = 0;
  std::frexp(magnitude, &exponent);
  exponent = std::max(exponent - 1, -6);
  const int64_t steps = std::llrint(std::ldexp(magnitude, 3 - exponent));
  return static_cast<uint8_t>(sign + ((exponent + 6) << 3) + steps);
}

StoredTensor* CheckpointImage::Find(std::string_view name) {
  for (StoredTensor& tensor : tensors) {
    if (tensor.name == name) return &tensor;
  }
  return nullptr;
}

StoredTensor CheckpointImage::Take(std::string_view name) {
  const auto at = std::find_if(tensors.begin(), tensors.end(),
                               [&](const StoredTensor& tensor) { return tensor.name == name; });
  StoredTensor taken = std::move(*at);
  tensors.erase(at);
  return taken;
}

ScratchFolder::ScratchFolder() {
  std::string pattern = (std::filesystem::temp_directory_path() / "quartet_XXXXXX").string();
  if (mkdtemp(pattern.data()) != nullptr) path_ = pattern;
}

ScratchFolder::~ScratchFolder() {
  std::error_code ignored;
  if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
}

absl::StatusOr<CheckpointImage> ReadImage(const std::string& dir) {
  CheckpointImage image;
  absl::StatusOr<std::string> text = ReadTextFile(dir + "/config.json", 1 << 20);
  if (!text.ok()) return text.status();
  absl::StatusOr<json::value> config = ParseJsonText(*text, dir + "/config.json");
  if (!config.ok()) return config.status();
  image.config = config->get_object();
  absl::StatusOr<std::unique_ptr<Checkpoint>> checkpoint = Checkpoint::Open(dir);
  if (!checkpoint.ok()) return checkpoint.status();
  for (const TensorView* tensor : (*checkpoint)->tensors()) {
    image.tensors.push_back(
        {tensor->name, tensor->dtype, tensor->shape,
         std::string(reinterpret_cast<const char*>(tensor->data), tensor->bytes)});
  }
  return image;
}

absl::Status WriteImage(const CheckpointImage& image, const std::string& dir, int shards) {
  absl::Status status = WriteFile(dir + "/config.json", json::serialize(image.config));
  json::object weight_map;
  for (int shard = 0; shard < shards && status.ok(); ++shard) {
    const std::string name =
        shards == 1 ? "model.safetensors"
                    : absl::StrFormat("model-%05d-of-%05d.safetensors", shard + 1, shards);
    std::vector<const StoredTensor*> part;
    for (size_t i = shard; i < image.tensors.size(); i += shards) {
      part.push_back(&image.tensors[i]);
      weight_map[image.tensors[i].name] = name;
    }
    status = WriteFile(absl::StrCat(dir, "/", name), Encode(part));
  }
  if (shards == 1 || !status.ok()) return status;
  return WriteFile(dir + "/model.safetensors.index.json",
                   json::serialize(json::object{{"metadata", json::object{}},
                                                {"weight_map", std::move(weight_map)}}));
}

CheckpointImage Widen(const CheckpointImage& image) {
  CheckpointImage result;
  result.config = image.config;
  if (json::value* quant = result.config.if_contains("quantization_config");
      quant != nullptr && quant->get_object().at("quant_method") == "fp8") {
    result.config.erase("quantization_config");
  }
  int64_t block_rows = 128;
  int64_t block_cols = 128;
  std::map<std::string, const StoredTensor*> scales;
  if (const json::value* quant = image.config.if_contains("quantization_config")) {
    if (const json::value* block = quant->get_object().if_contains("weight_block_size")) {
      block_rows = block->get_array()[0].to_number<int64_t>();
      block_cols = block->get_array()[1].to_number<int64_t>();
    }
  }
  for (const StoredTensor& tensor : image.tensors) {
    if (tensor.name.ends_with("_scale_inv")) scales[tensor.name] = &tensor;
  }
  for (const StoredTensor& tensor : image.tensors) {
    if (tensor.name.ends_with("_scale_inv")) continue;
    if (!IsFloat(tensor.dtype)) {
      result.tensors.push_back(tensor);
      continue;
    }
    std::vector<float> values = Values(tensor);
    if (tensor.dtype == Dtype::kF8E4M3) {
      const StoredTensor& scale = *scales.at(tensor.name + "_scale_inv");
      for (int64_t r = 0; r < tensor.shape[0]; ++r) {
        for (int64_t c = 0; c < tensor.shape[1]; ++c) {
          values[r * tensor.shape[1] + c] *=
              Load<float>(scale.bytes, r / block_rows * scale.shape[1] + c / block_cols);
        }
      }
    }
    result.tensors.push_back(FloatTensor(tensor.name, tensor.shape, values));
  }
  return result;
}

CheckpointImage ToHalf(const CheckpointImage& image) {
  CheckpointImage result = image;
  for (StoredTensor& tensor : result.tensors) {
    if (tensor.dtype == Dtype::kBf16)
      tensor = HalfTensor(tensor.name, tensor.shape, Values(tensor));
  }
  return result;
}

CheckpointImage ToFp8(const CheckpointImage& image, int64_t block_rows, int64_t block_cols) {
  CheckpointImage result;
  result.config = image.config;
  result.config["quantization_config"] =
      json::object{{"quant_method", "fp8"},
                   {"fmt", "e4m3"},
                   {"activation_scheme", "dynamic"},
                   {"weight_block_size", json::array{block_rows, block_cols}}};
  // The output projection has the same name in both kinds of attention; only sparse attention's is
  // stored in 8 bits, and only that has an indexer.
  std::vector<std::string> sparse;
  for (const StoredTensor& tensor : image.tensors) {
    const size_t at = tensor.name.find("indexer.wk.weight");
    if (at != std::string::npos) sparse.push_back(tensor.name.substr(0, at) + "o_proj.weight");
  }
  for (const StoredTensor& tensor : image.tensors) {
    const bool text = tensor.name.find("visual.") == std::string::npos;
    const bool eight_bits =
        text && (EndsWithAny(tensor.name, {".gate_proj.weight", ".up_proj.weight",
                                           ".down_proj.weight", ".q_a_proj.weight",
                                           ".q_b_proj.weight", ".kv_a_proj_with_mqa.weight"}) ||
                 std::find(sparse.begin(), sparse.end(), tensor.name) != sparse.end());
    if (!eight_bits) {
      result.tensors.push_back(tensor);
      continue;
    }
    const int64_t rows = tensor.shape[0];
    const int64_t cols = tensor.shape[1];
    const int64_t scale_rows = (rows + block_rows - 1) / block_rows;
    const int64_t scale_cols = (cols + block_cols - 1) / block_cols;
    const std::vector<float> values = Values(tensor);
    std::vector<float> scales(scale_rows * scale_cols, 0.0f);
    const auto scale_of = [&](int64_t r, int64_t c) -> float& {
      return scales[r / block_rows * scale_cols + c / block_cols];
    };
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < cols; ++c) {
        float& scale = scale_of(r, c);
        scale = std::max(scale, std::fabs(values[r * cols + c]) / 448.0f);
      }
    }
    StoredTensor stored{tensor.name, Dtype::kF8E4M3, tensor.shape, {}};
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < cols; ++c) {
        const float scale = scale_of(r, c);
        Append(stored.bytes, FloatToFp8E4m3(scale == 0 ? 0 : values[r * cols + c] / scale));
      }
    }
    result.tensors.push_back(std::move(stored));
    result.tensors.push_back(
        FloatTensor(tensor.name + "_scale_inv", {scale_rows, scale_cols}, scales));
  }
  return result;
}

CheckpointImage FuseKda(const CheckpointImage& image) {
  CheckpointImage result = image;
  std::vector<std::string> layers;
  for (const StoredTensor& tensor : image.tensors) {
    const size_t at = tensor.name.find("q_conv1d.weight");
    if (at != std::string::npos) layers.push_back(tensor.name.substr(0, at));
  }
  for (const std::string& prefix : layers) {
    for (const auto& [part, fused] : {std::pair{"_proj.weight", "qkv_proj.weight"},
                                      std::pair{"_conv1d.weight", "conv1d.weight"}}) {
      StoredTensor joined = result.Take(absl::StrCat(prefix, "q", part));
      for (const char* letter : {"k", "v"}) {
        const StoredTensor next = result.Take(absl::StrCat(prefix, letter, part));
        joined.shape[0] += next.shape[0];
        joined.bytes += next.bytes;
      }
      joined.name = prefix + fused;
      result.tensors.push_back(std::move(joined));
    }
  }
  return result;
}

CheckpointImage Rename(const CheckpointImage& image, std::string_view trunk_prefix,
                       std::string_view head_module) {
  constexpr std::string_view kTrunk = "model.language_model.";
  constexpr std::string_view kHead = "lm_head.";
  CheckpointImage result = image;
  for (StoredTensor& tensor : result.tensors) {
    if (tensor.name.starts_with(kTrunk)) {
      tensor.name = std::string(trunk_prefix) + tensor.name.substr(kTrunk.size());
    } else if (tensor.name.starts_with(kHead)) {
      tensor.name = std::string(head_module) + "." + tensor.name.substr(kHead.size());
    }
  }
  return result;
}

namespace {

// One random EXL3 matrix and what it means.
struct RandomExl3 {
  std::vector<uint16_t> trellis;
  std::vector<float> suh;     // [in]
  std::vector<float> svh;     // [out]
  std::vector<float> weight;  // [out, in]
};

RandomExl3 MakeExl3(const StoredTensor& original, int bits, const Exl3Options& options,
                    std::mt19937& random) {
  const int64_t out = original.shape[0];
  const int64_t in = original.shape[1];
  double squares = 0;
  for (float value : Values(original)) squares += static_cast<double>(value) * value;
  const double spread = std::sqrt(squares / static_cast<double>(in * out));
  // The codebooks' own spread is about 1.24 (mul1: 1.0); signs alone cannot scale.
  const double unit =
      options.legacy_signs ? 1.0 : spread / (options.codebook == Exl3Codebook::kMul1 ? 1.0 : 1.24);

  RandomExl3 matrix;
  matrix.trellis.resize(in / 16 * (out / 16) * 16 * bits);
  for (uint16_t& word : matrix.trellis) word = static_cast<uint16_t>(random());
  const auto side = [&](int64_t count, double scale) {
    std::vector<float> values(count);
    for (float& value : values) {
      const double magnitude =
          options.legacy_signs ? 1.0 : scale * (0.75 + 0.5 * (random() % 1024) / 1024.0);
      const double signed_value = random() % 2 == 0 ? magnitude : -magnitude;
      value = HalfToFloat(FloatToHalf(static_cast<float>(signed_value)));
    }
    return values;
  };
  matrix.suh = side(in, unit);
  matrix.svh = side(out, 1.0);
  if (!options.with_twin) return matrix;
  const std::vector<double> w = Exl3Weight(matrix.trellis, in, out, bits, options.codebook,
                                           options.tile_order, matrix.suh, matrix.svh);
  matrix.weight.resize(in * out);
  for (int64_t r = 0; r < in; ++r) {
    for (int64_t c = 0; c < out; ++c) {
      matrix.weight[c * in + r] = static_cast<float>(w[r * out + c]);
    }
  }
  return matrix;
}

StoredTensor WordTensor(std::string name, std::vector<int64_t> shape,
                        const std::vector<uint16_t>& words) {
  StoredTensor tensor{std::move(name), Dtype::kI16, std::move(shape), {}};
  tensor.bytes.assign(reinterpret_cast<const char*>(words.data()), words.size() * 2);
  return tensor;
}

StoredTensor MarkerTensor(std::string name, uint32_t value) {
  StoredTensor tensor{std::move(name), Dtype::kI32, {}, {}};
  Append(tensor.bytes, value);
  return tensor;
}

StoredTensor SignTensor(std::string name, const std::vector<float>& values) {
  std::vector<uint16_t> words(values.size() / 16);
  for (size_t i = 0; i < values.size(); ++i) {
    if (values[i] < 0) words[i / 16] |= static_cast<uint16_t>(1u << (i % 16));
  }
  return WordTensor(std::move(name), {static_cast<int64_t>(words.size())}, words);
}

void AddPerExpert(const std::string& module, const StoredTensor& original, int bits,
                  const RandomExl3& matrix, const Exl3Options& options, CheckpointImage& image) {
  const int64_t out = original.shape[0];
  const int64_t in = original.shape[1];
  image.tensors.push_back(
      WordTensor(module + ".trellis", {in / 16, out / 16, 16 * bits}, matrix.trellis));
  if (options.legacy_signs) {
    image.tensors.push_back(SignTensor(module + ".su", matrix.suh));
    image.tensors.push_back(SignTensor(module + ".sv", matrix.svh));
  } else {
    image.tensors.push_back(HalfTensor(module + ".suh", {in}, matrix.suh));
    image.tensors.push_back(HalfTensor(module + ".svh", {out}, matrix.svh));
  }
  if (options.codebook == Exl3Codebook::kMcg) {
    image.tensors.push_back(MarkerTensor(module + ".mcg", 0xCBAC1FEDu));
  } else if (options.codebook == Exl3Codebook::kMul1) {
    image.tensors.push_back(MarkerTensor(module + ".mul1", 0x83DCD12Du));
  }
  if (options.tile_order_markers) {
    image.tensors.push_back(MarkerTensor(module + ".tile_order", 0x70C0));
  }
}

}  // namespace

Exl3Pair ToExl3(const CheckpointImage& image, const Exl3Options& options) {
  std::mt19937 random(options.seed);
  Exl3Pair pair;
  pair.quantised.config = image.config;
  pair.widened.config = image.config;
  const bool stacked = options.layout == ExpertLayout::kStacked;
  json::object layer_bits;

  // Stacks grow expert by expert; `order` keeps the order of their first appearance.
  struct Stack {
    StoredTensor trellis, suh, svh;
  };
  std::vector<std::string> order;
  std::map<std::string, Stack> stacks;
  int matrices = 0;
  std::set<int> used_bits;
  for (const StoredTensor& tensor : image.tensors) {
    const size_t at = tensor.name.find(".mlp.experts.");
    if (at == std::string::npos) {
      pair.quantised.tensors.push_back(tensor);
      pair.widened.tensors.push_back(tensor);
      continue;
    }
    const std::string module = tensor.name.substr(0, tensor.name.size() - 7);  // without ".weight"
    const std::string layer = tensor.name.substr(0, at).substr(tensor.name.rfind('.', at - 1) + 1);
    const bool odd = (stacked ? std::stoi(layer) : matrices++) % 2 != 0;
    const int bits = options.bits_of ? options.bits_of(module)
                     : odd           ? options.other_bits
                                     : options.bits;
    if (stacked) layer_bits[layer] = bits;
    used_bits.insert(bits);
    const RandomExl3 matrix = MakeExl3(tensor, bits, options, random);
    if (options.with_twin) {
      pair.widened.tensors.push_back(FloatTensor(tensor.name, tensor.shape, matrix.weight));
    }
    if (!stacked) {
      AddPerExpert(module, tensor, bits, matrix, options, pair.quantised);
      continue;
    }
    const int64_t out = tensor.shape[0];
    const int64_t in = tensor.shape[1];
    const std::string part = module.substr(module.rfind('.') + 1);  // "gate_proj"
    const std::string stem = absl::StrCat(tensor.name.substr(0, at), ".mlp.experts.exl3_",
                                          part.substr(0, part.find('_')));
    if (stacks.count(stem) == 0) {
      order.push_back(stem);
      stacks[stem] =
          Stack{WordTensor(stem + "_trellis", {0, in / 16, out / 16, 16 * bits}, {}),
                HalfTensor(stem + "_suh", {0, in}, {}), HalfTensor(stem + "_svh", {0, out}, {})};
    }
    Stack& stack = stacks[stem];
    const auto grow = [](StoredTensor& target, const StoredTensor& part_tensor) {
      ++target.shape[0];
      target.bytes += part_tensor.bytes;
    };
    grow(stack.trellis, WordTensor("", {}, matrix.trellis));
    grow(stack.suh, HalfTensor("", {}, matrix.suh));
    grow(stack.svh, HalfTensor("", {}, matrix.svh));
  }
  for (const std::string& stem : order) {
    Stack& stack = stacks[stem];
    pair.quantised.tensors.push_back(std::move(stack.trellis));
    pair.quantised.tensors.push_back(std::move(stack.suh));
    pair.quantised.tensors.push_back(std::move(stack.svh));
  }

  const std::string_view codebook = ToString(options.codebook);
  json::object quant{{"quant_method", "exl3"},
                     {"codebook", json::string_view(codebook.data(), codebook.size())},
                     {"scope", "glm53_routed_experts_only"}};
  if (stacked) {
    quant["bits"] = options.bits;
    quant["layer_bits"] = std::move(layer_bits);
    quant["tile_order"] =
        options.tile_order == Exl3TileOrder::kColumnMajor ? "sm70_colmajor" : "sm80";
  } else {
    quant["bits"] = "mixed_per_tensor";
    quant["allowed_bits"] = json::array(used_bits.begin(), used_bits.end());
    if (options.tile_order == Exl3TileOrder::kColumnMajor) quant["tile_order"] = "sm70_colmajor";
  }
  pair.quantised.config["quantization_config"] = std::move(quant);
  return pair;
}

}  // namespace quartet::testing
