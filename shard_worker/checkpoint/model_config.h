#ifndef QUARTET_SHARD_WORKER_CHECKPOINT_MODEL_CONFIG_H_
#define QUARTET_SHARD_WORKER_CHECKPOINT_MODEL_CONFIG_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace quartet {

// Tokens of one page of the attention cache. A pool of indexer keys never crosses a page.
inline constexpr int64_t kTokensPerPage = 256;

// The attention of one layer: linear attention with a recurrent state, or NoPE MLA with sparse
// selection.
enum class AttentionKind { kKda, kDsa };
enum class MlpKind { kDense, kMoe };

enum class QuantMethod { kNone, kFp8, kExl3 };
enum class Exl3Codebook { k3Inst, kMcg, kMul1 };
// Which weight of a 16x16 tile stands at which trellis position. kSm80 is the standard order
// (tensor-core fragments); kColumnMajor puts position p at row p % 16, column p / 16.
enum class Exl3TileOrder { kSm80, kColumnMajor };

std::string_view ToString(AttentionKind kind);
std::string_view ToString(MlpKind kind);
std::string_view ToString(QuantMethod method);
std::string_view ToString(Exl3Codebook codebook);
std::string_view ToString(Exl3TileOrder order);

// `quantization_config`. Absent keys are absent here: nothing is filled in by guess.
struct QuantizationConfig {
  QuantMethod method = QuantMethod::kNone;
  // FP8: block of weights that shares one scale, [out, in].
  int64_t block_rows = 128;
  int64_t block_cols = 128;
  // EXL3.
  std::optional<Exl3Codebook> codebook;
  std::optional<Exl3TileOrder> tile_order;
  // Bits per weight of the quantised matrices when config.json says an integer; an average such as
  // 2.25 or a word such as "mixed_k34_per_tensor" says nothing that could be checked.
  std::optional<int> bits;
  // True if `bits` holds for every routed expert that layer_bits does not name: where config.json
  // also has layer_bits, or says that only routed experts are quantised and that their bits are not
  // mixed.
  bool bits_are_exact = false;
  std::map<int, int> layer_bits;  // layer -> bits, overrides `bits`
  std::vector<int> allowed_bits;  // when given, every tensor's bits must be in it
};

// Sizes of the vision tower that decide which tensors a checkpoint may hold.
struct VisionConfig {
  int64_t depth = 0;
};

// The text model's dimensions, as config.json states them. All counts are of the whole model, not
// of one rank.
struct ModelConfig {
  std::string path;  // the config.json that was read

  int64_t vocab_size = 0;
  int64_t hidden = 0;
  int64_t layers = 0;                    // trunk only
  std::vector<AttentionKind> attention;  // [layers]
  std::vector<MlpKind> mlp;              // [layers]
  int64_t max_position_embeddings = 0;
  float rms_norm_eps = 0;
  float swiglu_limit = 0;  // clamp of every gated MLP

  // KDA.
  int64_t kda_heads = 0;
  int64_t kda_head_dim = 0;
  int64_t kda_conv_kernel = 0;
  float kda_gate_lower_bound = 0;  // log decay lies in (bound, 0)

  // MLA. No rotary part exists: qk_rope_head_dim is 0.
  int64_t mla_heads = 0;
  int64_t q_lora_rank = 0;
  int64_t kv_lora_rank = 0;  // width of the cached latent
  int64_t qk_nope_head_dim = 0;
  int64_t v_head_dim = 0;

  // Indexer.
  int64_t index_heads = 0;
  int64_t index_head_dim = 0;
  int64_t index_topk = 0;   // tokens selected through pools; a multiple of index_kpool
  int64_t index_kpool = 0;  // tokens per pool
  bool index_share_for_mtp = false;

  // MLPs.
  int64_t intermediate = 0;      // inner size of a dense MLP
  int64_t moe_intermediate = 0;  // inner size of a routed expert
  int64_t experts = 0;           // routed
  int64_t experts_per_token = 0;
  int64_t shared_experts = 0;  // the shared expert's inner size is this times moe_intermediate
  float routed_scaling_factor = 0;

  // Manifold hyper-connections.
  int64_t hc_mult = 0;  // residual streams
  float hc_eps = 0;
  int64_t hc_sinkhorn_iters = 0;

  int64_t mtp_layers = 0;  // 0 or 1; its layer index is `layers`

  QuantizationConfig quantization;
  std::optional<VisionConfig> vision;

  int64_t kda_inner() const { return kda_heads * kda_head_dim; }
  int64_t shared_intermediate() const { return shared_experts * moe_intermediate; }
  int64_t index_pools() const { return index_topk / index_kpool; }
  // Rows of an mHC map: hc_mult for pre, hc_mult for post, hc_mult^2 for the mixing matrix.
  int64_t hc_map_rows() const { return hc_mult * (2 + hc_mult); }
  int64_t CountLayers(AttentionKind kind) const;
  int64_t CountLayers(MlpKind kind) const;
  bool has_moe() const { return mtp_layers > 0 || CountLayers(MlpKind::kMoe) > 0; }
};

// Reads DIR/config.json and checks it: every field that the forward pass depends on must be
// present, well typed and consistent. Errors name the file, the field, what was found and what was
// expected.
absl::StatusOr<ModelConfig> ReadModelConfig(const std::string& dir);

// The same from text; `path` is used in messages only.
absl::StatusOr<ModelConfig> ParseModelConfig(std::string_view json, const std::string& path);

// OK if the model's dimensions can be split over `tp` ranks (heads, inner sizes, vocabulary). The
// message names the dimension and the sizes up to 8 that would work. Whether EXL3 tensors can be
// cut there is checked by ResolveWeights, which knows which tensors are EXL3.
absl::Status CheckTensorParallel(const ModelConfig& config, int tp);

}  // namespace quartet

#endif  // QUARTET_SHARD_WORKER_CHECKPOINT_MODEL_CONFIG_H_
