#include <algorithm>

#include "shard_worker/model/model.h"
#include "shard_worker/model/status_macros.h"

namespace quartet {
namespace {

size_t WorkspaceBytes(const DsaLayerOps& dsa, const StepLimits& limits) {
  return std::max({dsa.project->WorkspaceBytes(limits.max_rows),
                   dsa.select->WorkspaceBytes(limits.max_rows, limits.max_context),
                   dsa.attend->WorkspaceBytes(limits.max_rows, limits.max_context)});
}

size_t WorkspaceBytes(const KdaLayerOps& kda, const StepLimits& limits) {
  return std::max({kda.project->WorkspaceBytes(limits.max_rows),
                   kda.recurrence->WorkspaceBytes(limits.max_rows),
                   kda.output->WorkspaceBytes(limits.max_rows)});
}

// Of the hungriest of the ops that are forked, which run one after the other as well.
size_t ForkedWorkspaceBytes(const ModelOps& ops, const StepLimits& limits) {
  const int rows = std::min(limits.max_rows, kMaxRecordedRows);
  size_t bytes = 0;
  const auto need = [&](const DsaLayerOps& dsa) {
    bytes = std::max(bytes, dsa.select->WorkspaceBytes(rows, limits.max_context));
  };
  for (const LayerOps& layer : ops.layers) {
    if (const auto* dsa = std::get_if<DsaLayerOps>(&layer.attention)) need(*dsa);
  }
  if (ops.mtp) need(ops.mtp->attention);
  return bytes;
}

// Of the hungriest op when nothing is forked: they run one after the other.
size_t WorkspaceBytes(const ModelOps& ops, const StepLimits& limits, const ops::RowSampler& sampler,
                      int64_t vocab) {
  size_t bytes =
      std::max(ops.head->WorkspaceBytes(kHeadRows), sampler.WorkspaceBytes(kHeadRows, vocab));
  for (const LayerOps& layer : ops.layers) {
    bytes = std::max(bytes, std::visit([&](const auto& a) { return WorkspaceBytes(a, limits); },
                                       layer.attention));
    bytes = std::max(
        bytes,
        std::visit([&](const auto& m) { return m->WorkspaceBytes(limits.max_rows); }, layer.mlp));
  }
  if (ops.mtp) {
    bytes = std::max({bytes, ops.mtp->entry->WorkspaceBytes(limits.max_rows),
                      WorkspaceBytes(ops.mtp->attention, limits),
                      ops.mtp->moe->WorkspaceBytes(limits.max_rows)});
  }
  return bytes;
}

// The sizes of the workspaces stand in `a` already.
void Cut(const ModelConfig& config, int tp, const StepLimits& limits, ops::MemoryCutter& cutter,
         Activations& a) {
  const size_t rows = limits.max_rows;
  const size_t hidden = config.hidden;
  const size_t mult = config.hc_mult;
  const size_t vocab = config.vocab_size;
  a.embedding = cutter.Take<float>(rows * hidden);
  a.streams = cutter.Take<float>(rows * mult * hidden);
  a.mix.post = cutter.Take<float>(rows * mult);
  a.mix.comb = cutter.Take<float>(rows * mult * mult);
  a.x = cutter.Take<float>(rows * hidden);
  a.y = cutter.Take<float>(rows * hidden);
  a.h = cutter.Take<float>(rows * hidden);

  const size_t kda_heads = config.kda_heads / tp;
  const size_t kda_inner = kda_heads * config.kda_head_dim;
  a.kda.q = cutter.Take<float>(rows * kda_inner);
  a.kda.k = cutter.Take<float>(rows * kda_inner);
  a.kda.v = cutter.Take<float>(rows * kda_inner);
  a.kda.g = cutter.Take<float>(rows * kda_inner);
  a.kda.beta = cutter.Take<float>(rows * kda_heads);
  a.kda.gate = cutter.Take<float>(rows * kda_inner);
  a.kda_o = cutter.Take<float>(rows * kda_inner);

  a.dsa.latent = cutter.Take<float>(rows * config.q_lora_rank);
  a.dsa.index_w = cutter.Take<float>(rows * config.index_heads);
  a.selection.pools = cutter.Take<int32_t>(rows * config.index_pools());
  a.selection.counts = cutter.Take<int32_t>(rows);
  a.selection.margins = cutter.Take<float>(rows);

  a.router_experts = cutter.Take<int32_t>(rows * config.experts_per_token);
  a.router_weights = cutter.Take<float>(rows * config.experts_per_token);
  a.router_logits = cutter.Take<float>(rows * config.experts);

  a.mtp_tails = cutter.Take<int32_t>(rows);
  a.mtp_h = cutter.Take<float>(rows * hidden);
  a.mtp_x = cutter.Take<float>(rows * hidden);
  a.mtp_o = cutter.Take<float>(rows * hidden);

  a.head_in = cutter.Take<float>(kHeadRows * hidden);
  a.logits_local = cutter.Take<float>(kHeadRows * vocab / tp);
  a.logits_ranks = cutter.Take<float>(tp == 1 ? 0 : kHeadRows * vocab);
  a.workspace.data = cutter.Take<std::byte>(a.workspace.bytes);
  a.forked_workspace.data = cutter.Take<std::byte>(a.forked_workspace.bytes);
}

}  // namespace

absl::StatusOr<Activations> MakeActivations(const ModelConfig& config, int tp, const ModelOps& ops,
                                            const StepLimits& limits, ops::Backend& backend) {
  Activations activations;
  activations.workspace.bytes =
      WorkspaceBytes(ops, limits, backend.row_sampler(), config.vocab_size);
  activations.forked_workspace.bytes = ForkedWorkspaceBytes(ops, limits);
  ops::MemoryCutter measure;
  Cut(config, tp, limits, measure, activations);
  QUARTET_ASSIGN(activations.memory, backend.Allocate(measure.used(), "buffers of a step"));
  ops::MemoryCutter cutter(activations.memory.data());
  Cut(config, tp, limits, cutter, activations);
  return activations;
}

}  // namespace quartet
