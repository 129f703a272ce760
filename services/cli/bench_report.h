#ifndef QUARTET_SERVICES_CLI_BENCH_REPORT_H_
#define QUARTET_SERVICES_CLI_BENCH_REPORT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "services/cli/bench_request.h"

namespace quartet::cli {

struct BenchSettings {
  std::string url;
  std::string model;
  int prompt_tokens = 128;
  int output_tokens = 64;
  int concurrency = 1;
  int requests = 8;
};

struct BenchSummary {
  int ok = 0;
  int failed = 0;
  std::string first_error;
  double wall_seconds = 0;
  int64_t output_tokens = 0;
  double ttft_p50 = 0;
  double ttft_p99 = 0;
  double gap_p50 = 0;
  double gap_p99 = 0;
  double output_tokens_per_second = 0;
  double total_tokens_per_second = 0;  // prompt tokens too
};

// The smallest value that at least `share` of all values do not exceed (nearest rank). 0 when there
// are none. `share` in (0, 1].
double Percentile(std::vector<double> values, double share);

BenchSummary Summarise(const BenchSettings& settings, const std::vector<BenchSample>& samples,
                       double wall_seconds);

// An aligned table for people; times in milliseconds.
std::string FormatTable(const BenchSettings& settings, const BenchSummary& summary);

// One JSON object, times in seconds, ending in a line feed.
std::string FormatJson(const BenchSettings& settings, const BenchSummary& summary);

}  // namespace quartet::cli

#endif  // QUARTET_SERVICES_CLI_BENCH_REPORT_H_
