#include "services/cli/bench_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "boost/json.hpp"

namespace quartet::cli {
namespace {

using ::testing::HasSubstr;

TEST(Percentile, IsTheNearestRank) {
  EXPECT_EQ(Percentile({}, 0.5), 0);
  EXPECT_EQ(Percentile({7}, 0.99), 7);
  EXPECT_EQ(Percentile({4, 1, 3, 2}, 0.5), 2);
  EXPECT_EQ(Percentile({4, 1, 3, 2}, 0.51), 3);
  std::vector<double> hundred;
  for (int i = 100; i >= 1; --i) hundred.push_back(i);
  EXPECT_EQ(Percentile(hundred, 0.99), 99);
  EXPECT_EQ(Percentile(hundred, 1.0), 100);
}

BenchSample Good(double ttft, std::vector<double> gaps) {
  BenchSample sample;
  sample.ok = true;
  sample.ttft_seconds = ttft;
  sample.output_tokens = static_cast<int64_t>(gaps.size()) + 1;
  sample.gaps_seconds = std::move(gaps);
  return sample;
}

BenchSummary Example() {
  BenchSample failed;
  failed.error = "refused";
  failed.ttft_seconds = 99;
  BenchSettings settings;
  settings.prompt_tokens = 10;
  return Summarise(settings, {Good(0.1, {0.01, 0.03}), failed, Good(0.3, {0.02, 0.02})}, 2.0);
}

TEST(Summarise, CountsGoodRequestsOnly) {
  const BenchSummary summary = Example();
  EXPECT_EQ(summary.ok, 2);
  EXPECT_EQ(summary.failed, 1);
  EXPECT_EQ(summary.first_error, "refused");
  EXPECT_DOUBLE_EQ(summary.ttft_p50, 0.1);
  EXPECT_DOUBLE_EQ(summary.ttft_p99, 0.3);
  EXPECT_DOUBLE_EQ(summary.gap_p50, 0.02);
  EXPECT_DOUBLE_EQ(summary.gap_p99, 0.03);
  EXPECT_DOUBLE_EQ(summary.output_tokens_per_second, 3.0);
  EXPECT_DOUBLE_EQ(summary.total_tokens_per_second, 13.0);
}

TEST(FormatTable, AlignsItsColumns) {
  const std::string table = FormatTable(BenchSettings(), Example());
  EXPECT_THAT(table, HasSubstr("requests                 2 of 3\n"));
  EXPECT_THAT(table, HasSubstr("TTFT                   100.0 ms     300.0 ms\n"));
  EXPECT_THAT(table, HasSubstr("inter-token             20.0 ms      30.0 ms\n"));
  EXPECT_THAT(table, HasSubstr("output tokens/s             3.0\n"));
}

TEST(FormatJson, HasTheSameNumbersInSeconds) {
  namespace json = boost::json;
  const json::object report = json::parse(FormatJson(BenchSettings(), Example())).as_object();
  EXPECT_DOUBLE_EQ(report.at("ttft_seconds").at("p99").as_double(), 0.3);
  EXPECT_DOUBLE_EQ(report.at("inter_token_seconds").at("p50").as_double(), 0.02);
  EXPECT_EQ(report.at("requests_failed").as_int64(), 1);
  EXPECT_EQ(report.at("first_error").as_string(), "refused");
}

}  // namespace
}  // namespace quartet::cli
