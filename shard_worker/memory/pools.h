#ifndef QUARTET_SHARD_WORKER_MEMORY_POOLS_H_
#define QUARTET_SHARD_WORKER_MEMORY_POOLS_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/ops/backend.h"
#include "kernels/ops/dsa.h"
#include "kernels/ops/kda.h"
#include "shard_worker/checkpoint/memory_plan.h"
#include "shard_worker/checkpoint/model_config.h"

namespace quartet {

struct PoolOptions {
  int slots = 0;         // live sequences
  int pages = 0;         // of kTokensPerPage tokens
  int snapshots = 0;     // of live states; may be none
  int draft_tokens = 3;  // rows that may have to be taken back: sizes all rings
  KvDtype kv_dtype = KvDtype::kFp16;
};

// Everything that a worker remembers between steps, in four blocks that are taken at start:
//   slots [slots]: one live sequence each. Per KDA layer the recurrent matrices [n, d, d] and the
//          last inputs of the convolutions [kernel - 1, 3, n d]; the final hidden row of the last
//          token of a page [hidden]; then, per DSA layer and for the MTP layer, the raw indexer
//          rows of the open pool [ring, 2, index_dim], and per KDA layer the rings of verify
//          windows (ops::KdaWindow). All FP32, n = heads / tp.
//   snapshots [snapshots]: the beginning of a slot, up to and with the hidden row, as it was when
//          the token of that row was the last one, so that no pool was open.
//   pages [pages]: kTokensPerPage positions of one sequence each. Per DSA layer and for the MTP
//          layer the latents [256, kv_lora_rank] and pooled keys [256 / kpool, index_dim].
//   counts [slots]: what the sequence has said, for penalties: a word for each id of the vocabulary
//          (ops::kInPrompt).
// Layers are numbered as in the checkpoint; the MTP layer's number is config.layers. Which slot and
// page belongs to whom is not known here. A slot need not be cleared between sequences: ops start
// from zeros at position 0, and ring and page entries are written before they become visible.
// Belongs to the compute thread.
class Pools {
 public:
  static absl::StatusOr<std::unique_ptr<Pools>> Create(const ModelConfig& config, int tp,
                                                       const PoolOptions& options,
                                                       ops::Backend& backend);

  ops::KdaState kda_state(int layer) const;  // of a KDA layer
  ops::OpenPool open_pool(int layer) const;  // of a DSA or the MTP layer
  ops::KvLayer kv(int layer) const;          // of a DSA or the MTP layer

  uint32_t* token_counts(int slot) const;  // [vocab_size]

  // All in the order of the ops. The hidden row that a slot keeps [hidden]: set by KeepHidden, and
  // by Restore to that of the snapshot. Export takes it with the rest.
  void KeepHidden(int slot, const float* hidden);
  const float* hidden(int slot) const;
  void Export(int slot, int snapshot);
  // The same in parts, in the middle of a step: the state of one KDA layer, and the hidden row.
  void ExportLayer(int layer, int slot, int snapshot) const;
  void ExportHidden(const float* hidden, int snapshot);
  void Restore(int snapshot, int slot);
  // How far the states of two snapshots are from each other, as a share of the first one's norm;
  // not a number if one of them is none. Blocks, and takes host memory for two parts of a state.
  absl::StatusOr<double> Distance(int a, int b) const;
  bool on_host() const { return backend_.on_host(); }

  // Where a page or a snapshot lies, in the backend's memory: page_bytes or snapshot_bytes of it.
  std::byte* page(int page) const { return pages_.data() + page * page_bytes_; }
  std::byte* snapshot(int snapshot) const {
    return snapshots_.data() + snapshot * snapshot_bytes();
  }

  const PoolOptions& options() const { return options_; }
  int64_t slot_bytes() const { return slot_floats_ * static_cast<int64_t>(sizeof(float)); }
  int64_t page_bytes() const { return page_bytes_; }
  int64_t counts_bytes() const { return counts_words_ * static_cast<int64_t>(sizeof(uint32_t)); }
  int64_t snapshot_bytes() const { return snapshot_floats_ * static_cast<int64_t>(sizeof(float)); }
  // Sizes of one slot's parts, and of one latent and one pooled key in a page.
  int64_t recurrent_floats() const { return recurrent_floats_; }
  int64_t conv_floats() const { return conv_floats_; }
  int64_t latent_row_bytes() const { return latent_row_bytes_; }
  int64_t pool_key_row_bytes() const { return pool_key_row_bytes_; }

 private:
  explicit Pools(ops::Backend& backend) : backend_(backend) {}

  float* slot_data(int slot) const;
  float* snapshot_data(int snapshot) const;

  // Where a layer's parts lie inside a slot (floats) and a page (bytes).
  struct LayerPlace {
    int64_t recurrent = 0;
    int64_t conv = 0;
    struct {
      int64_t conv = 0;
      int64_t k = 0;
      int64_t v = 0;
      int64_t g = 0;
      int64_t beta = 0;
    } window;
    int64_t ring = 0;
    int64_t latent = 0;
    int64_t pool_keys = 0;
  };

  ops::Backend& backend_;
  PoolOptions options_;
  std::vector<LayerPlace> places_;  // [layers + mtp]
  int64_t slot_floats_ = 0;
  int64_t snapshot_floats_ = 0;  // of a slot: its beginning
  int64_t hidden_at_ = 0;        // floats, inside a slot and a snapshot
  int64_t hidden_ = 0;           // floats
  int64_t counts_words_ = 0;     // of a slot
  int64_t page_bytes_ = 0;
  int64_t recurrent_floats_ = 0;
  int64_t conv_floats_ = 0;
  int64_t latent_row_bytes_ = 0;
  int64_t pool_key_row_bytes_ = 0;
  int ring_rows_ = 0;
  int window_rows_ = 0;
  ops::Memory slots_;
  ops::Memory snapshots_;
  ops::Memory pages_;
  ops::Memory counts_;
};

ops::KvDType ToOps(KvDtype dtype);

}  // namespace quartet

#endif  // QUARTET_SHARD_WORKER_MEMORY_POOLS_H_
