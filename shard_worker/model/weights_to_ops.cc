#include "shard_worker/model/weights_to_ops.h"

#include <string>
#include <variant>

#include "absl/status/status.h"
#include "absl/strings/str_format.h"
#include "shard_worker/model/status_macros.h"

namespace quartet {
namespace {

absl::StatusOr<ops::DType> ToOps(const TensorView& tensor) {
  switch (tensor.dtype) {
    case Dtype::kF32:
      return ops::DType::kF32;
    case Dtype::kF16:
      return ops::DType::kF16;
    case Dtype::kBf16:
      return ops::DType::kBF16;
    case Dtype::kF8E4M3:
      return ops::DType::kF8E4M3;
    default:
      return absl::InvalidArgumentError(absl::StrFormat(
          "%s: tensor \"%s\" is %s, expected F32, F16, BF16 or F8_E4M3", std::string(tensor.file),
          tensor.name, std::string(ToString(tensor.dtype))));
  }
}

ops::Codebook ToOps(Exl3Codebook codebook) {
  switch (codebook) {
    case Exl3Codebook::k3Inst:
      return ops::Codebook::k3Inst;
    case Exl3Codebook::kMcg:
      return ops::Codebook::kMcg;
    case Exl3Codebook::kMul1:
      return ops::Codebook::kMul1;
  }
  return ops::Codebook::k3Inst;
}

ops::TileOrder ToOps(Exl3TileOrder order) {
  return order == Exl3TileOrder::kSm80 ? ops::TileOrder::kSm80 : ops::TileOrder::kColumnMajor;
}

// The first byte of a scale vector's part; signs are packed 16 to a word, and every cut of a matrix
// is a multiple of 16.
const std::byte* Begin(const Exl3Vector& vector) {
  const int64_t byte = vector.signs ? vector.begin / 8 : vector.begin * 2;
  return vector.tensor->data + byte;
}

absl::StatusOr<ops::LinearWeights> ToOps(const Exl3View& view) {
  ops::Exl3Matrix matrix;
  matrix.bits = view.bits;
  matrix.codebook = ToOps(view.codebook);
  matrix.tile_order = ToOps(view.tile_order);
  matrix.in = view.padded_in;
  matrix.out = view.padded_out;
  matrix.used_in = view.in;
  matrix.used_out = view.out;
  matrix.trellis = view.trellis;
  matrix.tile_row_stride = view.tile_row_stride_bytes / view.tile_bytes;
  (view.suh.signs ? matrix.su_signs : matrix.suh) = Begin(view.suh);
  (view.svh.signs ? matrix.sv_signs : matrix.svh) = Begin(view.svh);
  return matrix;
}

int64_t StoredBytes(const DenseView& view) {
  return view.rows * view.cols * DtypeSize(view.tensor->dtype);
}
int64_t StoredBytes(const VectorView& view) {
  return view.count * DtypeSize(view.tensor->dtype);
}
int64_t StoredBytes(const Exl3View& view) {
  return view.tile_rows() * view.tile_cols() * view.tile_bytes +
         2 * (view.padded_in + view.padded_out);
}

template <typename... Views>
int64_t Sum(const Views&... views) {
  return (StoredBytes(views) + ... + 0);
}

int64_t StoredBytes(const KdaWeights& w) {
  return Sum(w.q_proj, w.k_proj, w.v_proj, w.q_conv, w.k_conv, w.v_conv, w.f_a, w.f_b, w.g_a, w.g_b,
             w.b_proj, w.a_log, w.dt_bias, w.o_norm, w.o_proj);
}
int64_t StoredBytes(const DsaWeights& w) {
  const IndexerWeights& i = w.indexer;
  return Sum(w.q_a, w.q_a_norm, w.q_b, w.kv_a, w.kv_a_norm, w.kv_b, w.o_proj, i.wq_b, i.wk,
             i.weights_proj, i.k_norm_weight, i.k_norm_bias, i.pool_ape, i.pool_gate);
}
int64_t StoredBytes(const MlpWeights& w) {
  return Sum(w.gate, w.up, w.down);
}
int64_t StoredBytes(const MoeWeights& w) {
  int64_t bytes = Sum(w.router, w.correction_bias) + StoredBytes(w.shared);
  for (const MlpWeights& expert : w.experts) bytes += StoredBytes(expert);
  return bytes;
}
int64_t StoredBytes(const MhcSiteWeights& w) {
  return Sum(w.fn, w.base, w.scale);
}

}  // namespace

absl::StatusOr<ops::DenseMatrix> ToOps(const DenseView& view) {
  ops::DenseMatrix matrix;
  QUARTET_ASSIGN(matrix.dtype, ToOps(*view.tensor));
  matrix.data = view.tensor->data +
                (view.row_begin * view.row_stride + view.col_begin) * DtypeSize(view.tensor->dtype);
  matrix.rows = view.rows;
  matrix.cols = view.cols;
  matrix.row_stride = view.row_stride;
  if (view.scale != nullptr) {
    matrix.scales = view.scale->data;
    matrix.scale_stride = view.scale->shape.back();
    matrix.block_rows = view.block_rows;
    matrix.block_cols = view.block_cols;
    matrix.row_offset = view.row_begin;
    matrix.col_offset = view.col_begin;
  }
  return matrix;
}

absl::StatusOr<ops::LinearWeights> ToOps(const LinearView& view) {
  if (const auto* exl3 = std::get_if<Exl3View>(&view)) return ToOps(*exl3);
  ops::LinearWeights weights;
  QUARTET_ASSIGN(weights, ToOps(std::get<DenseView>(view)));
  return weights;
}

absl::StatusOr<ops::VectorView> ToOps(const VectorView& view) {
  ops::VectorView out;
  QUARTET_ASSIGN(out.dtype, ToOps(*view.tensor));
  out.data = view.tensor->data + view.begin * DtypeSize(view.tensor->dtype);
  out.size = view.count;
  return out;
}

absl::StatusOr<ops::VectorView> ToFlat(const DenseView& view) {
  if (view.cols != view.row_stride || view.scale != nullptr) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s: tensor \"%s\" must be stored in F32, F16 or BF16 with whole rows of %d values",
        std::string(view.tensor->file), view.tensor->name, view.row_stride));
  }
  ops::VectorView out;
  QUARTET_ASSIGN(out.dtype, ToOps(*view.tensor));
  out.data = view.tensor->data + view.row_begin * view.row_stride * DtypeSize(view.tensor->dtype);
  out.size = view.rows * view.cols;
  return out;
}

absl::StatusOr<ops::NormWeights> ToNorm(const VectorView& view, const ModelConfig& config) {
  ops::NormWeights norm;
  QUARTET_ASSIGN(norm.weight, ToOps(view));
  norm.eps = config.rms_norm_eps;
  return norm;
}

absl::StatusOr<ops::KdaWeights> ToOps(const KdaWeights& weights, const ModelConfig& config,
                                      int tp) {
  ops::KdaWeights out;
  QUARTET_ASSIGN(out.q, ToOps(weights.q_proj));
  QUARTET_ASSIGN(out.k, ToOps(weights.k_proj));
  QUARTET_ASSIGN(out.v, ToOps(weights.v_proj));
  QUARTET_ASSIGN(out.q_conv, ToFlat(weights.q_conv));
  QUARTET_ASSIGN(out.k_conv, ToFlat(weights.k_conv));
  QUARTET_ASSIGN(out.v_conv, ToFlat(weights.v_conv));
  QUARTET_ASSIGN(out.f_a, ToOps(weights.f_a));
  QUARTET_ASSIGN(out.f_b, ToOps(weights.f_b));
  QUARTET_ASSIGN(out.g_a, ToOps(weights.g_a));
  QUARTET_ASSIGN(out.g_b, ToOps(weights.g_b));
  QUARTET_ASSIGN(out.b, ToOps(weights.b_proj));
  QUARTET_ASSIGN(out.a_log, ToOps(weights.a_log));
  QUARTET_ASSIGN(out.dt_bias, ToOps(weights.dt_bias));
  QUARTET_ASSIGN(out.o_norm, ToOps(weights.o_norm));
  QUARTET_ASSIGN(out.o, ToOps(weights.o_proj));
  out.heads = static_cast<int>(config.kda_heads / tp);
  out.head_dim = static_cast<int>(config.kda_head_dim);
  out.conv_kernel = static_cast<int>(config.kda_conv_kernel);
  out.gate_lower_bound = config.kda_gate_lower_bound;
  out.norm_eps = config.rms_norm_eps;
  return out;
}

absl::StatusOr<ops::MlaWeights> ToMla(const DsaWeights& weights, const ModelConfig& config,
                                      int tp) {
  ops::MlaWeights out;
  QUARTET_ASSIGN(out.q_a, ToOps(weights.q_a));
  QUARTET_ASSIGN(out.q_a_norm, ToNorm(weights.q_a_norm, config));
  QUARTET_ASSIGN(out.q_b, ToOps(weights.q_b));
  QUARTET_ASSIGN(out.kv_a, ToOps(weights.kv_a));
  QUARTET_ASSIGN(out.kv_a_norm, ToNorm(weights.kv_a_norm, config));
  QUARTET_ASSIGN(out.kv_b, ToOps(weights.kv_b));
  QUARTET_ASSIGN(out.o, ToOps(weights.o_proj));
  out.heads = static_cast<int>(config.mla_heads / tp);
  out.nope_dim = static_cast<int>(config.qk_nope_head_dim);
  out.v_dim = static_cast<int>(config.v_head_dim);
  return out;
}

absl::StatusOr<ops::IndexerWeights> ToOps(const IndexerWeights& weights,
                                          const ModelConfig& config) {
  ops::IndexerWeights out;
  QUARTET_ASSIGN(out.wq_b, ToOps(weights.wq_b));
  QUARTET_ASSIGN(out.wk, ToOps(weights.wk));
  QUARTET_ASSIGN(out.k_norm_weight, ToOps(weights.k_norm_weight));
  QUARTET_ASSIGN(out.k_norm_bias, ToOps(weights.k_norm_bias));
  QUARTET_ASSIGN(out.gate, ToOps(weights.pool_gate));
  QUARTET_ASSIGN(out.ape, ToFlat(weights.pool_ape));
  QUARTET_ASSIGN(out.head_weights, ToOps(weights.weights_proj));
  out.heads = static_cast<int>(config.index_heads);
  out.dim = static_cast<int>(config.index_head_dim);
  out.kpool = static_cast<int>(config.index_kpool);
  out.topk_pools = static_cast<int>(config.index_pools());
  return out;
}

absl::StatusOr<ops::MlpWeights> ToOps(const MlpWeights& weights, const ModelConfig& config) {
  ops::MlpWeights out;
  QUARTET_ASSIGN(out.gate, ToOps(weights.gate));
  QUARTET_ASSIGN(out.up, ToOps(weights.up));
  QUARTET_ASSIGN(out.down, ToOps(weights.down));
  out.limit = config.swiglu_limit;
  return out;
}

absl::StatusOr<ops::MoeWeights> ToOps(const MoeWeights& weights, const ModelConfig& config) {
  ops::MoeWeights out;
  QUARTET_ASSIGN(out.router, ToOps(weights.router));
  QUARTET_ASSIGN(out.correction_bias, ToOps(weights.correction_bias));
  out.experts.resize(weights.experts.size());
  for (size_t e = 0; e < weights.experts.size(); ++e) {
    QUARTET_ASSIGN(out.experts[e], ToOps(weights.experts[e], config));
  }
  QUARTET_ASSIGN(out.shared, ToOps(weights.shared, config));
  out.top_k = static_cast<int>(config.experts_per_token);
  out.routed_scaling = config.routed_scaling_factor;
  return out;
}

absl::StatusOr<ops::MhcSiteWeights> ToOps(const MhcSiteWeights& weights, const VectorView& norm,
                                          const ModelConfig& config) {
  ops::MhcSiteWeights out;
  QUARTET_ASSIGN(out.fn, ToOps(weights.fn));
  QUARTET_ASSIGN(out.base, ToOps(weights.base));
  QUARTET_ASSIGN(out.scale, ToOps(weights.scale));
  QUARTET_ASSIGN(out.norm, ToNorm(norm, config));
  out.hc_mult = static_cast<int>(config.hc_mult);
  out.sinkhorn_iters = static_cast<int>(config.hc_sinkhorn_iters);
  out.hc_eps = config.hc_eps;
  out.norm_eps = config.rms_norm_eps;
  return out;
}

int64_t StoredBytes(const LinearView& view) {
  return std::visit([](const auto& v) { return StoredBytes(v); }, view);
}

int64_t StoredBytes(const LayerWeights& weights) {
  const auto any = [](const auto& w) { return StoredBytes(w); };
  return StoredBytes(weights.hc_attn) + StoredBytes(weights.hc_ffn) +
         Sum(weights.input_norm, weights.post_attention_norm) + std::visit(any, weights.attention) +
         std::visit(any, weights.mlp);
}

int64_t StoredBytes(const MtpWeights& weights) {
  return Sum(weights.enorm, weights.hnorm, weights.eh_proj, weights.input_norm,
             weights.post_attention_norm, weights.head_norm) +
         StoredBytes(weights.attention) + StoredBytes(weights.moe);
}

int64_t StoredBytes(const ModelWeights& weights) {
  int64_t bytes = Sum(weights.embedding, weights.final_norm, weights.head);
  for (const LayerWeights& layer : weights.layers) bytes += StoredBytes(layer);
  if (weights.mtp) bytes += StoredBytes(*weights.mtp);
  return bytes;
}

}  // namespace quartet
