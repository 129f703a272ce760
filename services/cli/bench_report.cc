#include "services/cli/bench_report.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "boost/json.hpp"

namespace quartet::cli {
namespace {

std::string Row(const std::string& name, const std::string& first, const std::string& second) {
  std::string row = absl::StrFormat("%-18s %12s %12s", name, first, second);
  row.erase(row.find_last_not_of(' ') + 1);
  return row + "\n";
}

std::string Milliseconds(double seconds) {
  return absl::StrFormat("%.1f ms", seconds * 1000);
}

}  // namespace

double Percentile(std::vector<double> values, double share) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const auto rank = static_cast<size_t>(std::ceil(share * static_cast<double>(values.size())));
  return values[std::clamp<size_t>(rank, 1, values.size()) - 1];
}

BenchSummary Summarise(const BenchSettings& settings, const std::vector<BenchSample>& samples,
                       double wall_seconds) {
  BenchSummary summary;
  summary.wall_seconds = wall_seconds;
  std::vector<double> ttft;
  std::vector<double> gaps;
  for (const BenchSample& sample : samples) {
    if (!sample.ok) {
      ++summary.failed;
      if (summary.first_error.empty()) summary.first_error = sample.error;
      continue;
    }
    ++summary.ok;
    summary.output_tokens += sample.output_tokens;
    ttft.push_back(sample.ttft_seconds);
    gaps.insert(gaps.end(), sample.gaps_seconds.begin(), sample.gaps_seconds.end());
  }
  summary.ttft_p50 = Percentile(ttft, 0.5);
  summary.ttft_p99 = Percentile(ttft, 0.99);
  summary.gap_p50 = Percentile(gaps, 0.5);
  summary.gap_p99 = Percentile(gaps, 0.99);
  if (wall_seconds > 0) {
    const auto prompt_tokens = static_cast<int64_t>(summary.ok) * settings.prompt_tokens;
    summary.output_tokens_per_second = static_cast<double>(summary.output_tokens) / wall_seconds;
    summary.total_tokens_per_second =
        static_cast<double>(summary.output_tokens + prompt_tokens) / wall_seconds;
  }
  return summary;
}

std::string FormatTable(const BenchSettings& settings, const BenchSummary& summary) {
  std::string table;
  table += Row("requests", absl::StrCat(summary.ok, " of ", summary.ok + summary.failed), "");
  table += Row("concurrency", absl::StrCat(settings.concurrency), "");
  table += Row("prompt tokens", absl::StrCat(settings.prompt_tokens), "");
  table += Row("output tokens", absl::StrCat(settings.output_tokens), "");
  table += Row("wall time", absl::StrFormat("%.2f s", summary.wall_seconds), "");
  table += "\n";
  table += Row("", "p50", "p99");
  table += Row("TTFT", Milliseconds(summary.ttft_p50), Milliseconds(summary.ttft_p99));
  table += Row("inter-token", Milliseconds(summary.gap_p50), Milliseconds(summary.gap_p99));
  table += "\n";
  table += Row("output tokens/s", absl::StrFormat("%.1f", summary.output_tokens_per_second), "");
  table += Row("all tokens/s", absl::StrFormat("%.1f", summary.total_tokens_per_second), "");
  return table;
}

std::string FormatJson(const BenchSettings& settings, const BenchSummary& summary) {
  namespace json = boost::json;
  json::object object;
  object["url"] = settings.url;
  object["model"] = settings.model;
  object["prompt_tokens"] = settings.prompt_tokens;
  object["output_tokens"] = settings.output_tokens;
  object["concurrency"] = settings.concurrency;
  object["requests"] = settings.requests;
  object["requests_ok"] = summary.ok;
  object["requests_failed"] = summary.failed;
  if (!summary.first_error.empty()) object["first_error"] = summary.first_error;
  object["wall_seconds"] = summary.wall_seconds;
  object["ttft_seconds"] = {{"p50", summary.ttft_p50}, {"p99", summary.ttft_p99}};
  object["inter_token_seconds"] = {{"p50", summary.gap_p50}, {"p99", summary.gap_p99}};
  object["output_tokens_per_second"] = summary.output_tokens_per_second;
  object["total_tokens_per_second"] = summary.total_tokens_per_second;
  return json::serialize(object) + "\n";
}

}  // namespace quartet::cli
