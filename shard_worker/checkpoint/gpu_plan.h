#ifndef QUARTET_SHARD_WORKER_CHECKPOINT_GPU_PLAN_H_
#define QUARTET_SHARD_WORKER_CHECKPOINT_GPU_PLAN_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "shard_worker/checkpoint/memory_plan.h"
#include "shard_worker/checkpoint/model_config.h"
#include "shard_worker/checkpoint/safetensors.h"
#include "shard_worker/checkpoint/weights.h"

// Where the memory of one card goes, computed from headers and the card's size before any weight is
// read. All figures are per rank, which has one card to itself; ranks are equal.

namespace quartet {

// Bytes of a rank's weights in the form that the CUDA ops keep:
//   matrices                                    FP16, whatever they were (F32, BF16, FP8)
//   EXL3 matrices                               the trellis as stored, vectors FP16
//   router, indexer, norms, convolutions, ...   FP32
//   mHC fn                                      FP16; FP32 if it was stored so
struct GpuWeightBytes {
  int64_t routed_experts = 0;  // of the trunk
  int64_t mtp_experts = 0;     // routed experts of the draft layer
  int64_t sharded = 0;         // everything else that is divided among the ranks
  int64_t replicated = 0;      // whole on every rank
  int64_t vision = 0;          // matrices of the tower divided like the trunk's, vectors whole
  int64_t total() const { return routed_experts + mtp_experts + sharded + replicated + vision; }
};
// Of the rank that `weights` was resolved for. The vision tower is counted from the checkpoint's
// headers: `weights` does not hold it.
GpuWeightBytes CountGpuWeights(const Checkpoint& checkpoint, const ModelWeights& weights);

struct GpuPlanOptions {
  int64_t card_bytes = 0;  // memory of one card that a process can use; see UsableCardBytes
  int64_t max_model_len = 131072;
  int64_t max_num_seqs = 4;
  int64_t max_num_batched_tokens = 4096;
  int64_t draft_tokens = 3;
  KvDtype kv_dtype = KvDtype::kFp8E4m3;
  int64_t reserve_bytes = int64_t{250} << 20;  // stays free
};

// What a card of this nominal size ("32 GiB") leaves to processes.
int64_t UsableCardBytes(int64_t nominal_bytes);

// Bytes of everything that a step holds besides weights and pools: the buffers between the ops, and
// the workspaces of the hungriest op and of the hungriest that a few rows fork.
int64_t GpuActivationBytes(const ModelConfig& config, int tp, const GpuPlanOptions& options);
int64_t GpuWorkspaceBytes(const ModelConfig& config, int tp, const GpuPlanOptions& options);

// Of one live sequence.
struct GpuLiveBytes {
  int64_t state = 0;        // of StateSlotBytes what are not rings
  int64_t verify_ring = 0;  // as VerifyRingBytes
  int64_t sampling = 0;     // penalty counts and grammar masks
  int64_t total() const { return state + verify_ring + sampling; }
};
GpuLiveBytes CountGpuLiveBytes(const ModelConfig& config, int tp, int64_t draft_tokens);

struct GpuPlan {
  enum class Verdict {
    kFits,        // max_num_seqs contexts of max_model_len at the same time
    kShared,      // fewer: sequences share the pages and wait for each other when they grow long
    kDoesNotFit,  // not even one context
  };

  GpuPlanOptions options;
  int tp = 1;
  Verdict verdict = Verdict::kDoesNotFit;

  int64_t context_bytes = 0;
  int64_t communicator_bytes = 0;
  GpuWeightBytes weights;
  int64_t activation_bytes = 0;  // workspace included
  int64_t graph_bytes = 0;
  int64_t fixed_bytes() const {  // the above and the reserve
    return context_bytes + communicator_bytes + weights.total() + activation_bytes + graph_bytes +
           options.reserve_bytes;
  }
  int64_t left_bytes() const { return options.card_bytes - fixed_bytes(); }  // may be negative

  GpuLiveBytes live;         // of one sequence; there are max_num_seqs
  int64_t page_bytes = 0;    // of kTokensPerPage tokens
  int64_t pages = 0;         // planned
  int64_t pages_wanted = 0;  // for max_num_seqs contexts
  int64_t snapshot_bytes = 0;
  int64_t snapshots = 0;      // planned
  int64_t unused_bytes = 0;   // less than a snapshot
  int64_t missing_bytes = 0;  // what verdict kFits lacks

  int64_t pinned_host_bytes = 0;  // beside, not of the card

  int64_t cached_tokens() const { return pages * kTokensPerPage; }
};

// Divides a card: fixed parts, live states, pages, then snapshots with the rest, at least
// kMinSnapshots. Errors are for options that are wrong whatever the card; what does not fit is a
// verdict.
inline constexpr int64_t kMinSnapshots = 4;
absl::StatusOr<GpuPlan> PlanGpu(const ModelConfig& config, int tp, const GpuWeightBytes& weights,
                                const GpuPlanOptions& options);

// One flag that would turn the verdict into kFits.
struct GpuPlanChange {
  std::string flag;   // "--max-model-len"
  std::string value;  // "98304"
  bool operator==(const GpuPlanChange&) const = default;
};
// For each flag the value nearest to the present one with which all else fits as it is. Flags that
// cannot help are left out; none for a plan that fits. Weights do not change with these flags, so
// other numbers of cards are not considered.
std::vector<GpuPlanChange> ChangesThatFit(const ModelConfig& config, const GpuPlan& plan);

std::string_view ToString(GpuPlan::Verdict verdict);

}  // namespace quartet

#endif  // QUARTET_SHARD_WORKER_CHECKPOINT_GPU_PLAN_H_
