#ifndef QUARTET_TESTS_UNIT_CHECKPOINT_WEIGHT_WALK_H_
#define QUARTET_TESTS_UNIT_CHECKPOINT_WEIGHT_WALK_H_

#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "shard_worker/checkpoint/weights.h"

namespace quartet::testing {

// How tensor parallelism divides a tensor [rows, cols].
enum class Divided { kNot, kRows, kCols };

struct NamedValues {
  Divided divided = Divided::kNot;
  int64_t rows = 0;
  int64_t cols = 0;
  std::vector<float> values;  // dense tensors
  // EXL3 matrices
  int bits = 0;
  std::vector<uint16_t> trellis;
  std::vector<float> suh;
  std::vector<float> svh;

  bool operator==(const NamedValues&) const = default;
};

using WeightMap = std::map<std::string, NamedValues>;

// Reads everything that a rank holds, by a name of the place in ModelWeights.
class WeightWalk {
 public:
  static WeightMap Read(const ModelWeights& weights) {
    WeightWalk walk;
    walk.Add("embedding", weights.embedding, Divided::kRows);
    for (size_t i = 0; i < weights.layers.size(); ++i) {
      walk.Layer(absl::StrCat("layer", i, "."), weights.layers[i]);
    }
    walk.Add("final_norm", weights.final_norm, Divided::kNot);
    walk.Add("head", weights.head, Divided::kRows);
    if (weights.mtp) {
      const MtpWeights& mtp = *weights.mtp;
      walk.Add("mtp.enorm", mtp.enorm, Divided::kNot);
      walk.Add("mtp.hnorm", mtp.hnorm, Divided::kNot);
      walk.Add("mtp.eh_proj", mtp.eh_proj, Divided::kNot);
      walk.Add("mtp.input_norm", mtp.input_norm, Divided::kNot);
      walk.Add("mtp.post_attention_norm", mtp.post_attention_norm, Divided::kNot);
      walk.Dsa("mtp.", mtp.attention);
      walk.Moe("mtp.", mtp.moe);
      walk.Add("mtp.head_norm", mtp.head_norm, Divided::kNot);
    }
    return walk.map_;
  }

 private:
  void Put(const std::string& name, NamedValues values) {
    if (!map_.emplace(name, std::move(values)).second) std::abort();
  }

  void Add(const std::string& name, const DenseView& view, Divided divided) {
    NamedValues out{divided, view.rows, view.cols, std::vector<float>(view.rows * view.cols)};
    if (!ReadDenseF32(view, out.values.data()).ok()) std::abort();
    Put(name, std::move(out));
  }

  void Add(const std::string& name, const VectorView& view, Divided divided) {
    NamedValues out{divided, view.count, 1, std::vector<float>(view.count)};
    if (!ReadVectorF32(view, out.values.data()).ok()) std::abort();
    Put(name, std::move(out));
  }

  void Add(const std::string& name, const LinearView& linear, Divided divided) {
    if (const DenseView* dense = std::get_if<DenseView>(&linear)) return Add(name, *dense, divided);
    const Exl3View& view = std::get<Exl3View>(linear);
    NamedValues out{divided, view.out, view.in};
    out.bits = view.bits;
    out.trellis.resize(view.tile_rows() * view.tile_cols() * 16 * view.bits);
    CopyTrellis(view, out.trellis.data());
    out.suh.resize(view.suh.count);
    out.svh.resize(view.svh.count);
    if (!ReadExl3VectorF32(view.suh, out.suh.data()).ok()) std::abort();
    if (!ReadExl3VectorF32(view.svh, out.svh.data()).ok()) std::abort();
    Put(name, std::move(out));
  }

  void Layer(const std::string& at, const LayerWeights& layer) {
    for (const auto& [name, site] :
         {std::pair{"hc_attn.", &layer.hc_attn}, std::pair{"hc_ffn.", &layer.hc_ffn}}) {
      Add(at + name + "fn", site->fn, Divided::kNot);
      Add(at + name + "base", site->base, Divided::kNot);
      Add(at + name + "scale", site->scale, Divided::kNot);
    }
    Add(at + "input_norm", layer.input_norm, Divided::kNot);
    Add(at + "post_attention_norm", layer.post_attention_norm, Divided::kNot);
    if (const auto* kda = std::get_if<KdaWeights>(&layer.attention)) Kda(at, *kda);
    if (const auto* dsa = std::get_if<DsaWeights>(&layer.attention)) Dsa(at, *dsa);
    if (const auto* mlp = std::get_if<MlpWeights>(&layer.mlp)) Mlp(at + "mlp.", *mlp);
    if (const auto* moe = std::get_if<MoeWeights>(&layer.mlp)) Moe(at, *moe);
  }

  void Kda(const std::string& at, const KdaWeights& w) {
    Add(at + "q_proj", w.q_proj, Divided::kRows);
    Add(at + "k_proj", w.k_proj, Divided::kRows);
    Add(at + "v_proj", w.v_proj, Divided::kRows);
    Add(at + "q_conv", w.q_conv, Divided::kRows);
    Add(at + "k_conv", w.k_conv, Divided::kRows);
    Add(at + "v_conv", w.v_conv, Divided::kRows);
    Add(at + "f_a", w.f_a, Divided::kNot);
    Add(at + "f_b", w.f_b, Divided::kRows);
    Add(at + "g_a", w.g_a, Divided::kNot);
    Add(at + "g_b", w.g_b, Divided::kRows);
    Add(at + "b_proj", w.b_proj, Divided::kRows);
    Add(at + "a_log", w.a_log, Divided::kRows);
    Add(at + "dt_bias", w.dt_bias, Divided::kRows);
    Add(at + "o_norm", w.o_norm, Divided::kNot);
    Add(at + "o_proj", w.o_proj, Divided::kCols);
  }

  void Dsa(const std::string& at, const DsaWeights& w) {
    Add(at + "q_a", w.q_a, Divided::kNot);
    Add(at + "q_a_norm", w.q_a_norm, Divided::kNot);
    Add(at + "q_b", w.q_b, Divided::kRows);
    Add(at + "kv_a", w.kv_a, Divided::kNot);
    Add(at + "kv_a_norm", w.kv_a_norm, Divided::kNot);
    Add(at + "kv_b", w.kv_b, Divided::kRows);
    Add(at + "o_proj", w.o_proj, Divided::kCols);
    Add(at + "wq_b", w.indexer.wq_b, Divided::kNot);
    Add(at + "wk", w.indexer.wk, Divided::kNot);
    Add(at + "weights_proj", w.indexer.weights_proj, Divided::kNot);
    Add(at + "k_norm_weight", w.indexer.k_norm_weight, Divided::kNot);
    Add(at + "k_norm_bias", w.indexer.k_norm_bias, Divided::kNot);
    Add(at + "pool_ape", w.indexer.pool_ape, Divided::kNot);
    Add(at + "pool_gate", w.indexer.pool_gate, Divided::kNot);
  }

  void Mlp(const std::string& at, const MlpWeights& w) {
    Add(at + "gate", w.gate, Divided::kRows);
    Add(at + "up", w.up, Divided::kRows);
    Add(at + "down", w.down, Divided::kCols);
  }

  void Moe(const std::string& at, const MoeWeights& w) {
    Add(at + "router", w.router, Divided::kNot);
    Add(at + "correction_bias", w.correction_bias, Divided::kNot);
    Mlp(at + "shared.", w.shared);
    for (size_t e = 0; e < w.experts.size(); ++e)
      Mlp(absl::StrCat(at, "expert", e, "."), w.experts[e]);
  }

  WeightMap map_;
};

// A checkpoint, its configuration and what a rank resolves to.
struct Resolved {
  ModelConfig config;
  std::unique_ptr<Checkpoint> checkpoint;
  ModelWeights weights;
};

inline absl::StatusOr<Resolved> ResolveFolder(const std::string& dir, int tp = 1, int rank = 0) {
  Resolved resolved;
  absl::StatusOr<ModelConfig> config = ReadModelConfig(dir);
  if (!config.ok()) return config.status();
  resolved.config = *std::move(config);
  absl::StatusOr<std::unique_ptr<Checkpoint>> checkpoint = Checkpoint::Open(dir);
  if (!checkpoint.ok()) return checkpoint.status();
  resolved.checkpoint = *std::move(checkpoint);
  absl::StatusOr<ModelWeights> weights =
      ResolveWeights(*resolved.checkpoint, resolved.config, tp, rank);
  if (!weights.ok()) return weights.status();
  resolved.weights = *std::move(weights);
  return resolved;
}

inline std::string MiniModel() {
  return QUARTET_SOURCE_DIR "/tests/data/model";
}
inline std::string DemoModel() {
  return QUARTET_SOURCE_DIR "/models/quartet-demo-exl3";
}
inline std::string DemoStdModel() {
  return QUARTET_SOURCE_DIR "/models/quartet-demo-exl3-std";
}

}  // namespace quartet::testing

#endif  // QUARTET_TESTS_UNIT_CHECKPOINT_WEIGHT_WALK_H_
