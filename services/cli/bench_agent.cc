#include "services/cli/bench_agent.h"

#include <random>
#include <vector>

#include "services/cli/bench_request.h"

namespace quartet::cli {
namespace {

void Append(std::vector<int32_t>& text, const std::vector<int32_t>& more) {
  text.insert(text.end(), more.begin(), more.end());
}

}  // namespace

AgentRun RunAgent(HttpClient& client, const std::string& url, const std::string& model,
                  uint32_t seed, const AgentSettings& settings) {
  AgentRun run;
  run.url = url;
  std::mt19937 random(seed);
  std::vector<int32_t> text = RandomTokens(random, settings.system_tokens);
  int64_t computed_tokens = 0;
  for (int i = 0; i < settings.turns; ++i) {
    const int added = RandomBetween(random, settings.turn_tokens_min, settings.turn_tokens_max);
    Append(text, RandomTokens(random, added));
    const BenchSample sample = TimeCompletion(client, model, text, settings.answer_tokens);
    if (!sample.ok) {
      run.error = sample.error;
      return run;
    }
    run.turns.push_back({.prompt_tokens = static_cast<int64_t>(text.size()),
                         .shared_tokens = computed_tokens,
                         .cached_tokens = sample.cached_tokens,
                         .ttft_seconds = sample.ttft_seconds});
    Append(text, sample.output_ids);
    computed_tokens = static_cast<int64_t>(text.size()) - 1;
  }
  const std::vector<int32_t> prompt = RandomTokens(random, settings.short_tokens);
  for (int i = 0; i < 2; ++i) {
    const BenchSample sample = TimeCompletion(client, model, prompt, 1);
    if (!sample.ok) {
      run.error = sample.error;
      return run;
    }
    run.short_cached_tokens = sample.cached_tokens;
  }
  return run;
}

}  // namespace quartet::cli
