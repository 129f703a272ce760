#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "shard_worker/checkpoint/memory_plan.h"
#include "shard_worker/checkpoint/model_config.h"

// libFuzzer entry: the bytes are a config.json. An accepted configuration must be one that later
// stages can compute with.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto config = quartet::ParseModelConfig(
      std::string_view(reinterpret_cast<const char*>(data), size), "fuzz");
  if (!config.ok()) return 0;
  if (static_cast<int64_t>(config->attention.size()) != config->layers) std::abort();
  if (static_cast<int64_t>(config->mlp.size()) != config->layers) std::abort();
  if (config->index_kpool < 1 || config->index_topk % config->index_kpool != 0) std::abort();
  for (int tp = 1; tp <= 8; ++tp) {
    if (!quartet::CheckTensorParallel(*config, tp).ok()) continue;
    quartet::MemoryPlanOptions options;
    options.budget_bytes = int64_t{1} << 40;
    options.max_model_len = config->max_position_embeddings;
    const auto plan = quartet::PlanMemory(*config, tp, 0, options);
    if (plan.ok() && plan->total_bytes > options.budget_bytes) std::abort();
  }
  return 0;
}
