#include "services/cli/bench_agent_report.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "boost/json.hpp"

namespace quartet::cli {
namespace {

double Share(int64_t part, int64_t whole) {
  return whole == 0 ? 1 : static_cast<double>(part) / static_cast<double>(whole);
}

// Least squares through the turns' (new tokens, TTFT).
void Fit(const std::vector<AgentTurn>& turns, AgentSummary& summary) {
  if (turns.empty()) return;
  const auto n = static_cast<double>(turns.size());
  double mean_x = 0;
  double mean_y = 0;
  for (const AgentTurn& turn : turns) {
    mean_x += static_cast<double>(turn.new_tokens()) / n;
    mean_y += turn.ttft_seconds / n;
  }
  double xx = 0;
  double xy = 0;
  for (const AgentTurn& turn : turns) {
    const double x = static_cast<double>(turn.new_tokens()) - mean_x;
    xx += x * x;
    xy += x * (turn.ttft_seconds - mean_y);
  }
  summary.seconds_per_new_token = xx > 0 ? xy / xx : 0;
  summary.rest_seconds = mean_y - summary.seconds_per_new_token * mean_x;
}

}  // namespace

double AgentSummary::reused_share() const {
  return Share(reused_tokens, shared_tokens);
}

double AgentSummary::reused_unit_share() const {
  return Share(reused_unit_tokens, shared_unit_tokens);
}

AgentSummary SummariseAgent(const AgentRun& run) {
  AgentSummary summary;
  for (const AgentTurn& turn : run.turns) {
    const int64_t unit_tokens = turn.shared_tokens / kCacheUnitTokens * kCacheUnitTokens;
    summary.shared_tokens += turn.shared_tokens;
    summary.shared_unit_tokens += unit_tokens;
    summary.reused_tokens += std::min(turn.cached_tokens, turn.shared_tokens);
    summary.reused_unit_tokens += std::min(turn.cached_tokens, unit_tokens);
    summary.cache_was_warm = summary.cache_was_warm || turn.cached_tokens > turn.shared_tokens;
  }
  Fit(run.turns, summary);
  return summary;
}

std::string FormatAgentTable(const AgentRun& run) {
  const AgentSummary summary = SummariseAgent(run);
  std::string table = absl::StrCat(run.url, "\n");
  absl::StrAppendFormat(&table, "%4s %8s %8s %8s %8s %12s\n", "turn", "prompt", "shared", "cached",
                        "new", "TTFT");
  for (size_t i = 0; i < run.turns.size(); ++i) {
    const AgentTurn& turn = run.turns[i];
    absl::StrAppendFormat(&table, "%4d %8d %8d %8d %8d %9.1f ms\n", i + 1, turn.prompt_tokens,
                          turn.shared_tokens, turn.cached_tokens, turn.new_tokens(),
                          turn.ttft_seconds * 1000);
  }
  absl::StrAppendFormat(&table, "\n%-32s %6.2f %%  %d of %d tokens\n",
                        "reused of whole shared units", summary.reused_unit_share() * 100,
                        summary.reused_unit_tokens, summary.shared_unit_tokens);
  absl::StrAppendFormat(&table, "%-32s %6.2f %%  %d of %d tokens\n", "reused of all shared tokens",
                        summary.reused_share() * 100, summary.reused_tokens, summary.shared_tokens);
  absl::StrAppendFormat(&table, "%-32s %.3f ms a new token + %.1f ms\n", "TTFT",
                        summary.seconds_per_new_token * 1000, summary.rest_seconds * 1000);
  absl::StrAppendFormat(&table, "%-32s %d tokens\n", "cached of a short prompt again",
                        run.short_cached_tokens);
  if (summary.cache_was_warm) {
    absl::StrAppend(&table,
                    "More was cached than this conversation can have left: its prompts "
                    "were asked before. Another --seed makes others.\n");
  }
  return table;
}

std::string FormatAgentJson(const std::string& model, uint32_t seed, const AgentSettings& settings,
                            const std::vector<AgentRun>& runs) {
  namespace json = boost::json;
  json::array all;
  for (const AgentRun& run : runs) {
    json::array turns;
    for (const AgentTurn& turn : run.turns) {
      turns.push_back(json::object{{"prompt_tokens", turn.prompt_tokens},
                                   {"shared_tokens", turn.shared_tokens},
                                   {"cached_tokens", turn.cached_tokens},
                                   {"ttft_seconds", turn.ttft_seconds}});
    }
    const AgentSummary summary = SummariseAgent(run);
    json::object object{{"url", run.url},
                        {"turns", std::move(turns)},
                        {"shared_tokens", summary.shared_tokens},
                        {"shared_unit_tokens", summary.shared_unit_tokens},
                        {"reused_share", summary.reused_share()},
                        {"reused_unit_share", summary.reused_unit_share()},
                        {"seconds_per_new_token", summary.seconds_per_new_token},
                        {"rest_seconds", summary.rest_seconds},
                        {"short_cached_tokens", run.short_cached_tokens},
                        {"cache_was_warm", summary.cache_was_warm}};
    if (!run.error.empty()) object["error"] = run.error;
    all.push_back(std::move(object));
  }
  const json::object report{{"scenario", "agent"},
                            {"model", model},
                            {"seed", seed},
                            {"turns", settings.turns},
                            {"system_tokens", settings.system_tokens},
                            {"turn_tokens_min", settings.turn_tokens_min},
                            {"turn_tokens_max", settings.turn_tokens_max},
                            {"answer_tokens", settings.answer_tokens},
                            {"short_tokens", settings.short_tokens},
                            {"runs", std::move(all)}};
  return json::serialize(report) + "\n";
}

}  // namespace quartet::cli
