#include "services/coordinator/rpc/engine_options.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace quartet::coordinator {
namespace {

constexpr uint32_t kTimeoutMaxS = 1000000;

}  // namespace

std::string OptionsError(const EngineOptions& options) {
  if (options.tensor_parallel_size == 0) return "--tensor-parallel-size must be at least 1";
  if (options.max_num_seqs == 0) return "--max-num-seqs must be at least 1";
  if (options.max_queued_requests == 0) return "--max-queued-requests must be at least 1";
  if (options.step_deadline_ms == 0) return "--step-deadline-ms must be at least 1";
  if (options.max_model_len == 1) return "--max-model-len must be at least 2";
  if (options.max_num_batched_tokens + 1 < kChunkMultiple + options.max_num_seqs) {
    return absl::StrCat("--max-num-batched-tokens is ", options.max_num_batched_tokens, "; with ",
                        options.max_num_seqs, " sequences it must be at least ",
                        kChunkMultiple + options.max_num_seqs - 1);
  }
  if (options.num_speculative_tokens > kMaxDraftTokens) {
    return absl::StrCat("--num-speculative-tokens is ", options.num_speculative_tokens,
                        "; it must be 0 to ", kMaxDraftTokens);
  }
  if (options.spec_sampling != "rejection" && options.spec_sampling != "coupled") {
    return absl::StrCat("--spec-sampling is ", options.spec_sampling,
                        "; it must be rejection or coupled");
  }
  if (!(options.min_decode_share >= 0 && options.min_decode_share < 1)) {
    return absl::StrCat("--min-decode-share is ", options.min_decode_share,
                        "; it must be from 0 to below 1");
  }
  for (const auto& [flag, seconds] : {std::pair("--max-wait-s", options.max_wait_s),
                                      std::pair("--queue-timeout-s", options.queue_timeout_s),
                                      std::pair("--total-timeout-s", options.total_timeout_s)}) {
    if (seconds > kTimeoutMaxS) {
      return absl::StrCat(flag, " is ", seconds, "; at most ", kTimeoutMaxS);
    }
  }
  if (options.prefill_chunk % kChunkMultiple != 0) {
    return absl::StrCat("--prefill-chunk is ", options.prefill_chunk,
                        "; it must be 0 or a multiple of ", kChunkMultiple);
  }
  return "";
}

CoreConfig ToCoreConfig(const EngineOptions& options, const PoolPlan& pools,
                        const WorkerFacts& model) {
  CoreConfig config;
  config.epoch = options.epoch;
  config.vocab_size = model.vocab_size;
  config.max_model_len = pools.max_model_len;
  config.slots = pools.slots;
  config.pages = pools.pages;
  config.page_tokens = pools.page_tokens;
  config.snapshots = pools.snapshots;
  config.page_bytes = pools.page_bytes;
  config.snapshot_bytes = pools.snapshot_bytes;
  config.snapshot_policy = options.snapshot_policy;
  if (model.num_mtp_layers > 0) {
    config.num_speculative_tokens = options.num_speculative_tokens;
  }
  config.spec_dynamic = options.spec_dynamic;
  config.spec_acceptance =
      options.spec_sampling == "coupled" ? Acceptance::kCoupled : Acceptance::kRejection;
  config.host_pages = pools.host.pages;
  config.host_snapshots = pools.host.snapshots;
  config.disk_pages = pools.disk.pages;
  config.disk_snapshots = pools.disk.snapshots;
  config.max_num_batched_tokens = options.max_num_batched_tokens;
  config.prefill_chunk = options.prefill_chunk;
  config.max_queued_requests = options.max_queued_requests;
  config.max_queued_tokens = options.max_queued_tokens;
  config.step_deadline_ms = options.step_deadline_ms;
  config.steps_in_flight = options.steps_in_flight;
  config.prefill_quantum_ms = options.prefill_quantum_ms;
  config.min_decode_share = options.min_decode_share;
  config.max_overtakes = options.max_overtakes;
  config.max_wait_ms = 1000 * options.max_wait_s;
  config.queue_timeout_ms = 1000 * options.queue_timeout_s;
  config.total_timeout_ms = 1000 * options.total_timeout_s;
  return config;
}

}  // namespace quartet::coordinator
