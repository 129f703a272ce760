#include <algorithm>

#include "shard_worker/model/model.h"
#include "shard_worker/model/status_macros.h"

namespace quartet {
namespace {

std::span<const float> Rows(const float* data, int rows, int64_t width) {
  return {data, static_cast<size_t>(rows * width)};
}

}  // namespace

absl::StatusOr<std::unique_ptr<Model>> Model::Create(const ModelConfig& config, ModelOps ops,
                                                     const Pools& pools, Collectives& collectives,
                                                     const StepLimits& limits) {
  auto model =
      std::unique_ptr<Model>(new Model(config, std::move(ops), pools, collectives, limits));
  QUARTET_ASSIGN(model->activations_,
                 MakeActivations(config, collectives.size(), model->ops_, limits));
  return model;
}

Model::Model(const ModelConfig& config, ModelOps ops, const Pools& pools, Collectives& collectives,
             const StepLimits& limits)
    : config_(config),
      ops_(std::move(ops)),
      pools_(pools),
      collectives_(collectives),
      limits_(limits),
      kept_pools_(config.index_pools()) {}

absl::Status Model::ReduceY(int rows) {
  return collectives_.AllReduceSum(activations_.y, rows * config_.hidden);
}

absl::Status Model::Embed(std::span<const int32_t> ids) {
  Activations& a = activations_;
  const int rows = static_cast<int>(ids.size());
  ops_.embedding->Run(ids.data(), rows, a.embedding);
  return collectives_.AllReduceSum(a.embedding, rows * config_.hidden);
}

absl::Status Model::Trunk(std::span<const int32_t> ids, std::span<const ops::Segment> segments) {
  Activations& a = activations_;
  const int rows = static_cast<int>(ids.size());
  const int layers = static_cast<int>(ops_.layers.size());
  QUARTET_RETURN_IF_ERROR(Embed(ids));
  const float* const y[] = {a.y};
  for (int i = 0; i < layers; ++i) {
    const LayerOps& layer = ops_.layers[i];
    if (i == 0) {
      layer.attn_site->Begin(a.embedding, rows, a.streams, a.mix, a.x);
    } else {
      layer.attn_site->Boundary(y, rows, a.streams, a.mix, a.x);
      if (trace_ != nullptr) {
        trace_->Values(i - 1, TracePoint::kStreams,
                       Rows(a.streams, rows, config_.hc_mult * config_.hidden), rows);
      }
    }
    QUARTET_RETURN_IF_ERROR(Attention(i, segments, rows));
    layer.ffn_site->Boundary(y, rows, a.streams, a.mix, a.x);
    QUARTET_RETURN_IF_ERROR(Feed(i, layer, rows));
  }
  ops_.finish->Run(y, rows, a.streams, a.mix, a.h);
  if (trace_ != nullptr) {
    trace_->Values(layers - 1, TracePoint::kStreams,
                   Rows(a.streams, rows, config_.hc_mult * config_.hidden), rows);
    trace_->Values(layers - 1, TracePoint::kFinalHidden, Rows(a.h, rows, config_.hidden), rows);
  }
  return absl::OkStatus();
}

absl::Status Model::Attention(int layer, std::span<const ops::Segment> segments, int rows) {
  Activations& a = activations_;
  if (trace_ != nullptr) {
    trace_->Values(layer, TracePoint::kAttnIn, Rows(a.x, rows, config_.hidden), rows);
  }
  if (const auto* kda = std::get_if<KdaLayerOps>(&ops_.layers[layer].attention)) {
    const ops::KdaState state = pools_.kda_state(layer);
    kda->project->Run(a.x, segments, rows, state, a.kda, a.workspace);
    // The step form for prefill too: a token's bits must not depend on how its prompt was cut.
    kda->recurrence->Step(a.kda, segments, state, a.kda_o, a.workspace);
    kda->output->Run(a.kda_o, a.kda.gate, rows, a.y, a.workspace);
  } else {
    Dsa(layer, std::get<DsaLayerOps>(ops_.layers[layer].attention), segments, rows,
        DraftSelection::kRecompute);
  }
  QUARTET_RETURN_IF_ERROR(ReduceY(rows));
  if (trace_ != nullptr) {
    trace_->Values(layer, TracePoint::kAttnOut, Rows(a.y, rows, config_.hidden), rows);
  }
  return absl::OkStatus();
}

void Model::Dsa(int layer, const DsaLayerOps& dsa, std::span<const ops::Segment> segments, int rows,
                DraftSelection selection) {
  Activations& a = activations_;
  const ops::KvLayer kv = pools_.kv(layer);
  dsa.project->Run(a.x, segments, rows, kv, pools_.open_pool(layer), a.dsa, a.workspace);

  const int topk = static_cast<int>(config_.index_pools());
  ops::Selection picked = a.selection;
  if (selection == DraftSelection::kShared) {
    // The entry of the draft layer is done with the positions; their place holds the tail's now.
    for (int r = 0; r < rows; ++r) {
      std::copy(kept_pools_.begin(), kept_pools_.begin() + kept_count_, picked.pools + r * topk);
      picked.counts[r] = kept_count_;
      a.mtp_positions[r] = kept_position_;
    }
    picked.tail_positions = a.mtp_positions;
  } else {
    if (trace_ == nullptr) picked.margins = nullptr;
    dsa.select->Run(a.dsa, segments, kv, picked, a.workspace);
    if (trace_ != nullptr) trace_->Selected(layer, picked, topk, rows);
  }
  if (selection == DraftSelection::kKeepLast) {
    kept_count_ = picked.counts[rows - 1];
    std::copy_n(picked.pools + (rows - 1) * topk, kept_count_, kept_pools_.begin());
    kept_position_ = segments.back().position + segments.back().rows - 1;
  }
  dsa.attend->Run(a.dsa.q, picked, segments, rows, kv, a.y, a.workspace);
}

absl::Status Model::Feed(int layer, const LayerOps& ops, int rows) {
  Activations& a = activations_;
  if (trace_ != nullptr) {
    trace_->Values(layer, TracePoint::kMlpIn, Rows(a.x, rows, config_.hidden), rows);
  }
  if (const auto* dense = std::get_if<std::unique_ptr<ops::Mlp>>(&ops.mlp)) {
    (*dense)->Run(a.x, rows, a.y, a.workspace);
  } else {
    RunMoe(layer, *std::get<std::unique_ptr<ops::Moe>>(ops.mlp), rows);
  }
  QUARTET_RETURN_IF_ERROR(ReduceY(rows));
  if (trace_ != nullptr) {
    trace_->Values(layer, TracePoint::kMlpOut, Rows(a.y, rows, config_.hidden), rows);
  }
  return absl::OkStatus();
}

void Model::RunMoe(int layer, const ops::Moe& moe, int rows) {
  Activations& a = activations_;
  ops::RouterTrace router;
  if (trace_ != nullptr) {
    router = {.experts = a.router_experts, .weights = a.router_weights, .logits = a.router_logits};
  }
  moe.Run(a.x, rows, a.y, router, a.workspace);
  if (trace_ != nullptr) {
    trace_->Routed(layer, router, static_cast<int>(config_.experts_per_token),
                   static_cast<int>(config_.experts), rows);
  }
}

}  // namespace quartet
