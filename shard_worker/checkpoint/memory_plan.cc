#include "shard_worker/checkpoint/memory_plan.h"

#include <algorithm>
#include <type_traits>
#include <vector>

#include "absl/strings/str_format.h"
#include "shard_worker/checkpoint/message.h"

namespace quartet {
namespace {

constexpr int64_t kFloat = 4;
// Query rows whose pool scores are held at a time.
constexpr int64_t kScoreRows = 64;

int64_t Elements(const DenseView& view) {
  return view.rows * view.cols;
}
int64_t Elements(const VectorView& view) {
  return view.count;
}
int64_t Elements(const Exl3View& view) {
  return view.padded_in * view.padded_out + view.padded_in + view.padded_out;
}
int64_t Elements(const LinearView& view) {
  return std::visit([](const auto& v) { return Elements(v); }, view);
}

template <typename... Views>
int64_t Sum(const Views&... views) {
  return (Elements(views) + ...);
}

int64_t Elements(const KdaWeights& w) {
  return Sum(w.q_proj, w.k_proj, w.v_proj, w.q_conv, w.k_conv, w.v_conv, w.f_a, w.f_b, w.g_a, w.g_b,
             w.b_proj, w.a_log, w.dt_bias, w.o_norm, w.o_proj);
}
int64_t Elements(const IndexerWeights& w) {
  return Sum(w.wq_b, w.wk, w.weights_proj, w.k_norm_weight, w.k_norm_bias, w.pool_ape, w.pool_gate);
}
int64_t Elements(const DsaWeights& w) {
  return Sum(w.q_a, w.q_a_norm, w.q_b, w.kv_a, w.kv_a_norm, w.kv_b, w.o_proj) + Elements(w.indexer);
}
int64_t Elements(const MlpWeights& w) {
  return Sum(w.gate, w.up, w.down);
}
int64_t Elements(const MoeWeights& w) {
  int64_t count = Sum(w.router, w.correction_bias) + Elements(w.shared);
  for (const MlpWeights& expert : w.experts) count += Elements(expert);
  return count;
}
int64_t Elements(const MhcSiteWeights& w) {
  return Sum(w.fn, w.base, w.scale);
}

int64_t CeilDiv(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

int64_t Caches(const ModelConfig& config) {
  return config.CountLayers(AttentionKind::kDsa) + config.mtp_layers;
}

std::string Mib(int64_t bytes) {
  return absl::StrFormat("%.1f MiB", static_cast<double>(bytes) / (1 << 20));
}

// Buffers of one step, in floats per token: the widest set that is alive at the same time in a
// layer, summed generously instead of overlaid.
int64_t ActivationBytes(const ModelConfig& config, int tp, const MemoryPlanOptions& options) {
  const int64_t hidden = config.hidden;
  const int64_t streams = 2 * config.hc_mult * hidden;
  const int64_t site = 4 * hidden + 2 * config.hc_map_rows();
  // Projections before and after the convolution, gate, decay, output.
  const int64_t kda = 9 * config.kda_inner() / tp + 2 * config.kda_head_dim + config.kda_heads / tp;
  const int64_t heads = config.mla_heads / tp;
  const int64_t dsa =
      config.q_lora_rank + config.kv_lora_rank +
      heads * (config.qk_nope_head_dim + 2 * config.kv_lora_rank + config.v_head_dim) +
      config.index_heads * (config.index_head_dim + 1) + 2 * config.index_head_dim +
      config.index_topk + config.index_kpool;
  const int64_t inner =
      std::max({config.intermediate, config.shared_intermediate(), config.moe_intermediate}) / tp;
  const int64_t mlp = 3 * inner + config.experts + config.experts_per_token * (2 + hidden);
  const int64_t per_token = streams + site + std::max({kda, dsa, mlp}) + 2 * hidden;
  const int64_t scores = std::min(options.max_num_batched_tokens, kScoreRows) *
                         (CeilDiv(options.max_model_len, config.index_kpool) +
                          heads * (config.index_topk + config.index_kpool));
  const int64_t sampled_rows =
      std::min(options.max_num_batched_tokens, options.max_num_seqs * (1 + options.draft_tokens));
  const int64_t logits = sampled_rows * (config.vocab_size / tp + config.vocab_size);
  return kFloat * (options.max_num_batched_tokens * per_token + scores + logits);
}

// Of one sequence: matrices and the last inputs of the convolutions.
int64_t KdaFloats(const ModelConfig& config, int tp) {
  const int64_t matrices = config.kda_heads / tp * config.kda_head_dim * config.kda_head_dim;
  const int64_t columns = 3 * (config.kda_conv_kernel - 1) * config.kda_inner() / tp;
  return config.CountLayers(AttentionKind::kKda) * (matrices + columns);
}

}  // namespace

absl::StatusOr<KvDtype> ParseKvDtype(std::string_view flag) {
  if (flag == "fp32") return KvDtype::kFp32;
  if (flag == "fp16") return KvDtype::kFp16;
  if (flag == "fp8_e4m3") return KvDtype::kFp8E4m3;
  return absl::InvalidArgumentError(
      Cat("--kv-dtype is \"", flag, "\", expected fp32, fp16 or fp8_e4m3"));
}

std::string_view ToString(KvDtype dtype) {
  switch (dtype) {
    case KvDtype::kFp32:
      return "fp32";
    case KvDtype::kFp16:
      return "fp16";
    case KvDtype::kFp8E4m3:
      return "fp8_e4m3";
  }
  return "?";
}

int64_t WidenedWeightBytes(const ModelWeights& weights) {
  int64_t count = Sum(weights.embedding, weights.final_norm, weights.head);
  const auto any = [](const auto& w) { return Elements(w); };
  for (const LayerWeights& layer : weights.layers) {
    count += Elements(layer.hc_attn) + Elements(layer.hc_ffn) +
             Sum(layer.input_norm, layer.post_attention_norm) + std::visit(any, layer.attention) +
             std::visit(any, layer.mlp);
  }
  if (weights.mtp) {
    const MtpWeights& mtp = *weights.mtp;
    count += Sum(mtp.enorm, mtp.hnorm, mtp.eh_proj, mtp.input_norm, mtp.post_attention_norm,
                 mtp.head_norm) +
             Elements(mtp.attention) + Elements(mtp.moe);
  }
  return count * kFloat;
}

int64_t OpenPoolRows(const ModelConfig& config, int64_t draft_tokens) {
  int64_t rows = config.index_kpool;
  while (rows < config.index_kpool + draft_tokens) rows *= 2;
  return rows;
}

int64_t WindowRows(int64_t draft_tokens) {
  return draft_tokens == 0 ? 0 : 2 * (1 + draft_tokens);
}

int64_t VerifyRingBytes(const ModelConfig& config, int tp, int64_t draft_tokens) {
  constexpr int64_t kPadded = 64;
  const int64_t rows = WindowRows(draft_tokens);
  const int64_t wide = CeilDiv(kFloat * rows * config.kda_inner() / tp, kPadded) * kPadded;
  const int64_t beta = CeilDiv(kFloat * rows * config.kda_heads / tp, kPadded) * kPadded;
  return config.CountLayers(AttentionKind::kKda) * (6 * wide + beta);
}

int64_t StateSlotBytes(const ModelConfig& config, int tp, int64_t draft_tokens) {
  const int64_t open_pool = OpenPoolRows(config, draft_tokens) * 2 * config.index_head_dim;
  return kFloat * (KdaFloats(config, tp) + config.hidden + Caches(config) * open_pool) +
         VerifyRingBytes(config, tp, draft_tokens);
}

int64_t TokenCountBytes(const ModelConfig& config) {
  return CeilDiv(config.vocab_size, 16) * 16 * static_cast<int64_t>(sizeof(uint32_t));
}

int64_t SnapshotBytes(const ModelConfig& config, int tp) {
  return kFloat * (KdaFloats(config, tp) + config.hidden);
}

int64_t PageBytes(const ModelConfig& config, KvDtype dtype) {
  const int64_t value = dtype == KvDtype::kFp32 ? 4 : dtype == KvDtype::kFp16 ? 2 : 1;
  const int64_t pool_value = dtype == KvDtype::kFp32 ? 4 : 2;
  const int64_t latents = kTokensPerPage * config.kv_lora_rank * value;
  const int64_t pooled = kTokensPerPage / config.index_kpool * config.index_head_dim * pool_value;
  return Caches(config) * (latents + pooled);
}

absl::StatusOr<MemoryPlan> PlanMemory(const ModelConfig& config, int tp, int64_t weight_bytes,
                                      const MemoryPlanOptions& options) {
  const auto need_positive = [](std::string_view flag, int64_t value) -> absl::Status {
    if (value >= 1) return absl::OkStatus();
    return absl::InvalidArgumentError(Cat(flag, " is ", value, ", expected a positive number"));
  };
  for (const auto& [flag, value] :
       {std::pair<std::string_view, int64_t>{"--max-model-len", options.max_model_len},
        {"--max-num-seqs", options.max_num_seqs},
        {"--max-num-batched-tokens", options.max_num_batched_tokens}}) {
    if (absl::Status status = need_positive(flag, value); !status.ok()) return status;
  }
  if (absl::Status status = CheckTensorParallel(config, tp); !status.ok()) return status;
  if (options.max_model_len > config.max_position_embeddings) {
    return absl::InvalidArgumentError(
        Cat("--max-model-len is ", options.max_model_len, ", but the model ends at ",
            config.max_position_embeddings, " tokens (max_position_embeddings in ", config.path,
            "); expected at most that"));
  }

  MemoryPlan plan;
  plan.options = options;
  plan.weight_bytes = weight_bytes;
  plan.state_slot_bytes =
      StateSlotBytes(config, tp, options.draft_tokens) + TokenCountBytes(config);
  plan.state_slots = options.max_num_seqs;
  plan.page_bytes = PageBytes(config, options.kv_dtype);
  plan.activation_bytes = ActivationBytes(config, tp, options);
  plan.pages_per_context = CeilDiv(options.max_model_len, kTokensPerPage);
  const int64_t fixed =
      plan.weight_bytes + plan.activation_bytes + plan.state_slots * plan.state_slot_bytes;
  const int64_t left = options.budget_bytes - fixed;
  // A model without DSA layers has no pages; its contexts cost nothing here.
  const int64_t fitting = left < 0               ? 0
                          : plan.page_bytes == 0 ? plan.pages_per_context
                                                 : left / plan.page_bytes;
  if (fitting < plan.pages_per_context || left < 0) {
    // Shorter contexts also need smaller score buffers, so count again from the top.
    const auto fits = [&](int64_t pages) {
      MemoryPlanOptions smaller = options;
      smaller.max_model_len = std::min(pages * kTokensPerPage, config.max_position_embeddings);
      return plan.weight_bytes + plan.state_slots * plan.state_slot_bytes +
                 ActivationBytes(config, tp, smaller) + pages * plan.page_bytes <=
             options.budget_bytes;
    };
    int64_t low = 0;
    int64_t high = plan.pages_per_context;
    while (low + 1 < high) {
      const int64_t middle = low + (high - low) / 2;
      (fits(middle) ? low : high) = middle;
    }
    const std::string advice =
        low == 0 ? Cat("not even ", kTokensPerPage,
                       " tokens fit; more memory, more ranks or fewer --max-num-seqs are needed")
                 : Cat("the largest --max-model-len that fits is ", low * kTokensPerPage);
    return absl::ResourceExhaustedError(Cat(
        "one context of --max-model-len ", options.max_model_len, " tokens needs ",
        Mib(plan.pages_per_context * plan.page_bytes), " of pages (", plan.pages_per_context,
        " of ", kTokensPerPage, " tokens), but of the budget of ", Mib(options.budget_bytes),
        " only ", Mib(std::max<int64_t>(left, 0)), " remain after weights ", Mib(plan.weight_bytes),
        ", activations ", Mib(plan.activation_bytes), " and ", plan.state_slots, " state slots ",
        Mib(plan.state_slots * plan.state_slot_bytes), "; ", advice));
  }
  plan.pages = std::min(fitting, plan.pages_per_context * options.max_num_seqs);
  plan.total_bytes = fixed + plan.pages * plan.page_bytes;
  return plan;
}

std::string FormatMemoryPlan(const MemoryPlan& plan) {
  struct Row {
    std::string part;
    std::string detail;
    int64_t bytes;
  };
  const std::vector<Row> rows = {
      {"weights", "as float", plan.weight_bytes},
      {"activations", Cat(plan.options.max_num_batched_tokens, " tokens a step"),
       plan.activation_bytes},
      {"live states",
       absl::StrFormat("%d x %.2f MiB", plan.state_slots,
                       static_cast<double>(plan.state_slot_bytes) / (1 << 20)),
       plan.state_slots * plan.state_slot_bytes},
      {"pages",
       absl::StrFormat("%d x %.2f MiB, %d tokens in %s", plan.pages,
                       static_cast<double>(plan.page_bytes) / (1 << 20), plan.cached_tokens(),
                       std::string(ToString(plan.options.kv_dtype))),
       plan.pages * plan.page_bytes},
      {"planned", "", plan.total_bytes},
      {"budget", "", plan.options.budget_bytes},
  };
  size_t detail_width = 0;
  for (const Row& row : rows) detail_width = std::max(detail_width, row.detail.size());
  std::string table =
      absl::StrFormat("%-12s  %-*s  %12s\n", "memory", static_cast<int>(detail_width), "", "MiB");
  for (const Row& row : rows) {
    table += absl::StrFormat("%-12s  %-*s  %12.1f\n", row.part, static_cast<int>(detail_width),
                             row.detail, static_cast<double>(row.bytes) / (1 << 20));
  }
  return table;
}

}  // namespace quartet
