#ifndef QUARTET_TESTS_UNIT_COORDINATOR_CACHE_REQUESTS_H_
#define QUARTET_TESTS_UNIT_COORDINATOR_CACHE_REQUESTS_H_

#include <utility>
#include <vector>

#include "tests/unit/coordinator/core_harness.h"

// Requests whose prompts the prefix cache knows by name, and a core that has one.

namespace quartet::coordinator {

inline constexpr uint32_t kUnit = 256;

inline CoreConfig CacheConfig() {
  CoreConfig config = CoreHarness::Config();
  config.max_model_len = 16384;
  config.pages = 256;
  config.max_num_batched_tokens = 4096;
  config.max_queued_requests = 32;
  config.snapshots = 64;
  config.page_bytes = 1;
  config.snapshot_bytes = 20;
  return config;
}

inline Request Ask(std::vector<int32_t> prompt, uint32_t max_tokens, uint64_t seed = 1) {
  Request request;
  request.prompt_ids = std::move(prompt);
  request.max_tokens = max_tokens;
  request.sampling.seed = seed;
  CoreHarness::NameUnits(request);
  return request;
}

// `shared` tokens that all salts have in common, then `own` ones.
inline std::vector<int32_t> Prompt(size_t shared, size_t own, int32_t salt) {
  std::vector<int32_t> prompt = CoreHarness::Prompt(shared);
  const std::vector<int32_t> tail = CoreHarness::Prompt(own, salt + 1);
  prompt.insert(prompt.end(), tail.begin(), tail.end());
  return prompt;
}

}  // namespace quartet::coordinator

#endif  // QUARTET_TESTS_UNIT_COORDINATOR_CACHE_REQUESTS_H_
