#ifndef QUARTET_SERVICES_COORDINATOR_RPC_ENGINE_OPTIONS_H_
#define QUARTET_SERVICES_COORDINATOR_RPC_ENGINE_OPTIONS_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "services/coordinator/core/snapshot_plan.h"
#include "services/coordinator/core/types.h"
#include "services/coordinator/membership/membership.h"

namespace quartet::coordinator {

struct EngineOptions {
  uint64_t epoch = 1;
  uint32_t tensor_parallel_size = 1;
  uint32_t max_model_len = 0;  // 0 = min(131072, what the model has)
  uint32_t max_num_seqs = 4;
  uint32_t max_num_batched_tokens = 512;
  uint32_t prefill_chunk = 0;
  bool prefix_caching = true;
  SnapshotPolicy snapshot_policy;
  uint32_t num_speculative_tokens = 3;  // none if the model cannot draft; 0 = off
  bool spec_dynamic = true;
  uint32_t steps_in_flight = 2;             // 1 or 2
  std::string spec_sampling = "rejection";  // or coupled
  uint32_t max_queued_requests = 64;
  uint64_t max_queued_tokens = 524288;
  uint32_t step_deadline_ms = 60000;
  // While sequences decode: the time of a step with prompts, and the share of steps without.
  uint32_t prefill_quantum_ms = 300;
  double min_decode_share = 0.5;
  // When a prompt is not overtaken any more.
  uint32_t max_overtakes = 8;
  uint32_t max_wait_s = 20;
  // Of a request, from its submit on; 0 = for ever.
  uint32_t queue_timeout_s = 60;
  uint32_t total_timeout_s = 1800;
  std::string segment_folder = "/dev/shm";
  std::string segment_name;
  // Where recordings of what went into the core are written, when the engine ends by itself and
  // when it is asked to; empty = nothing is recorded.
  std::string flight_dir;
  uint32_t flight_mib = 64;  // kept in memory
  // A client that leaves more than this unread gets no more tokens, and is cancelled if that lasts
  // so long.
  size_t stream_buffer_bytes = 256 * 1024;
  int64_t slow_client_timeout_ms = 30000;
  uint32_t max_workers = 64;  // attached at once, spares and refused ones included

  // Generate calls open at once, those in their last breath included.
  uint32_t max_client_streams() const { return 2 * (max_queued_requests + max_num_seqs) + 64; }
};

// Says what is wrong with the options, naming the flag; empty if nothing is.
std::string OptionsError(const EngineOptions& options);

// What the core is started with once all ranks hold their weights: `pools` is what they have agreed
// on, `model` what each of them has.
CoreConfig ToCoreConfig(const EngineOptions& options, const PoolPlan& pools,
                        const WorkerFacts& model);

}  // namespace quartet::coordinator

#endif  // QUARTET_SERVICES_COORDINATOR_RPC_ENGINE_OPTIONS_H_
