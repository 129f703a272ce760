#ifndef QUARTET_SHARD_WORKER_CHECKPOINT_WEIGHT_VIEWS_H_
#define QUARTET_SHARD_WORKER_CHECKPOINT_WEIGHT_VIEWS_H_

#include <variant>

#include "shard_worker/checkpoint/weights.h"

// A walk over every view of a rank's weights, for whatever counts or lists them.

namespace quartet {

// What kind of weight a view is, apart from how it is stored.
struct WeightTraits {
  enum class Share {
    kRoutedExpert,
    kMtpExpert,
    kSharded,     // divided among the ranks
    kReplicated,  // whole on every rank
  };
  Share share = Share::kReplicated;
  // Decides something that all ranks must decide alike (router, indexer), or is small and used by
  // element (norms, convolutions): stays FP32 on every device.
  bool exact = false;
};

// Calls visit(const DenseView& | const VectorView& | const Exl3View&, WeightTraits) for each view
// of one loadable part. A model's parts, in the order in which they are loaded, are its layers, the
// draft layer if there is one, and the ends (embedding, head, final norm).
template <typename Visit>
class WeightVisitor {
 public:
  explicit WeightVisitor(Visit visit) : visit_(std::move(visit)) {}

  void Layer(const LayerWeights& w) {
    Site(w.hc_attn);
    Exact(w.input_norm);
    Site(w.hc_ffn);
    Exact(w.post_attention_norm);
    std::visit([&](const auto& attention) { Attention(attention); }, w.attention);
    if (const auto* dense = std::get_if<MlpWeights>(&w.mlp)) {
      Mlp(*dense, Share::kSharded);
    } else {
      Moe(std::get<MoeWeights>(w.mlp), Share::kRoutedExpert);
    }
  }

  void Mtp(const MtpWeights& w) {
    Exact(w.enorm, w.hnorm);
    Replicated(w.eh_proj);
    Exact(w.input_norm);
    Attention(w.attention);
    Exact(w.post_attention_norm);
    Moe(w.moe, Share::kMtpExpert);
    Exact(w.head_norm);
  }

  void Ends(const ModelWeights& w) {
    Sharded(w.embedding, w.head);
    Exact(w.final_norm);
  }

 private:
  using Share = WeightTraits::Share;

  void One(const LinearView& linear, WeightTraits traits) {
    std::visit([&](const auto& view) { visit_(view, traits); }, linear);
  }
  void One(const DenseView& view, WeightTraits traits) { visit_(view, traits); }
  void One(const VectorView& view, WeightTraits traits) { visit_(view, traits); }

  template <typename... Views>
  void All(WeightTraits traits, const Views&... views) {
    (One(views, traits), ...);
  }
  template <typename... Views>
  void Sharded(const Views&... views) {
    All({Share::kSharded, false}, views...);
  }
  template <typename... Views>
  void Replicated(const Views&... views) {
    All({Share::kReplicated, false}, views...);
  }
  template <typename... Views>
  void Exact(const Views&... views) {
    All({Share::kReplicated, true}, views...);
  }
  template <typename... Views>
  void ShardedExact(const Views&... views) {
    All({Share::kSharded, true}, views...);
  }

  void Site(const MhcSiteWeights& w) {
    Replicated(w.fn);
    Exact(w.base, w.scale);
  }

  void Attention(const KdaWeights& w) {
    Sharded(w.q_proj, w.k_proj, w.v_proj, w.f_b, w.g_b, w.b_proj, w.o_proj);
    ShardedExact(w.q_conv, w.k_conv, w.v_conv, w.a_log, w.dt_bias);
    Replicated(w.f_a, w.g_a);
    Exact(w.o_norm);
  }

  void Attention(const DsaWeights& w) {
    Replicated(w.q_a, w.kv_a);
    Exact(w.q_a_norm, w.kv_a_norm);
    Sharded(w.q_b, w.kv_b, w.o_proj);
    const IndexerWeights& i = w.indexer;
    Exact(i.wq_b, i.wk, i.weights_proj, i.k_norm_weight, i.k_norm_bias, i.pool_ape, i.pool_gate);
  }

  void Mlp(const MlpWeights& w, Share share) { All({share, false}, w.gate, w.up, w.down); }

  void Moe(const MoeWeights& w, Share expert_share) {
    Exact(w.router, w.correction_bias);
    for (const MlpWeights& expert : w.experts) Mlp(expert, expert_share);
    Mlp(w.shared, Share::kSharded);
  }

  Visit visit_;
};

}  // namespace quartet

#endif  // QUARTET_SHARD_WORKER_CHECKPOINT_WEIGHT_VIEWS_H_
