#ifndef QUARTET_SHARD_WORKER_CHECKPOINT_WEIGHTS_H_
#define QUARTET_SHARD_WORKER_CHECKPOINT_WEIGHTS_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "shard_worker/checkpoint/model_config.h"
#include "shard_worker/checkpoint/safetensors.h"

// The tensors of the model as one rank sees them. Nothing here reads a weight: a view says where
// the rank's part of a stored tensor lies, and the readers at the end copy or widen it. Views point
// into a Checkpoint, which must outlive them.
//
// Letters in shape comments: H hidden, V vocabulary, D = kda heads * head dim, I inner size of an
// MLP, E experts. A size written X/tp is the rank's part, all others are replicated.

namespace quartet {

// A rectangle of a stored matrix [out, in]: rows [row_begin, row_begin + rows), columns likewise.
struct DenseView {
  const TensorView* tensor = nullptr;  // F32, F16, BF16 or F8_E4M3
  int64_t row_begin = 0;
  int64_t rows = 0;  // outputs of this rank
  int64_t col_begin = 0;
  int64_t cols = 0;        // inputs of this rank
  int64_t row_stride = 0;  // elements from one stored row to the next

  // F8_E4M3 only: F32 factors, one per block of block_rows x block_cols stored weights.
  const TensorView* scale = nullptr;
  int64_t block_rows = 0;
  int64_t block_cols = 0;
};

// A run of a stored vector: F32, F16 or BF16.
struct VectorView {
  const TensorView* tensor = nullptr;
  int64_t begin = 0;
  int64_t count = 0;
};

// The vector on one side of an EXL3 matrix: F16 values, or the older form, one sign bit per element
// (bit i of 16-bit word w set means element 16 w + i is -1, else +1).
struct Exl3Vector {
  const TensorView* tensor = nullptr;
  bool signs = false;
  int64_t begin = 0;  // first element of the rank's part, counted from the start of the tensor
  int64_t count = 0;
};

// A trellis-coded matrix, y = x diag(suh) Had Q Had diag(svh), x [in], y [out]. Q is stored as
// tiles of 16 x 16 weights, each 16 * bits 16-bit words (read a tile as little-endian 32-bit
// words). Note the order: tiles run over inputs first, the transpose of a dense weight.
struct Exl3View {
  std::string name;  // the module, for messages
  int bits = 0;      // per weight, 1..8
  Exl3Codebook codebook = Exl3Codebook::k3Inst;
  Exl3TileOrder tile_order = Exl3TileOrder::kSm80;

  int64_t in = 0;   // inputs of this rank that the model uses
  int64_t out = 0;  // outputs of this rank that the model uses
  // The stored sizes, multiples of 128. Larger than in/out only where the model's own size is not a
  // multiple of 128: then feed zeros to the extra inputs and drop the extra outputs.
  int64_t padded_in = 0;
  int64_t padded_out = 0;

  const TensorView* tensor = nullptr;  // holds the trellis
  const std::byte* trellis = nullptr;  // first byte of the rank's tile (0, 0)
  int64_t tile_bytes = 0;              // 32 * bits; tile (i, j + 1) follows tile (i, j)
  int64_t tile_row_stride_bytes = 0;   // from tile (i, j) to tile (i + 1, j)
  Exl3Vector suh;                      // [padded_in]
  Exl3Vector svh;                      // [padded_out]

  int64_t tile_rows() const { return padded_in / 16; }
  int64_t tile_cols() const { return padded_out / 16; }
  const std::byte* tile(int64_t i, int64_t j) const {
    return trellis + i * tile_row_stride_bytes + j * tile_bytes;
  }
};

// Any linear layer may be stored either way.
using LinearView = std::variant<DenseView, Exl3View>;

// Inputs and outputs of this rank, whatever the storage.
int64_t InDim(const LinearView& linear);
int64_t OutDim(const LinearView& linear);

struct KdaWeights {
  LinearView q_proj;   // [D/tp, H]
  LinearView k_proj;   // [D/tp, H]
  LinearView v_proj;   // [D/tp, H]
  DenseView q_conv;    // [D/tp, kernel], last column multiplies the newest row
  DenseView k_conv;    // [D/tp, kernel]
  DenseView v_conv;    // [D/tp, kernel]
  LinearView f_a;      // [head_dim, H]
  LinearView f_b;      // [D/tp, head_dim]
  LinearView g_a;      // [head_dim, H]
  LinearView g_b;      // [D/tp, head_dim]
  LinearView b_proj;   // [heads/tp, H]
  VectorView a_log;    // [heads/tp]
  VectorView dt_bias;  // [D/tp]
  VectorView o_norm;   // [head_dim], shared by the heads
  LinearView o_proj;   // [H, D/tp]: a partial sum
};

struct IndexerWeights {
  LinearView wq_b;           // [index_heads * index_head_dim, q_lora]
  LinearView wk;             // [index_head_dim, H]
  LinearView weights_proj;   // [index_heads, H]
  VectorView k_norm_weight;  // [index_head_dim]
  VectorView k_norm_bias;    // [index_head_dim]
  DenseView pool_ape;        // [index_kpool, index_head_dim]
  DenseView pool_gate;       // [index_head_dim, H]
};

struct DsaWeights {
  LinearView q_a;        // [q_lora, H]
  VectorView q_a_norm;   // [q_lora]
  LinearView q_b;        // [heads/tp * qk_nope, q_lora]
  LinearView kv_a;       // [kv_lora, H]
  VectorView kv_a_norm;  // [kv_lora]
  LinearView kv_b;    // [heads/tp * (qk_nope + v), kv_lora], per head first the key rows, then the
                      // value rows
  LinearView o_proj;  // [H, heads/tp * v]: a partial sum
  IndexerWeights indexer;
};

struct MlpWeights {
  LinearView gate;  // [I/tp, H]
  LinearView up;    // [I/tp, H]
  LinearView down;  // [H, I/tp]: a partial sum
};

struct MoeWeights {
  DenseView router;            // [E, H]
  VectorView correction_bias;  // [E]
  MlpWeights shared;
  std::vector<MlpWeights> experts;  // [E]
};

// One of the two hyper-connection sites of a layer; M = hc_mult.
struct MhcSiteWeights {
  DenseView fn;      // [M * (2 + M), M * H]
  VectorView base;   // [M * (2 + M)]
  VectorView scale;  // [3]
};

struct LayerWeights {
  MhcSiteWeights hc_attn;
  MhcSiteWeights hc_ffn;
  VectorView input_norm;           // [H]
  VectorView post_attention_norm;  // [H]
  std::variant<KdaWeights, DsaWeights> attention;
  std::variant<MlpWeights, MoeWeights> mlp;
};

// The draft layer. No hyper-connections.
struct MtpWeights {
  VectorView enorm;                // [H]
  VectorView hnorm;                // [H]
  LinearView eh_proj;              // [H, 2 H], input = embedding half, then hidden half; replicated
  VectorView input_norm;           // [H]
  VectorView post_attention_norm;  // [H]
  DsaWeights attention;
  MoeWeights moe;
  VectorView head_norm;  // [H]
};

struct ModelWeights {
  int tp = 1;
  int rank = 0;
  int64_t vocab_begin = 0;  // first token id of this rank's rows of embedding and head

  DenseView embedding;  // [V/tp, H]
  std::vector<LayerWeights> layers;
  VectorView final_norm;  // [H]
  LinearView head;        // [V/tp, H]
  std::optional<MtpWeights> mtp;
};

// Finds every tensor of the model in the checkpoint, checks names, dtypes and shapes, and slices
// for `rank` of `tp`. Reads headers only, besides the few bytes of the EXL3 markers.
//
// Every tensor of the checkpoint must have a meaning: one that is left over, missing, or stored in
// two forms (fused and unfused) is an error that names it. EXL3 storage is never interpreted by
// guess: markers, codebook, tile order, bits per weight and the cuts of tensor parallelism must all
// agree.
absl::StatusOr<ModelWeights> ResolveWeights(const Checkpoint& checkpoint, const ModelConfig& config,
                                            int tp, int rank);

// Readers. Each touches only the pages of the rank's slice.

// Widens the rank's rectangle exactly to float, row-major [rows, cols]. F8 values are multiplied by
// their block's factor in float.
absl::Status ReadDenseF32(const DenseView& view, float* out);
// Widens the rank's run, [count].
absl::Status ReadVectorF32(const VectorView& view, float* out);
// The scale vector as float, [count]. A value that is not finite is an error.
absl::Status ReadExl3VectorF32(const Exl3Vector& view, float* out);
// Copies the rank's tiles without gaps, [tile_rows, tile_cols, 16 * bits] 16-bit words.
void CopyTrellis(const Exl3View& view, uint16_t* out);

// Exact conversions of single values.
float HalfToFloat(uint16_t bits);
float Bf16ToFloat(uint16_t bits);
float Fp8E4m3ToFloat(uint8_t bits);

}  // namespace quartet

#endif  // QUARTET_SHARD_WORKER_CHECKPOINT_WEIGHTS_H_
