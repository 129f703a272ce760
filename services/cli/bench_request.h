#ifndef QUARTET_SERVICES_CLI_BENCH_REQUEST_H_
#define QUARTET_SERVICES_CLI_BENCH_REQUEST_H_

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "services/cli/http_client.h"

namespace quartet::cli {

// What one request took.
struct BenchSample {
  bool ok = false;
  std::string error;
  double ttft_seconds = 0;
  std::vector<double> gaps_seconds;  // between two tokens, output_tokens - 1 of them
  int64_t output_tokens = 0;
  std::vector<int32_t> output_ids;
  int64_t cached_tokens = 0;  // of the prompt, as the service says
};

// Token ids that mean something ordinary in the demo's vocabulary and in the large model's.
std::vector<int32_t> RandomTokens(std::mt19937& random, int count);

// A whole number of [low, high], the same for a seed with every standard library.
int RandomBetween(std::mt19937& random, int low, int high);

// Asks for exactly `output_tokens` greedy tokens after these, end tokens ignored, and times them as
// they come. Fewer tokens make the sample a failure.
BenchSample TimeCompletion(HttpClient& client, const std::string& model,
                           const std::vector<int32_t>& prompt, int output_tokens);

// The first model that the service lists.
absl::StatusOr<std::string> FirstModel(HttpClient& client);

}  // namespace quartet::cli

#endif  // QUARTET_SERVICES_CLI_BENCH_REQUEST_H_
