#include "shard_worker/checkpoint/gpu_plan.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "shard_worker/checkpoint/message.h"
#include "shard_worker/checkpoint/weight_views.h"

namespace quartet {
namespace {

constexpr int64_t kMib = int64_t{1} << 20;
constexpr int64_t kGib = int64_t{1} << 30;
constexpr int64_t kFloat = 4;
constexpr int64_t kHalf = 2;

// Allowances, not sums of parts: what CUDA, NCCL and graphs hold by themselves is known only from
// running processes (quartet-full-size-bench --memory-only measures it). The driver's context, the
// kernels' code, local memory of the largest grid, and cuBLAS with its workspace; on an H200:
constexpr int64_t kContextBytes = 630 * kMib;
// Buffers of NCCL with few channels, and the peer-mapped ones of the one-shot all-reduce; a single
// rank talks to nobody:
constexpr int64_t kCommunicatorBytes = 150 * kMib;
// Captured graphs, that is their nodes' parameters and the driver's upload buffers; their tensors
// live in the one activation arena. On an H200 42 MiB for four sequences and their windows:
constexpr int64_t kGraphBytes = 48 * kMib;
// Host buffers through which weights are staged to the card, so that disk, conversion and copy
// overlap.
constexpr int64_t kStagingBytes = 4 * 16 * kMib;
// Steps whose inputs and results are in flight at the same time.
constexpr int64_t kStepsInFlight = 2;

// Rows that go through the head at once.
constexpr int64_t kHeadRows = 16;
// Rows whose pool scores are held at a time: 64 MiB at 131,072 tokens instead of 512 MiB for a
// whole chunk of 4,096, and still enough rows to fill the card.
constexpr int64_t kScoreRows = 512;
// Rows whose absorbed queries and attended latents are held at a time, for the same reason: 32 KiB
// each a row and 16 heads.
constexpr int64_t kAttendRows = 1024;
constexpr int64_t kForkedRows = 8;  // up to here a step forks its selection
// Rows that go through the routed experts at a time.
constexpr int64_t kExpertRows = 4096;

int64_t CeilDiv(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

int64_t DeviceBytes(const DenseView& view, const WeightTraits& traits) {
  return view.rows * view.cols * (traits.exact ? kFloat : kHalf);
}
int64_t DeviceBytes(const VectorView& view, const WeightTraits&) {
  return view.count * kFloat;
}
int64_t DeviceBytes(const Exl3View& view, const WeightTraits&) {
  return view.tile_rows() * view.tile_cols() * view.tile_bytes +
         kHalf * (view.padded_in + view.padded_out);
}

int64_t VisionBytes(const Checkpoint& checkpoint, int tp) {
  int64_t bytes = 0;
  for (const TensorView* tensor : checkpoint.tensors()) {
    const std::string_view name = tensor->name;
    if (!name.starts_with("model.visual.") && !name.starts_with("visual.")) continue;
    bytes += tensor->shape.size() < 2 ? tensor->elements() * kFloat
                                      : CeilDiv(tensor->elements(), tp) * kHalf;
  }
  return bytes;
}

// An mHC fn stays in FP16 only if it came in 16 bit.
int64_t WideFnBytes(const MhcSiteWeights& site) {
  return site.fn.tensor->dtype == Dtype::kF32 ? (kFloat - kHalf) * site.fn.rows * site.fn.cols : 0;
}

// Floats of one row in the buffers between the ops, as shard_worker/model cuts them.
int64_t RowFloats(const ModelConfig& config, int tp) {
  const int64_t hidden = config.hidden;
  const int64_t mult = config.hc_mult;
  const int64_t kda_heads = config.kda_heads / tp;
  const int64_t kda_inner = kda_heads * config.kda_head_dim;
  const int64_t trunk = 1 + hidden * (1 + mult + 3) + mult * (1 + mult);  // ids, streams, x, y, h
  const int64_t kda = 6 * kda_inner + kda_heads;  // q, k, v, decay, gate, output; beta
  const int64_t dsa = config.q_lora_rank + config.index_heads + config.index_pools() + 2;
  const int64_t router = 2 * config.experts_per_token + config.experts;
  const int64_t mtp = 1 + 3 * hidden;
  return trunk + kda + dsa + router + mtp;
}

int64_t HeadFloats(const ModelConfig& config, int tp) {
  const int64_t local = kHeadRows * (config.hidden + config.vocab_size / tp);
  return tp == 1 ? local : local + (kHeadRows + 1) * config.vocab_size;
}

absl::Status CheckOptions(const ModelConfig& config, const GpuPlanOptions& options) {
  for (const auto& [flag, value] :
       {std::pair<std::string_view, int64_t>{"--max-model-len", options.max_model_len},
        {"--max-num-seqs", options.max_num_seqs},
        {"--max-num-batched-tokens", options.max_num_batched_tokens},
        {"--gpu-memory", options.card_bytes}}) {
    if (value >= 1) continue;
    return absl::InvalidArgumentError(Cat(flag, " is ", value, ", expected a positive number"));
  }
  if (options.draft_tokens < 0 || options.reserve_bytes < 0) {
    return absl::InvalidArgumentError(
        "--num-speculative-tokens and --gpu-memory-reserve-mib must not be negative");
  }
  if (options.max_model_len > config.max_position_embeddings) {
    return absl::InvalidArgumentError(
        Cat("--max-model-len is ", options.max_model_len, ", but the model ends at ",
            config.max_position_embeddings, " tokens (max_position_embeddings in ", config.path,
            "); expected at most that"));
  }
  return absl::OkStatus();
}

// Token ids, positions, slots and row kinds of a step, its page tables, and what comes back.
int64_t PinnedBytes(const GpuPlanOptions& options) {
  const int64_t pages = options.max_num_seqs * CeilDiv(options.max_model_len, kTokensPerPage);
  return kStagingBytes + kStepsInFlight * 4 * (4 * options.max_num_batched_tokens + pages);
}

// Fills pages, snapshots and the verdict from what is left.
void DividePools(const ModelConfig& config, GpuPlan& plan) {
  const int64_t per_context = CeilDiv(plan.options.max_model_len, kTokensPerPage);
  // A model without DSA layers has no pages; its contexts cost nothing here.
  plan.pages_wanted = plan.page_bytes == 0 ? 0 : plan.options.max_num_seqs * per_context;
  const int64_t least =
      plan.options.max_num_seqs * plan.live.total() + kMinSnapshots * plan.snapshot_bytes;
  const int64_t for_pages = plan.left_bytes() - least;
  const int64_t fitting = for_pages < 0 || plan.page_bytes == 0 ? 0 : for_pages / plan.page_bytes;
  plan.missing_bytes = std::max<int64_t>(0, plan.pages_wanted * plan.page_bytes - for_pages);
  if (plan.missing_bytes == 0) {
    plan.verdict = GpuPlan::Verdict::kFits;
    plan.pages = plan.pages_wanted;
  } else if (fitting >= per_context) {
    plan.verdict = GpuPlan::Verdict::kShared;
    plan.pages = fitting;
  } else {
    plan.verdict = GpuPlan::Verdict::kDoesNotFit;
    return;
  }
  const int64_t rest = for_pages - plan.pages * plan.page_bytes;
  plan.snapshots = kMinSnapshots + rest / plan.snapshot_bytes;
  plan.unused_bytes = rest % plan.snapshot_bytes;
}

}  // namespace

GpuWeightBytes CountGpuWeights(const Checkpoint& checkpoint, const ModelWeights& weights) {
  GpuWeightBytes bytes;
  WeightVisitor visitor([&](const auto& view, const WeightTraits& traits) {
    const int64_t size = DeviceBytes(view, traits);
    switch (traits.share) {
      case WeightTraits::Share::kRoutedExpert:
        bytes.routed_experts += size;
        break;
      case WeightTraits::Share::kMtpExpert:
        bytes.mtp_experts += size;
        break;
      case WeightTraits::Share::kSharded:
        bytes.sharded += size;
        break;
      case WeightTraits::Share::kReplicated:
        bytes.replicated += size;
        break;
    }
  });
  for (const LayerWeights& layer : weights.layers) {
    visitor.Layer(layer);
    bytes.replicated += WideFnBytes(layer.hc_attn) + WideFnBytes(layer.hc_ffn);
  }
  if (weights.mtp) visitor.Mtp(*weights.mtp);
  visitor.Ends(weights);
  bytes.vision = VisionBytes(checkpoint, weights.tp);
  return bytes;
}

int64_t UsableCardBytes(int64_t nominal_bytes) {
  // A V100 of 32 GiB shows 32,510 MiB to CUDA; firmware and page tables take the rest.
  return nominal_bytes - nominal_bytes / 128;
}

int64_t GpuWorkspaceBytes(const ModelConfig& config, int tp, const GpuPlanOptions& options) {
  const int64_t rows = options.max_num_batched_tokens;
  const int64_t kda_inner = config.kda_inner() / tp;
  // A projection keeps an FP16 copy of the rows that it reads; in floats.
  const int64_t half_x = config.hidden / 2;
  // Rows before their convolution, beta, and the low-rank middles of decay and gate.
  const int64_t kda =
      rows * (3 * kda_inner + config.kda_heads / tp + 2 * config.kda_head_dim + half_x);
  // The indexer's queries and the scores. Steps of a few rows fork it, in a workspace of its own.
  const auto select_of = [&](int64_t count) {
    return count * config.index_heads * config.index_head_dim +
           std::min(count, kScoreRows) * CeilDiv(options.max_model_len, config.index_kpool);
  };
  const int64_t select = select_of(rows);
  const int64_t forked = select_of(std::min(rows, kForkedRows));
  // Per head the query, the absorbed query and the attended latent.
  const int64_t attend = std::min(rows, kAttendRows) * config.mla_heads / tp *
                         (config.qk_nope_head_dim + 2 * config.kv_lora_rank);
  // Gate, up and what comes of them, and an FP16 copy of what enters gate and up, or down.
  const int64_t inner = std::max(config.intermediate, config.shared_intermediate()) / tp;
  const int64_t dense = rows * (3 * inner + std::max(config.hidden, inner) / 2);
  // Scores of the router; of each chosen expert its input twice in FP16, later its output in their
  // place, gate and up, and an FP16 copy of what comes of them.
  const int64_t expert_inner = config.moe_intermediate / tp;
  const int64_t moe =
      rows * config.experts + std::min(rows, kExpertRows) * config.experts_per_token *
                                  (config.hidden + 2 * expert_inner + expert_inner / 2);
  // Both halves of what enters the draft layer, and their FP16 copy.
  const int64_t mtp = rows * (2 * config.hidden + 2 * half_x);
  return kFloat * (forked + std::max({kda, select, attend, dense, config.has_moe() ? moe : 0,
                                      config.mtp_layers > 0 ? mtp : 0}));
}

int64_t GpuActivationBytes(const ModelConfig& config, int tp, const GpuPlanOptions& options) {
  return kFloat *
             (options.max_num_batched_tokens * RowFloats(config, tp) + HeadFloats(config, tp)) +
         GpuWorkspaceBytes(config, tp, options);
}

GpuLiveBytes CountGpuLiveBytes(const ModelConfig& config, int tp, int64_t draft_tokens) {
  GpuLiveBytes live;
  live.verify_ring = VerifyRingBytes(config, tp, draft_tokens);
  live.state = StateSlotBytes(config, tp, draft_tokens) - live.verify_ring;
  live.sampling = TokenCountBytes(config) + (1 + draft_tokens) * CeilDiv(config.vocab_size, 8);
  return live;
}

absl::StatusOr<GpuPlan> PlanGpu(const ModelConfig& config, int tp, const GpuWeightBytes& weights,
                                const GpuPlanOptions& options) {
  if (absl::Status status = CheckOptions(config, options); !status.ok()) return status;
  if (absl::Status status = CheckTensorParallel(config, tp); !status.ok()) return status;
  GpuPlan plan;
  plan.options = options;
  plan.tp = tp;
  plan.context_bytes = kContextBytes;
  plan.communicator_bytes = tp == 1 ? 0 : kCommunicatorBytes;
  plan.weights = weights;
  plan.activation_bytes = GpuActivationBytes(config, tp, options);
  plan.graph_bytes = kGraphBytes;
  plan.live = CountGpuLiveBytes(config, tp, options.draft_tokens);
  plan.page_bytes = PageBytes(config, options.kv_dtype);
  plan.snapshot_bytes = SnapshotBytes(config, tp);
  plan.pinned_host_bytes = PinnedBytes(options);
  DividePools(config, plan);
  return plan;
}

std::vector<GpuPlanChange> ChangesThatFit(const ModelConfig& config, const GpuPlan& plan) {
  std::vector<GpuPlanChange> changes;
  if (plan.verdict == GpuPlan::Verdict::kFits) return changes;
  const auto fits = [&](const std::function<void(GpuPlanOptions&)>& change) {
    GpuPlanOptions options = plan.options;
    change(options);
    const absl::StatusOr<GpuPlan> changed = PlanGpu(config, plan.tp, plan.weights, options);
    return changed.ok() && changed->verdict == GpuPlan::Verdict::kFits;
  };
  // The largest multiple of `unit` below the present value that fits; smaller always fits better.
  const auto lower = [&](std::string_view flag, int64_t GpuPlanOptions::*field, int64_t unit,
                         int64_t least) {
    int64_t good = least / unit - 1;
    int64_t bad = CeilDiv(plan.options.*field, unit);
    while (good + 1 < bad) {
      const int64_t middle = good + (bad - good) / 2;
      const bool ok = fits([&](GpuPlanOptions& options) { options.*field = middle * unit; });
      (ok ? good : bad) = middle;
    }
    if (good >= least / unit) changes.push_back({std::string(flag), Cat(good * unit)});
  };
  for (const KvDtype dtype : {KvDtype::kFp16, KvDtype::kFp8E4m3}) {
    if (PageBytes(config, dtype) >= plan.page_bytes) continue;
    if (!fits([&](GpuPlanOptions& options) { options.kv_dtype = dtype; })) continue;
    changes.push_back({"--kv-dtype", std::string(ToString(dtype))});
    break;
  }
  lower("--max-model-len", &GpuPlanOptions::max_model_len, kTokensPerPage, kTokensPerPage);
  lower("--max-num-seqs", &GpuPlanOptions::max_num_seqs, 1, 1);
  // Chunks of prompts are multiples of 64 rows; below 256 a step no longer fills the card.
  lower("--max-num-batched-tokens", &GpuPlanOptions::max_num_batched_tokens, 64, 256);
  for (int64_t gib = plan.options.card_bytes / kGib + 1; gib <= 1024; ++gib) {
    if (!fits([&](GpuPlanOptions& options) { options.card_bytes = UsableCardBytes(gib * kGib); })) {
      continue;
    }
    changes.push_back({"--gpu-memory", Cat(gib, "GiB")});
    break;
  }
  return changes;
}

std::string_view ToString(GpuPlan::Verdict verdict) {
  switch (verdict) {
    case GpuPlan::Verdict::kFits:
      return "fits";
    case GpuPlan::Verdict::kShared:
      return "shared";
    case GpuPlan::Verdict::kDoesNotFit:
      return "does_not_fit";
  }
  return "?";
}

}  // namespace quartet
