#include "shard_worker/checkpoint/weights.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "shard_worker/checkpoint/linear_resolver.h"
#include "shard_worker/checkpoint/message.h"

namespace quartet {
namespace {

// Moves the value out of a StatusOr expression into `target`, or returns the error.
#define QUARTET_ASSIGN(target, expression)        \
  do {                                            \
    auto assigned = (expression);                 \
    if (!assigned.ok()) return assigned.status(); \
    target = *std::move(assigned);                \
  } while (false)
#define QUARTET_RETURN_IF_ERROR(expression)                              \
  do {                                                                   \
    if (absl::Status status = (expression); !status.ok()) return status; \
  } while (false)

// Prefixes of the trunk's tensors: the original, a text-only conversion, some runtimes' order.
constexpr std::string_view kTrunkPrefixes[] = {"model.language_model.", "model.",
                                               "language_model.model."};
constexpr std::string_view kHeadModules[] = {"lm_head", "language_model.lm_head",
                                             "model.language_model.lm_head"};

bool ConsumePrefix(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return true;
}

class ModelResolver {
 public:
  ModelResolver(const Checkpoint& checkpoint, const ModelConfig& config, int tp, int rank)
      : checkpoint_(checkpoint),
        config_(config),
        tp_(tp),
        rank_(rank),
        find_(checkpoint, config, tp, rank) {}

  absl::StatusOr<ModelWeights> Resolve() {
    QUARTET_RETURN_IF_ERROR(find_.CheckWholeCheckpoint());
    QUARTET_RETURN_IF_ERROR(ChoosePrefix());
    const int64_t hidden = config_.hidden;
    ModelWeights weights;
    weights.tp = tp_;
    weights.rank = rank_;
    weights.vocab_begin = config_.vocab_size / tp_ * rank_;
    QUARTET_ASSIGN(weights.embedding,
                   find_.Dense(prefix_ + "embed_tokens.weight",
                               Spec("", config_.vocab_size, hidden, Split::kOutputs)));
    for (int64_t i = 0; i < config_.layers; ++i) {
      weights.layers.emplace_back();
      QUARTET_RETURN_IF_ERROR(Layer(i, weights.layers.back()));
    }
    QUARTET_ASSIGN(weights.final_norm, find_.Vector(prefix_ + "norm.weight", hidden, Split::kNone));
    QUARTET_ASSIGN(weights.head,
                   find_.Linear(Spec(head_, config_.vocab_size, hidden, Split::kOutputs)));
    if (config_.mtp_layers > 0) {
      weights.mtp.emplace();
      QUARTET_RETURN_IF_ERROR(Mtp(*weights.mtp));
    }
    QUARTET_RETURN_IF_ERROR(CheckNothingIsLeft());
    return weights;
  }

 private:
  static LinearSpec Spec(std::string module, int64_t out, int64_t in, Split split) {
    LinearSpec spec;
    spec.module = std::move(module);
    spec.out = out;
    spec.in = in;
    spec.split = split;
    return spec;
  }

  absl::Status ChoosePrefix() {
    const auto choose = [&](const auto& candidates, auto exists, std::string_view example,
                            std::string* chosen) -> absl::Status {
      std::vector<std::string> present;
      for (std::string_view candidate : candidates) {
        if (exists(std::string(candidate))) present.push_back(std::string(candidate));
      }
      if (present.empty()) return find_.Missing(std::string(example));
      if (present.size() > 1) {
        return absl::InvalidArgumentError(
            Cat(checkpoint_.dir(), ": ", example, " is stored under several names (\"",
                Join(present, "\", \""), "\"); expected one of them"));
      }
      *chosen = present.front();
      return absl::OkStatus();
    };
    QUARTET_RETURN_IF_ERROR(choose(
        kTrunkPrefixes,
        [&](const std::string& prefix) { return find_.Has(prefix + "embed_tokens.weight"); },
        "model.language_model.embed_tokens.weight", &prefix_));
    return choose(
        kHeadModules, [&](const std::string& module) { return find_.HasModule(module); },
        "lm_head.weight", &head_);
  }

  std::string LayerPrefix(int64_t layer) const { return Cat(prefix_, "layers.", layer, "."); }

  absl::Status Layer(int64_t i, LayerWeights& layer) {
    const std::string prefix = LayerPrefix(i);
    QUARTET_RETURN_IF_ERROR(Mhc(prefix + "hc_attn", layer.hc_attn));
    QUARTET_RETURN_IF_ERROR(Mhc(prefix + "hc_ffn", layer.hc_ffn));
    QUARTET_RETURN_IF_ERROR(BlockNorms(prefix, layer.input_norm, layer.post_attention_norm));
    if (config_.attention[i] == AttentionKind::kKda) {
      QUARTET_RETURN_IF_ERROR(Kda(prefix + "self_attn.", layer.attention.emplace<KdaWeights>()));
    } else {
      QUARTET_RETURN_IF_ERROR(Dsa(prefix + "self_attn.", layer.attention.emplace<DsaWeights>()));
    }
    if (config_.mlp[i] == MlpKind::kDense) {
      return Mlp(prefix + "mlp.", config_.intermediate, layer.mlp.emplace<MlpWeights>());
    }
    return Moe(prefix + "mlp.", i, layer.mlp.emplace<MoeWeights>());
  }

  absl::Status Mhc(const std::string& stem, MhcSiteWeights& site) {
    const int64_t rows = config_.hc_map_rows();
    QUARTET_ASSIGN(
        site.fn,
        find_.Dense(stem + "_fn", Spec("", rows, config_.hc_mult * config_.hidden, Split::kNone)));
    QUARTET_ASSIGN(site.base, find_.Vector(stem + "_base", rows, Split::kNone));
    QUARTET_ASSIGN(site.scale, find_.Vector(stem + "_scale", 3, Split::kNone));
    return absl::OkStatus();
  }

  absl::Status BlockNorms(const std::string& prefix, VectorView& input, VectorView& post) {
    QUARTET_ASSIGN(input,
                   find_.Vector(prefix + "input_layernorm.weight", config_.hidden, Split::kNone));
    QUARTET_ASSIGN(post, find_.Vector(prefix + "post_attention_layernorm.weight", config_.hidden,
                                      Split::kNone));
    return absl::OkStatus();
  }

  // Some converters join q, k and v, one below the other. Both forms at once would leave open which
  // one counts.
  absl::Status CheckOneForm(const std::string& fused_module, const std::string& part_module) {
    if (!find_.HasModule(fused_module) || !find_.HasModule(part_module)) return absl::OkStatus();
    return absl::InvalidArgumentError(
        Cat(checkpoint_.dir(), ": \"", fused_module, "\" and \"", part_module,
            "\" are both present and hold the same weights; expected one of them"));
  }

  absl::Status Kda(const std::string& prefix, KdaWeights& kda) {
    const int64_t inner = config_.kda_inner();
    const int64_t heads = config_.kda_heads;
    const int64_t dim = config_.kda_head_dim;
    const int64_t hidden = config_.hidden;
    const std::string fused = prefix + "qkv_proj";
    const std::string fused_conv = prefix + "conv1d";
    const bool has_fused = find_.HasModule(fused);
    const bool has_fused_conv = find_.HasModule(fused_conv);
    LinearView* projections[3] = {&kda.q_proj, &kda.k_proj, &kda.v_proj};
    DenseView* convolutions[3] = {&kda.q_conv, &kda.k_conv, &kda.v_conv};
    for (int64_t i = 0; i < 3; ++i) {
      const std::string letter(1, "qkv"[i]);
      const std::string own = Cat(prefix, letter, "_proj");
      const std::string own_conv = Cat(prefix, letter, "_conv1d");
      QUARTET_RETURN_IF_ERROR(CheckOneForm(fused, own));
      QUARTET_RETURN_IF_ERROR(CheckOneForm(fused_conv, own_conv));

      LinearSpec spec = Spec(has_fused ? fused : own, inner, hidden, Split::kOutputs);
      LinearSpec conv = Spec("", inner, config_.kda_conv_kernel, Split::kOutputs);
      if (has_fused) {
        spec.stored_begin = i * inner;
        spec.stored_out = 3 * inner;
      }
      if (has_fused_conv) {
        conv.stored_begin = i * inner;
        conv.stored_out = 3 * inner;
      }
      QUARTET_ASSIGN(*projections[i], find_.Linear(spec));
      QUARTET_ASSIGN(*convolutions[i],
                     find_.Dense((has_fused_conv ? fused_conv : own_conv) + ".weight", conv, true));
    }
    QUARTET_ASSIGN(kda.f_a, find_.Linear(Spec(prefix + "f_a_proj", dim, hidden, Split::kNone)));
    QUARTET_ASSIGN(kda.f_b, find_.Linear(Spec(prefix + "f_b_proj", inner, dim, Split::kOutputs)));
    QUARTET_ASSIGN(kda.g_a, find_.Linear(Spec(prefix + "g_a_proj", dim, hidden, Split::kNone)));
    QUARTET_ASSIGN(kda.g_b, find_.Linear(Spec(prefix + "g_b_proj", inner, dim, Split::kOutputs)));
    QUARTET_ASSIGN(kda.b_proj,
                   find_.Linear(Spec(prefix + "b_proj", heads, hidden, Split::kOutputs)));
    QUARTET_ASSIGN(kda.a_log, find_.Vector(prefix + "A_log", heads, Split::kOutputs));
    QUARTET_ASSIGN(kda.dt_bias, find_.Vector(prefix + "dt_bias", inner, Split::kOutputs));
    QUARTET_ASSIGN(kda.o_norm, find_.Vector(prefix + "o_norm.weight", dim, Split::kNone));
    QUARTET_ASSIGN(kda.o_proj,
                   find_.Linear(Spec(prefix + "o_proj", hidden, inner, Split::kInputs)));
    return absl::OkStatus();
  }

  absl::Status Dsa(const std::string& prefix, DsaWeights& dsa) {
    const int64_t hidden = config_.hidden;
    const int64_t heads = config_.mla_heads;
    const int64_t q_lora = config_.q_lora_rank;
    const int64_t kv_lora = config_.kv_lora_rank;
    const int64_t nope = config_.qk_nope_head_dim;
    const int64_t v = config_.v_head_dim;
    QUARTET_ASSIGN(dsa.q_a, find_.Linear(Spec(prefix + "q_a_proj", q_lora, hidden, Split::kNone)));
    QUARTET_ASSIGN(dsa.q_a_norm,
                   find_.Vector(prefix + "q_a_layernorm.weight", q_lora, Split::kNone));
    QUARTET_ASSIGN(dsa.q_b,
                   find_.Linear(Spec(prefix + "q_b_proj", heads * nope, q_lora, Split::kOutputs)));
    QUARTET_ASSIGN(
        dsa.kv_a, find_.Linear(Spec(prefix + "kv_a_proj_with_mqa", kv_lora, hidden, Split::kNone)));
    QUARTET_ASSIGN(dsa.kv_a_norm,
                   find_.Vector(prefix + "kv_a_layernorm.weight", kv_lora, Split::kNone));
    QUARTET_ASSIGN(dsa.kv_b, find_.Linear(Spec(prefix + "kv_b_proj", heads * (nope + v), kv_lora,
                                               Split::kOutputs)));
    QUARTET_ASSIGN(dsa.o_proj,
                   find_.Linear(Spec(prefix + "o_proj", hidden, heads * v, Split::kInputs)));

    const std::string indexer = prefix + "indexer.";
    const int64_t dim = config_.index_head_dim;
    IndexerWeights& index = dsa.indexer;
    QUARTET_ASSIGN(index.wq_b, find_.Linear(Spec(indexer + "wq_b", config_.index_heads * dim,
                                                 q_lora, Split::kNone)));
    QUARTET_ASSIGN(index.wk, find_.Linear(Spec(indexer + "wk", dim, hidden, Split::kNone)));
    QUARTET_ASSIGN(
        index.weights_proj,
        find_.Linear(Spec(indexer + "weights_proj", config_.index_heads, hidden, Split::kNone)));
    QUARTET_ASSIGN(index.k_norm_weight, find_.Vector(indexer + "k_norm.weight", dim, Split::kNone));
    QUARTET_ASSIGN(index.k_norm_bias, find_.Vector(indexer + "k_norm.bias", dim, Split::kNone));
    QUARTET_ASSIGN(index.pool_ape, find_.Dense(indexer + "index_kpool_compress_ape",
                                               Spec("", config_.index_kpool, dim, Split::kNone)));
    QUARTET_ASSIGN(index.pool_gate, find_.Dense(indexer + "index_kpool_compress_gate",
                                                Spec("", dim, hidden, Split::kNone)));
    return absl::OkStatus();
  }

  absl::Status Mlp(const std::string& prefix, int64_t inner, MlpWeights& mlp,
                   std::optional<int64_t> expert_layer = std::nullopt) {
    LinearSpec specs[3] = {Spec(prefix + "gate_proj", inner, config_.hidden, Split::kOutputs),
                           Spec(prefix + "up_proj", inner, config_.hidden, Split::kOutputs),
                           Spec(prefix + "down_proj", config_.hidden, inner, Split::kInputs)};
    LinearView* targets[3] = {&mlp.gate, &mlp.up, &mlp.down};
    for (int i = 0; i < 3; ++i) {
      specs[i].expert_layer = expert_layer;
      QUARTET_ASSIGN(*targets[i], find_.Linear(specs[i]));
    }
    return absl::OkStatus();
  }

  absl::Status Moe(const std::string& prefix, int64_t layer, MoeWeights& moe) {
    const int64_t inner = config_.moe_intermediate;
    const int64_t experts = config_.experts;
    QUARTET_ASSIGN(moe.router, find_.Dense(prefix + "gate.weight",
                                           Spec("", experts, config_.hidden, Split::kNone)));
    QUARTET_ASSIGN(moe.correction_bias,
                   find_.Vector(prefix + "gate.e_score_correction_bias", experts, Split::kNone));
    QUARTET_RETURN_IF_ERROR(
        Mlp(prefix + "shared_experts.", config_.shared_intermediate(), moe.shared));
    moe.experts.resize(experts);
    const std::string stack = prefix + "experts.exl3_";
    const bool stacked = find_.Has(stack + "gate_trellis") || find_.Has(stack + "up_trellis") ||
                         find_.Has(stack + "down_trellis");
    for (int64_t e = 0; e < experts; ++e) {
      const std::string own = Cat(prefix, "experts.", e, ".");
      if (!stacked) {
        QUARTET_RETURN_IF_ERROR(Mlp(own, inner, moe.experts[e], layer));
        continue;
      }
      for (const char* part : {"gate", "up", "down"}) {
        const std::string module = Cat(own, part, "_proj");
        if (find_.HasModule(module)) {
          return absl::InvalidArgumentError(
              Cat(checkpoint_.dir(), ": \"", module, "\" and the stack \"", stack, part,
                  "_trellis\" are both present and hold the same weights; expected one of them"));
        }
        const bool down = std::string_view(part) == "down";
        LinearSpec spec =
            Spec(stack + part, down ? config_.hidden : inner, down ? inner : config_.hidden,
                 down ? Split::kInputs : Split::kOutputs);
        spec.expert_layer = layer;
        LinearView& target = down                             ? moe.experts[e].down
                             : std::string_view(part) == "up" ? moe.experts[e].up
                                                              : moe.experts[e].gate;
        QUARTET_ASSIGN(target, find_.StackedExpert(stack + part, e, experts, spec));
      }
    }
    return absl::OkStatus();
  }

  absl::Status Mtp(MtpWeights& mtp) {
    const std::string prefix = LayerPrefix(config_.layers);
    const int64_t hidden = config_.hidden;
    QUARTET_ASSIGN(mtp.enorm, find_.Vector(prefix + "enorm.weight", hidden, Split::kNone));
    QUARTET_ASSIGN(mtp.hnorm, find_.Vector(prefix + "hnorm.weight", hidden, Split::kNone));
    QUARTET_ASSIGN(mtp.eh_proj,
                   find_.Linear(Spec(prefix + "eh_proj", hidden, 2 * hidden, Split::kNone)));
    QUARTET_RETURN_IF_ERROR(BlockNorms(prefix, mtp.input_norm, mtp.post_attention_norm));
    QUARTET_RETURN_IF_ERROR(Dsa(prefix + "self_attn.", mtp.attention));
    QUARTET_RETURN_IF_ERROR(Moe(prefix + "mlp.", config_.layers, mtp.moe));
    QUARTET_ASSIGN(mtp.head_norm,
                   find_.Vector(prefix + "shared_head.norm.weight", hidden, Split::kNone));
    return absl::OkStatus();
  }

  // True for the names of the vision tower, which text inference leaves alone.
  bool IsVision(std::string_view name) const {
    if (!ConsumePrefix(name, "model.visual.") && !ConsumePrefix(name, "visual.")) {
      return false;
    }
    static constexpr std::string_view kOutside[] = {
        "patch_embed.proj.weight",
        "patch_embed.proj.bias",
        "post_layernorm.weight",
        "downsample.weight",
        "downsample.bias",
        "merger.proj.weight",
        "merger.post_projection_norm.weight",
        "merger.post_projection_norm.bias",
        "merger.gate_proj.weight",
        "merger.up_proj.weight",
        "merger.down_proj.weight",
    };
    static constexpr std::string_view kInBlock[] = {
        "norm1.weight",         "norm2.weight",       "attn.q_norm.weight", "attn.k_norm.weight",
        "attn.qkv.weight",      "attn.qkv.bias",      "attn.proj.weight",   "attn.proj.bias",
        "mlp.gate_proj.weight", "mlp.gate_proj.bias", "mlp.up_proj.weight", "mlp.up_proj.bias",
        "mlp.down_proj.weight", "mlp.down_proj.bias",
    };
    if (!ConsumePrefix(name, "blocks.")) {
      return std::find(std::begin(kOutside), std::end(kOutside), name) != std::end(kOutside);
    }
    const size_t dot = name.find('.');
    if (dot == std::string_view::npos) return false;
    const std::string_view digits = name.substr(0, dot);
    if (digits.empty() || digits.size() > 6) return false;
    int64_t block = 0;
    for (char c : digits) {
      if (c < '0' || c > '9') return false;
      block = 10 * block + (c - '0');
    }
    if (config_.vision && block >= config_.vision->depth) return false;
    const std::string_view rest = name.substr(dot + 1);
    return std::find(std::begin(kInBlock), std::end(kInBlock), rest) != std::end(kInBlock);
  }

  absl::Status CheckNothingIsLeft() {
    const std::string mtp = LayerPrefix(config_.layers);
    for (const TensorView* tensor : checkpoint_.tensors()) {
      if (find_.Used(tensor) || IsVision(tensor->name)) continue;
      // Other releases of the family repeat the trunk's head and embedding in the draft layer.
      if (config_.mtp_layers > 0 && (tensor->name == mtp + "shared_head.head.weight" ||
                                     tensor->name == mtp + "embed_tokens.weight")) {
        continue;
      }
      std::string hint;
      if (tensor->name.starts_with(mtp) && config_.mtp_layers == 0) {
        hint = Cat(" (", config_.path, " says num_nextn_predict_layers 0)");
      }
      return absl::InvalidArgumentError(
          Cat(tensor->file, ": tensor \"", tensor->name, "\" is unknown", hint,
              "; expected only tensors of the model that ", config_.path, " describes"));
    }
    return absl::OkStatus();
  }

  const Checkpoint& checkpoint_;
  const ModelConfig& config_;
  const int tp_;
  const int rank_;
  LinearResolver find_;
  std::string prefix_;
  std::string head_;
};

#undef QUARTET_ASSIGN
#undef QUARTET_RETURN_IF_ERROR

}  // namespace

int64_t InDim(const LinearView& linear) {
  const DenseView* dense = std::get_if<DenseView>(&linear);
  return dense != nullptr ? dense->cols : std::get<Exl3View>(linear).in;
}

int64_t OutDim(const LinearView& linear) {
  const DenseView* dense = std::get_if<DenseView>(&linear);
  return dense != nullptr ? dense->rows : std::get<Exl3View>(linear).out;
}

absl::StatusOr<ModelWeights> ResolveWeights(const Checkpoint& checkpoint, const ModelConfig& config,
                                            int tp, int rank) {
  if (absl::Status status = CheckTensorParallel(config, tp); !status.ok()) return status;
  if (rank < 0 || rank >= tp) {
    return absl::InvalidArgumentError(Cat("rank ", rank, ", expected 0 to ", tp - 1));
  }
  return ModelResolver(checkpoint, config, tp, rank).Resolve();
}

}  // namespace quartet
