#include "services/cli/bench_agent_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "boost/json.hpp"

namespace quartet::cli {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

// TTFT is 2 ms a new token and 5 ms.
AgentTurn Turn(int64_t prompt, int64_t shared, int64_t cached) {
  return {.prompt_tokens = prompt,
          .shared_tokens = shared,
          .cached_tokens = cached,
          .ttft_seconds = 0.002 * static_cast<double>(prompt - cached) + 0.005};
}

AgentRun Example() {
  AgentRun run;
  run.url = "http://one";
  run.turns = {Turn(1000, 0, 0), Turn(1500, 1063, 1024), Turn(2000, 1563, 1280)};
  run.short_cached_tokens = 256;
  return run;
}

TEST(SummariseAgent, CountsWholeSharedUnitsAndAllSharedTokens) {
  const AgentSummary summary = SummariseAgent(Example());
  EXPECT_EQ(summary.shared_tokens, 1063 + 1563);
  EXPECT_EQ(summary.shared_unit_tokens, 1024 + 1536);
  EXPECT_EQ(summary.reused_tokens, 1024 + 1280);
  EXPECT_EQ(summary.reused_unit_tokens, 1024 + 1280);
  EXPECT_DOUBLE_EQ(summary.reused_unit_share(), 2304.0 / 2560.0);
  EXPECT_DOUBLE_EQ(summary.reused_share(), 2304.0 / 2626.0);
  EXPECT_FALSE(summary.cache_was_warm);
}

TEST(SummariseAgent, FitsTheTimeAgainstNewTokens) {
  const AgentSummary summary = SummariseAgent(Example());
  EXPECT_NEAR(summary.seconds_per_new_token, 0.002, 1e-9);
  EXPECT_NEAR(summary.rest_seconds, 0.005, 1e-9);
}

TEST(SummariseAgent, OneTurnOrNoneGivesNoSlope) {
  AgentRun run;
  EXPECT_EQ(SummariseAgent(run).rest_seconds, 0);
  EXPECT_EQ(SummariseAgent(run).reused_unit_share(), 1);
  run.turns = {Turn(100, 0, 0)};
  EXPECT_EQ(SummariseAgent(run).seconds_per_new_token, 0);
  EXPECT_NEAR(SummariseAgent(run).rest_seconds, 0.205, 1e-9);
}

TEST(SummariseAgent, SeesThatThePromptsWereCachedBefore) {
  AgentRun run = Example();
  run.turns[0].cached_tokens = 768;
  EXPECT_TRUE(SummariseAgent(run).cache_was_warm);
  EXPECT_EQ(SummariseAgent(run).reused_unit_tokens, 1024 + 1280) << "counts as nothing shared";
  EXPECT_THAT(FormatAgentTable(run), HasSubstr("Another --seed"));
}

TEST(FormatAgentTable, HasALineForEachTurnAndTheShares) {
  const std::string table = FormatAgentTable(Example());
  EXPECT_THAT(table, ContainsRegex("http://one\nturn +prompt +shared +cached +new +TTFT\n"));
  EXPECT_THAT(table, ContainsRegex("\n   2 +1500 +1063 +1024 +476 +957.0 ms\n"));
  EXPECT_THAT(table, ContainsRegex("reused of whole shared units +90.00 %  2304 of 2560 tokens\n"));
  EXPECT_THAT(table, ContainsRegex("TTFT +2.000 ms a new token \\+ 5.0 ms\n"));
  EXPECT_THAT(table, ContainsRegex("cached of a short prompt again +256 tokens\n"));
  EXPECT_THAT(table, Not(HasSubstr("--seed")));
}

TEST(FormatAgentJson, HoldsEveryRun) {
  AgentRun failed;
  failed.url = "http://two";
  failed.error = "refused";
  const boost::json::object report =
      boost::json::parse(FormatAgentJson("demo", 7, {}, {Example(), failed})).as_object();
  EXPECT_EQ(report.at("scenario").as_string(), "agent");
  EXPECT_EQ(report.at("system_tokens").as_int64(), 3000);
  const boost::json::array& runs = report.at("runs").as_array();
  ASSERT_EQ(runs.size(), 2u);
  EXPECT_EQ(runs[0].at("turns").as_array().size(), 3u);
  EXPECT_EQ(runs[0].at("turns").as_array()[1].at("cached_tokens").as_int64(), 1024);
  EXPECT_DOUBLE_EQ(runs[0].at("reused_unit_share").as_double(), 0.9);
  EXPECT_FALSE(runs[0].as_object().contains("error"));
  EXPECT_EQ(runs[1].at("error").as_string(), "refused");
}

}  // namespace
}  // namespace quartet::cli
