#include "shard_worker/checkpoint/synthetic.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <deque>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "shard_worker/checkpoint/message.h"

namespace quartet {
namespace {

// Standard deviation of a codebook's values.
constexpr double kMcgDeviation = 1.24411;
constexpr double k3InstDeviation = 1.24371;
constexpr double kMul1Deviation = 1.00031;
// Random values repeat after this many. Odd, so that rows of a matrix do not repeat.
constexpr size_t kPeriod = (1u << 23) + 9;

double Deviation(Exl3Codebook codebook) {
  switch (codebook) {
    case Exl3Codebook::kMcg:
      return kMcgDeviation;
    case Exl3Codebook::kMul1:
      return kMul1Deviation;
    case Exl3Codebook::k3Inst:
      return k3InstDeviation;
  }
  return 1;
}

// SplitMix64: a good generator of any number of independent values from a counter.
uint64_t Mix(uint64_t z) {
  z += 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

// To nearest even; |value| < 65504.
uint16_t ToHalf(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint16_t>(bits >> 16 & 0x8000);
  const uint32_t magnitude = bits & 0x7FFFFFFF;
  if (magnitude < 0x38800000) {
    return static_cast<uint16_t>(
        sign | static_cast<uint16_t>(std::nearbyint(std::bit_cast<float>(magnitude) * 0x1p24f)));
  }
  return static_cast<uint16_t>(sign |
                               ((magnitude + 0xFFF + (magnitude >> 13 & 1) - 0x38000000) >> 13));
}

// Sums of four uniform values: near enough to a normal distribution of this deviation.
float Normal(uint64_t counter, double deviation) {
  const uint64_t bits = Mix(counter);
  double sum = 0;
  for (int i = 0; i < 4; ++i) sum += static_cast<double>(bits >> (16 * i) & 0xFFFF) / 65536 - 0.5;
  return static_cast<float>(sum * std::sqrt(3.0) * deviation);
}

// What stands in a tensor.
struct Fill {
  enum Kind { kConstant, kNormal, kSigns, kBits } kind = kConstant;
  double scale = 0;  // value, deviation, magnitude
  auto operator<=>(const Fill&) const = default;
};

// Bytes that all tensors with the same dtype and fill share.
class Banks {
 public:
  const std::byte* Get(Dtype dtype, const Fill& fill, int64_t elements) {
    std::vector<std::byte>& bank = banks_[{dtype, fill}];
    // Pointers into a bank must stay, so sizes are known before the first one is filled.
    if (bank.empty()) bank = Make(dtype, fill, std::max(elements, largest_[{dtype, fill}]));
    return bank.data();
  }
  void Announce(Dtype dtype, const Fill& fill, int64_t elements) {
    int64_t& largest = largest_[{dtype, fill}];
    largest = std::max(largest, elements);
  }

 private:
  static std::vector<std::byte> Make(Dtype dtype, const Fill& fill, int64_t elements) {
    const size_t size = DtypeSize(dtype);
    const size_t period = std::min<size_t>(elements, kPeriod);
    std::vector<std::byte> bank(static_cast<size_t>(elements) * size);
    for (size_t i = 0; i < period; ++i) {
      std::byte* out = bank.data() + i * size;
      if (fill.kind == Fill::kBits) {
        const uint64_t bits = Mix(i);
        std::memcpy(out, &bits, size);
        continue;
      }
      float value = static_cast<float>(fill.scale);
      if (fill.kind == Fill::kNormal) value = Normal(i, fill.scale);
      if (fill.kind == Fill::kSigns && (Mix(i) & 1) != 0) value = -value;
      if (dtype == Dtype::kF32) {
        std::memcpy(out, &value, sizeof(value));
      } else {
        const uint16_t half = ToHalf(value);
        std::memcpy(out, &half, sizeof(half));
      }
    }
    for (size_t at = period * size; at < bank.size();) {
      const size_t piece = std::min(at, bank.size() - at);
      std::memcpy(bank.data() + at, bank.data(), piece);
      at += piece;
    }
    return bank;
  }

  std::map<std::pair<Dtype, Fill>, int64_t> largest_;
  std::map<std::pair<Dtype, Fill>, std::vector<std::byte>> banks_;
};

class Builder {
 public:
  explicit Builder(const ModelConfig& config) : c_(config) {}

  void Model() {
    Dense("lm_head.weight", c_.vocab_size, c_.hidden);
    Add(kRoot + "embed_tokens.weight", Dtype::kF16, {c_.vocab_size, c_.hidden},
        {Fill::kNormal, 1.0});
    Norm(kRoot + "norm.weight", c_.hidden);
    for (int64_t i = 0; i < c_.layers; ++i) Layer(i);
    if (c_.mtp_layers > 0) Mtp();
  }

  struct Tensor {
    std::string name;
    Dtype dtype;
    std::vector<int64_t> shape;
    Fill fill;
  };
  const std::vector<Tensor>& tensors() const { return tensors_; }

 private:
  inline static const std::string kRoot = "model.language_model.";

  void Add(std::string name, Dtype dtype, std::vector<int64_t> shape, Fill fill) {
    tensors_.push_back({std::move(name), dtype, std::move(shape), fill});
  }
  void Norm(const std::string& name, int64_t width) {
    Add(name, Dtype::kF16, {width}, {Fill::kConstant, 1.0});
  }
  void Zeros(const std::string& name, std::vector<int64_t> shape, Dtype dtype = Dtype::kF32) {
    Add(name, dtype, std::move(shape), {Fill::kConstant, 0.0});
  }
  void Dense(const std::string& name, int64_t out, int64_t in) {
    Add(name, Dtype::kF16, {out, in}, {Fill::kNormal, 1 / std::sqrt(static_cast<double>(in))});
  }

  void Layer(int64_t i) {
    const std::string layer = Cat(kRoot, "layers.", i, ".");
    for (const std::string site : {"attn", "ffn"}) {
      Dense(layer + "hc_" + site + "_fn", c_.hc_map_rows(), c_.hc_mult * c_.hidden);
      Zeros(layer + "hc_" + site + "_base", {c_.hc_map_rows()});
      Add(layer + "hc_" + site + "_scale", Dtype::kF32, {3}, {Fill::kConstant, 1.0});
    }
    Norm(layer + "input_layernorm.weight", c_.hidden);
    Norm(layer + "post_attention_layernorm.weight", c_.hidden);
    if (c_.attention[i] == AttentionKind::kKda) {
      Kda(layer + "self_attn.");
    } else {
      Dsa(layer + "self_attn.");
    }
    if (c_.mlp[i] == MlpKind::kDense) {
      Mlp(layer + "mlp.", c_.intermediate);
    } else {
      Moe(layer + "mlp.", i);
    }
  }

  void Kda(const std::string& p) {
    const int64_t inner = c_.kda_inner();
    for (const std::string part : {"q", "k", "v"}) {
      Dense(p + part + "_proj.weight", inner, c_.hidden);
      Add(p + part + "_conv1d.weight", Dtype::kF16, {inner, 1, c_.kda_conv_kernel},
          {Fill::kNormal, 1 / std::sqrt(static_cast<double>(c_.kda_conv_kernel))});
    }
    for (const std::string part : {"f", "g"}) {
      Dense(p + part + "_a_proj.weight", c_.kda_head_dim, c_.hidden);
      Dense(p + part + "_b_proj.weight", inner, c_.kda_head_dim);
    }
    Dense(p + "b_proj.weight", c_.kda_heads, c_.hidden);
    Zeros(p + "A_log", {c_.kda_heads});
    Zeros(p + "dt_bias", {inner});
    Norm(p + "o_norm.weight", c_.kda_head_dim);
    Dense(p + "o_proj.weight", c_.hidden, inner);
  }

  void Dsa(const std::string& p) {
    Dense(p + "q_a_proj.weight", c_.q_lora_rank, c_.hidden);
    Norm(p + "q_a_layernorm.weight", c_.q_lora_rank);
    Dense(p + "q_b_proj.weight", c_.mla_heads * c_.qk_nope_head_dim, c_.q_lora_rank);
    Dense(p + "kv_a_proj_with_mqa.weight", c_.kv_lora_rank, c_.hidden);
    Norm(p + "kv_a_layernorm.weight", c_.kv_lora_rank);
    Dense(p + "kv_b_proj.weight", c_.mla_heads * (c_.qk_nope_head_dim + c_.v_head_dim),
          c_.kv_lora_rank);
    Dense(p + "o_proj.weight", c_.hidden, c_.mla_heads * c_.v_head_dim);
    const std::string x = p + "indexer.";
    Dense(x + "wq_b.weight", c_.index_heads * c_.index_head_dim, c_.q_lora_rank);
    Dense(x + "wk.weight", c_.index_head_dim, c_.hidden);
    Dense(x + "weights_proj.weight", c_.index_heads, c_.hidden);
    Norm(x + "k_norm.weight", c_.index_head_dim);
    Zeros(x + "k_norm.bias", {c_.index_head_dim}, Dtype::kF16);
    Zeros(x + "index_kpool_compress_ape", {c_.index_kpool, c_.index_head_dim}, Dtype::kF16);
    Dense(x + "index_kpool_compress_gate", c_.index_head_dim, c_.hidden);
  }

  void Mlp(const std::string& p, int64_t inner) {
    Dense(p + "gate_proj.weight", inner, c_.hidden);
    Dense(p + "up_proj.weight", inner, c_.hidden);
    Dense(p + "down_proj.weight", c_.hidden, inner);
  }

  void Moe(const std::string& p, int64_t layer) {
    Dense(p + "gate.weight", c_.experts, c_.hidden);
    Zeros(p + "gate.e_score_correction_bias", {c_.experts});
    Mlp(p + "shared_experts.", c_.shared_intermediate());
    const auto own = c_.quantization.layer_bits.find(static_cast<int>(layer));
    const int bits = own != c_.quantization.layer_bits.end() ? own->second : *c_.quantization.bits;
    Exl3(p + "experts.exl3_gate", c_.hidden, c_.moe_intermediate, bits);
    Exl3(p + "experts.exl3_up", c_.hidden, c_.moe_intermediate, bits);
    Exl3(p + "experts.exl3_down", c_.moe_intermediate, c_.hidden, bits);
  }

  void Exl3(const std::string& p, int64_t in, int64_t out, int bits) {
    const double deviation = Deviation(*c_.quantization.codebook);
    Add(p + "_trellis", Dtype::kI16, {c_.experts, in / 16, out / 16, 16 * bits}, {Fill::kBits, 0});
    Add(p + "_suh", Dtype::kF16, {c_.experts, in},
        {Fill::kSigns, 1 / (deviation * std::sqrt(static_cast<double>(in)))});
    Add(p + "_svh", Dtype::kF16, {c_.experts, out}, {Fill::kSigns, 1.0});
  }

  void Mtp() {
    const std::string layer = Cat(kRoot, "layers.", c_.layers, ".");
    for (const std::string norm :
         {"enorm", "hnorm", "input_layernorm", "post_attention_layernorm", "shared_head.norm"}) {
      Norm(layer + norm + ".weight", c_.hidden);
    }
    Dense(layer + "eh_proj.weight", c_.hidden, 2 * c_.hidden);
    Dsa(layer + "self_attn.");
    Moe(layer + "mlp.", c_.layers);
  }

  const ModelConfig& c_;
  std::vector<Tensor> tensors_;
};

int64_t Elements(const std::vector<int64_t>& shape) {
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  return count;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Checkpoint>> MakeSyntheticCheckpoint(const ModelConfig& config,
                                                                    const std::string& dir) {
  const QuantizationConfig& quant = config.quantization;
  if (quant.method != QuantMethod::kExl3 || !quant.codebook || !quant.tile_order || !quant.bits) {
    return absl::InvalidArgumentError(
        Cat(config.path, ": --synthetic-weights needs quantization_config with quant_method exl3, ",
            "bits (an integer), codebook and tile_order"));
  }
  Builder builder(config);
  builder.Model();
  const auto banks = std::make_shared<Banks>();
  for (const Builder::Tensor& t : builder.tensors()) {
    banks->Announce(t.dtype, t.fill, Elements(t.shape));
  }
  std::deque<TensorView> views;
  for (const Builder::Tensor& t : builder.tensors()) {
    TensorView& view = views.emplace_back();
    view.name = t.name;
    view.dtype = t.dtype;
    view.shape = t.shape;
    view.bytes = Elements(t.shape) * DtypeSize(t.dtype);
    view.data = banks->Get(t.dtype, t.fill, Elements(t.shape));
    view.file = "synthetic weights";
  }
  return Checkpoint::FromMemory(dir, std::move(views), banks);
}

}  // namespace quartet
