#ifndef QUARTET_SHARD_WORKER_CHECKPOINT_MEMORY_PLAN_H_
#define QUARTET_SHARD_WORKER_CHECKPOINT_MEMORY_PLAN_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "shard_worker/checkpoint/model_config.h"
#include "shard_worker/checkpoint/weights.h"

// Where the memory of one worker goes on the CPU device, computed from headers alone before any
// weight is read. All figures are per rank.

namespace quartet {

// How the latents of the attention cache are stored. Pooled keys are F32 beside F32 latents and F16
// otherwise.
enum class KvDtype { kFp32, kFp16, kFp8E4m3 };
absl::StatusOr<KvDtype> ParseKvDtype(std::string_view flag);
std::string_view ToString(KvDtype dtype);

// Bytes of the rank's weights once every value is a float in memory (EXL3 matrices as their decoded
// inner matrix plus both vectors).
int64_t WidenedWeightBytes(const ModelWeights& weights);

// Rows of raw indexer keys that a sequence keeps per indexer for its open pool, when up to
// `draft_tokens` rows may have to be taken back: the least power-of-two multiple of the pool that
// holds pool + draft_tokens rows.
int64_t OpenPoolRows(const ModelConfig& config, int64_t draft_tokens);

// Bytes of one live sequence's state that does not grow with its length: KDA matrices (F32), the
// last kernel - 1 inputs of each convolution (F32), raw keys and gates of open pools (F32), one
// hidden row (F32), and the rings of verify windows.
int64_t StateSlotBytes(const ModelConfig& config, int tp, int64_t draft_tokens);

// Rows that such a ring holds: a window of 1 + draft_tokens that is to be committed and one that
// runs.
int64_t WindowRows(int64_t draft_tokens);

// The part of StateSlotBytes that are the rings: per KDA layer and row q, k and v before the
// convolution, k, v and decay after it, and beta (all F32, every array padded to 64 bytes).
int64_t VerifyRingBytes(const ModelConfig& config, int tp, int64_t draft_tokens);

// Bytes of what sampling keeps of one live sequence: the counts of its tokens, a word an id.
int64_t TokenCountBytes(const ModelConfig& config);

// Bytes of one snapshot of a live state, taken where no indexer pool is open: KDA matrices and
// convolution inputs, and the hidden row of the last token (all F32).
int64_t SnapshotBytes(const ModelConfig& config, int tp);

// Bytes of one page of 256 tokens over all DSA layers and the MTP layer: latents and pooled keys.
int64_t PageBytes(const ModelConfig& config, KvDtype dtype);

struct MemoryPlanOptions {
  int64_t budget_bytes = 0;
  int64_t max_model_len = 0;  // tokens
  int64_t max_num_seqs = 1;
  int64_t max_num_batched_tokens = 512;
  int64_t draft_tokens = 3;
  KvDtype kv_dtype = KvDtype::kFp32;
};

struct MemoryPlan {
  MemoryPlanOptions options;
  int64_t weight_bytes = 0;
  int64_t activation_bytes = 0;
  int64_t state_slot_bytes = 0;  // one live sequence, its token counts included
  int64_t state_slots = 0;       // max_num_seqs
  int64_t page_bytes = 0;
  int64_t pages = 0;              // of kTokensPerPage tokens
  int64_t pages_per_context = 0;  // that one sequence of max_model_len needs
  int64_t total_bytes = 0;        // of what is planned; at most the budget
  int64_t cached_tokens() const { return pages * kTokensPerPage; }
};

// Divides the budget: weights, activations and state slots first, pages with the rest, but never
// more than max_num_seqs full contexts need. An error if not even one full context fits: it names
// the figures and the largest max_model_len that would fit. max_model_len above the model's
// max_position_embeddings is an error too.
absl::StatusOr<MemoryPlan> PlanMemory(const ModelConfig& config, int tp, int64_t weight_bytes,
                                      const MemoryPlanOptions& options);

// An aligned table for people, MiB.
std::string FormatMemoryPlan(const MemoryPlan& plan);

}  // namespace quartet

#endif  // QUARTET_SHARD_WORKER_CHECKPOINT_MEMORY_PLAN_H_
