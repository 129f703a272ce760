#include <utility>

#include "shard_worker/model/model.h"
#include "shard_worker/model/status_macros.h"
#include "shard_worker/model/weights_to_ops.h"

namespace quartet {
namespace {

// Prepares the ops of one model, part by part.
class Loader {
 public:
  Loader(const ModelConfig& config, int tp, ops::Backend& backend)
      : config_(config), tp_(tp), backend_(backend) {}

  absl::Status Norm(const VectorView& view, std::unique_ptr<ops::RmsNorm>& out) {
    ops::NormWeights norm;
    QUARTET_ASSIGN(norm, ToNorm(view, config_));
    QUARTET_ASSIGN(out, backend_.PrepareRmsNorm(norm));
    return absl::OkStatus();
  }

  absl::Status Residual(const VectorView& view, std::unique_ptr<ops::ResidualNorm>& out) {
    ops::NormWeights norm;
    QUARTET_ASSIGN(norm, ToNorm(view, config_));
    QUARTET_ASSIGN(out, backend_.PrepareResidualNorm(norm));
    return absl::OkStatus();
  }

  absl::Status Site(const MhcSiteWeights& weights, const VectorView& norm,
                    std::unique_ptr<ops::MhcSite>& out) {
    ops::MhcSiteWeights site;
    QUARTET_ASSIGN(site, ToOps(weights, norm, config_));
    QUARTET_ASSIGN(out, backend_.PrepareMhcSite(site));
    return absl::OkStatus();
  }

  absl::Status Kda(const KdaWeights& weights, KdaLayerOps& out) {
    ops::KdaWeights kda;
    QUARTET_ASSIGN(kda, ToOps(weights, config_, tp_));
    QUARTET_ASSIGN(out.project, backend_.PrepareKdaProject(kda));
    QUARTET_ASSIGN(out.recurrence, backend_.PrepareKdaRecurrence(kda.heads, kda.head_dim));
    QUARTET_ASSIGN(out.output, backend_.PrepareKdaOutput(kda));
    return absl::OkStatus();
  }

  absl::Status Dsa(const DsaWeights& weights, DsaLayerOps& out) {
    ops::MlaWeights mla;
    ops::IndexerWeights indexer;
    QUARTET_ASSIGN(mla, ToMla(weights, config_, tp_));
    QUARTET_ASSIGN(indexer, ToOps(weights.indexer, config_));
    QUARTET_ASSIGN(out.project, backend_.PrepareDsaProject(mla, indexer));
    QUARTET_ASSIGN(out.select, backend_.PrepareIndexerSelect(indexer));
    QUARTET_ASSIGN(out.attend, backend_.PrepareSparseMla(mla, indexer));
    return absl::OkStatus();
  }

  absl::Status Moe(const MoeWeights& weights, std::unique_ptr<ops::Moe>& out) {
    ops::MoeWeights moe;
    QUARTET_ASSIGN(moe, ToOps(weights, config_));
    QUARTET_ASSIGN(out, backend_.PrepareMoe(moe));
    return absl::OkStatus();
  }

  absl::Status Layer(const LayerWeights& weights, LayerOps& out) {
    QUARTET_RETURN_IF_ERROR(Site(weights.hc_attn, weights.input_norm, out.attn_site));
    QUARTET_RETURN_IF_ERROR(Site(weights.hc_ffn, weights.post_attention_norm, out.ffn_site));
    if (const auto* kda = std::get_if<KdaWeights>(&weights.attention)) {
      QUARTET_RETURN_IF_ERROR(Kda(*kda, out.attention.emplace<KdaLayerOps>()));
    } else {
      QUARTET_RETURN_IF_ERROR(
          Dsa(std::get<DsaWeights>(weights.attention), out.attention.emplace<DsaLayerOps>()));
    }
    if (const auto* dense = std::get_if<MlpWeights>(&weights.mlp)) {
      ops::MlpWeights mlp;
      QUARTET_ASSIGN(mlp, ToOps(*dense, config_));
      QUARTET_ASSIGN(out.mlp, backend_.PrepareMlp(mlp));
      return absl::OkStatus();
    }
    return Moe(std::get<MoeWeights>(weights.mlp), out.mlp.emplace<std::unique_ptr<ops::Moe>>());
  }

  absl::Status Mtp(const MtpWeights& weights, MtpOps& out) {
    ops::MtpEntryWeights entry;
    QUARTET_ASSIGN(entry.enorm, ToNorm(weights.enorm, config_));
    QUARTET_ASSIGN(entry.hnorm, ToNorm(weights.hnorm, config_));
    QUARTET_ASSIGN(entry.eh_proj, ToOps(weights.eh_proj));
    QUARTET_ASSIGN(out.entry, backend_.PrepareMtpEntry(entry));
    QUARTET_RETURN_IF_ERROR(Norm(weights.input_norm, out.input_norm));
    QUARTET_RETURN_IF_ERROR(Dsa(weights.attention, out.attention));
    QUARTET_RETURN_IF_ERROR(Residual(weights.post_attention_norm, out.post_attention_norm));
    QUARTET_RETURN_IF_ERROR(Moe(weights.moe, out.moe));
    return Residual(weights.head_norm, out.head_norm);
  }

  absl::Status Ends(const ModelWeights& weights, ModelOps& out) {
    ops::EmbeddingWeights embedding;
    QUARTET_ASSIGN(embedding.table, ToOps(weights.embedding));
    embedding.vocab_begin = weights.vocab_begin;
    QUARTET_ASSIGN(out.embedding, backend_.PrepareEmbedding(embedding));
    ops::HeadWeights head;
    QUARTET_ASSIGN(head.weight, ToOps(weights.head));
    QUARTET_ASSIGN(out.head, backend_.PrepareHead(head));
    ops::NormWeights norm;
    QUARTET_ASSIGN(norm, ToNorm(weights.final_norm, config_));
    QUARTET_ASSIGN(out.finish, backend_.PrepareMhcFinish(norm, static_cast<int>(config_.hc_mult)));
    return absl::OkStatus();
  }

 private:
  const ModelConfig& config_;
  const int tp_;
  ops::Backend& backend_;
};

}  // namespace

absl::StatusOr<ModelOps> LoadModelOps(const ModelConfig& config, const ModelWeights& weights,
                                      ops::Backend& backend, const LoadProgressFn& progress) {
  LoadStep step;
  step.total_bytes = StoredBytes(weights);
  const auto report = [&](int64_t bytes) {
    step.done_bytes += bytes;
    return progress ? progress(step) : absl::OkStatus();
  };
  QUARTET_RETURN_IF_ERROR(report(0));

  ModelOps out;
  Loader loader(config, weights.tp, backend);
  int64_t rest = step.total_bytes;
  out.layers.resize(weights.layers.size());
  for (size_t i = 0; i < weights.layers.size(); ++i) {
    QUARTET_RETURN_IF_ERROR(loader.Layer(weights.layers[i], out.layers[i]));
    const int64_t bytes = StoredBytes(weights.layers[i]);
    rest -= bytes;
    QUARTET_RETURN_IF_ERROR(report(bytes));
  }
  if (weights.mtp) {
    QUARTET_RETURN_IF_ERROR(loader.Mtp(*weights.mtp, out.mtp.emplace()));
    const int64_t bytes = StoredBytes(*weights.mtp);
    rest -= bytes;
    QUARTET_RETURN_IF_ERROR(report(bytes));
  }
  QUARTET_RETURN_IF_ERROR(loader.Ends(weights, out));
  QUARTET_RETURN_IF_ERROR(report(rest));
  return out;
}

}  // namespace quartet
