#include "tests/unit/kernels/golden_model.h"

namespace quartet::testing {

ops::NormWeights GoldenModel::Norm(const std::string& name) const {
  return {file_.Vector(name), 1e-5f};
}

ops::KdaWeights GoldenModel::Kda(int layer) const {
  const std::string p = Layer(layer) + "self_attn.";
  ops::KdaWeights w;
  w.q = file_.Matrix(p + "q_proj.weight");
  w.k = file_.Matrix(p + "k_proj.weight");
  w.v = file_.Matrix(p + "v_proj.weight");
  w.q_conv = file_.Vector(p + "q_conv1d.weight");
  w.k_conv = file_.Vector(p + "k_conv1d.weight");
  w.v_conv = file_.Vector(p + "v_conv1d.weight");
  w.f_a = file_.Matrix(p + "f_a_proj.weight");
  w.g_a = file_.Matrix(p + "g_a_proj.weight");
  w.f_b = file_.Matrix(p + "f_b_proj.weight");
  w.g_b = file_.Matrix(p + "g_b_proj.weight");
  w.b = file_.Matrix(p + "b_proj.weight");
  w.a_log = file_.Vector(p + "A_log");
  w.dt_bias = file_.Vector(p + "dt_bias");
  w.o_norm = file_.Vector(p + "o_norm.weight");
  w.o = file_.Matrix(p + "o_proj.weight");
  w.heads = kHeads;
  w.head_dim = kKdaDim;
  return w;
}

ops::MlaWeights GoldenModel::Mla(int layer) const {
  const std::string p = Layer(layer) + "self_attn.";
  ops::MlaWeights w;
  w.q_a = file_.Matrix(p + "q_a_proj.weight");
  w.q_a_norm = Norm(p + "q_a_layernorm.weight");
  w.q_b = file_.Matrix(p + "q_b_proj.weight");
  w.kv_a = file_.Matrix(p + "kv_a_proj_with_mqa.weight");
  w.kv_a_norm = Norm(p + "kv_a_layernorm.weight");
  w.kv_b = file_.Matrix(p + "kv_b_proj.weight");
  w.o = file_.Matrix(p + "o_proj.weight");
  w.heads = kHeads;
  w.nope_dim = kNope;
  w.v_dim = kNope;
  return w;
}

ops::IndexerWeights GoldenModel::Indexer(int layer) const {
  const std::string p = Layer(layer) + "self_attn.indexer.";
  ops::IndexerWeights w;
  w.wq_b = file_.Matrix(p + "wq_b.weight");
  w.wk = file_.Matrix(p + "wk.weight");
  w.k_norm_weight = file_.Vector(p + "k_norm.weight");
  w.k_norm_bias = file_.Vector(p + "k_norm.bias");
  w.gate = file_.Matrix(p + "index_kpool_compress_gate");
  w.ape = file_.Vector(p + "index_kpool_compress_ape");
  w.head_weights = file_.Matrix(p + "weights_proj.weight");
  w.heads = kIndexHeads;
  w.dim = kIndexDim;
  w.kpool = kPool;
  w.topk_pools = kTopkPools;
  return w;
}

ops::MlpWeights GoldenModel::Mlp(const std::string& prefix) const {
  ops::MlpWeights w;
  w.gate = file_.Matrix(prefix + "gate_proj.weight");
  w.up = file_.Matrix(prefix + "up_proj.weight");
  w.down = file_.Matrix(prefix + "down_proj.weight");
  w.limit = 2.0f;
  return w;
}

ops::MoeWeights GoldenModel::Moe(int layer) const {
  const std::string p = Layer(layer) + "mlp.";
  ops::MoeWeights w;
  w.router = file_.Matrix(p + "gate.weight");
  w.correction_bias = file_.Vector(p + "gate.e_score_correction_bias");
  for (int e = 0; e < kExperts; ++e) {
    w.experts.push_back(Mlp(p + "experts." + std::to_string(e) + "."));
  }
  w.shared = Mlp(p + "shared_experts.");
  w.top_k = kTopK;
  w.routed_scaling = 2.5f;
  return w;
}

ops::MhcSiteWeights GoldenModel::Mhc(int layer, const std::string& site) const {
  const std::string p = Layer(layer) + "hc_" + site + "_";
  ops::MhcSiteWeights w;
  w.fn = file_.Matrix(p + "fn");
  w.base = file_.Vector(p + "base");
  w.scale = file_.Vector(p + "scale");
  w.norm = Norm(Layer(layer) +
                (site == "attn" ? "input_layernorm.weight" : "post_attention_layernorm.weight"));
  return w;
}

}  // namespace quartet::testing
