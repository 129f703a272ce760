#include "services/common/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace quartet {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(Metrics, CountersAreExposedWithHelpTypeAndLabels) {
  const std::unique_ptr<Metrics> metrics = MakeMetrics();
  metrics->GetCounter("quartet_requests_total", "Requests answered", {{"code", "200"}}).Add(3);
  metrics->GetCounter("quartet_requests_total", "Requests answered", {{"code", "400"}}).Add();
  const std::string text = metrics->Expose();
  EXPECT_THAT(text, HasSubstr("# HELP quartet_requests_total Requests answered\n"));
  EXPECT_THAT(text, HasSubstr("# TYPE quartet_requests_total counter\n"));
  EXPECT_THAT(text, HasSubstr("quartet_requests_total{code=\"200\"} 3\n"));
  EXPECT_THAT(text, HasSubstr("quartet_requests_total{code=\"400\"} 1\n"));
}

TEST(Metrics, AskingTwiceGivesTheSameSeries) {
  const std::unique_ptr<Metrics> metrics = MakeMetrics();
  Counter& first = metrics->GetCounter("quartet_steps_total", "Steps", {{"kind", "decode"}});
  Counter& second = metrics->GetCounter("quartet_steps_total", "Steps", {{"kind", "decode"}});
  EXPECT_EQ(&first, &second);
  Counter& other = metrics->GetCounter("quartet_steps_total", "Steps", {{"kind", "prefill"}});
  EXPECT_NE(&first, &other);
}

TEST(Metrics, AGaugeShowsItsLastValue) {
  const std::unique_ptr<Metrics> metrics = MakeMetrics();
  Gauge& gauge = metrics->GetGauge("vllm:num_requests_running", "Running");
  gauge.Set(7);
  gauge.Set(2.5);
  EXPECT_THAT(metrics->Expose(), HasSubstr("vllm:num_requests_running 2.5\n"));
}

TEST(Metrics, AHistogramCountsCumulatively) {
  const std::unique_ptr<Metrics> metrics = MakeMetrics();
  Histogram& histogram = metrics->GetHistogram("quartet_step_seconds", "Steps", {0.1, 1.0});
  for (const double value : {0.05, 0.1, 0.5, 4.0}) histogram.Observe(value);
  const std::string text = metrics->Expose();
  EXPECT_THAT(text, HasSubstr("quartet_step_seconds_bucket{le=\"0.1\"} 2\n"));
  EXPECT_THAT(text, HasSubstr("quartet_step_seconds_bucket{le=\"1\"} 3\n"));
  EXPECT_THAT(text, HasSubstr("quartet_step_seconds_bucket{le=\"+Inf\"} 4\n"));
  EXPECT_THAT(text, HasSubstr("quartet_step_seconds_count 4\n"));
  EXPECT_THAT(text, HasSubstr("quartet_step_seconds_sum 4.65"));
}

TEST(Metrics, LabelValuesAreEscaped) {
  const std::unique_ptr<Metrics> metrics = MakeMetrics();
  metrics->GetGauge("quartet_info", "Info", {{"model", "a\"b\\c\nd"}}).Set(1);
  const std::string text = metrics->Expose();
  EXPECT_THAT(text, HasSubstr(R"(quartet_info{model="a\"b\\c\nd"} 1)"));
  EXPECT_THAT(text, Not(HasSubstr("a\"b\\c\nd")));
}

TEST(Metrics, ManyThreadsMayAddAndAskAtOnce) {
  const std::unique_ptr<Metrics> metrics = MakeMetrics();
  constexpr int kThreads = 4;
  constexpr int kAdds = 200;
  std::vector<std::thread> threads;
  threads.reserve(kThreads);
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&metrics] {
      for (int i = 0; i < kAdds; ++i) {
        metrics->GetCounter("quartet_tokens_total", "Tokens").Add();
        if (i % 50 == 0) {
          EXPECT_FALSE(metrics->Expose().empty());
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(metrics->Expose(), HasSubstr("quartet_tokens_total 800\n"));
}

TEST(LatencyBuckets, RiseFromAMillisecondToTenMinutes) {
  const std::vector<double> bounds = LatencyBuckets();
  ASSERT_FALSE(bounds.empty());
  EXPECT_DOUBLE_EQ(bounds.front(), 0.001);
  EXPECT_DOUBLE_EQ(bounds.back(), 600.0);
  EXPECT_TRUE(std::is_sorted(bounds.begin(), bounds.end()));
}

}  // namespace
}  // namespace quartet
