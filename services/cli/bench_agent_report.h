#ifndef QUARTET_SERVICES_CLI_BENCH_AGENT_REPORT_H_
#define QUARTET_SERVICES_CLI_BENCH_AGENT_REPORT_H_

#include <cstdint>
#include <string>
#include <vector>

namespace quartet::cli {

// Tokens of a unit of the prefix cache: what it can share is a whole number of them.
inline constexpr int64_t kCacheUnitTokens = 256;

// One conversation of an agent with its tools.
struct AgentSettings {
  int turns = 20;
  int system_tokens = 3000;  // system prompt and tools
  int turn_tokens_min = 200;
  int turn_tokens_max = 600;  // what the user or a tool adds in front of each answer
  int answer_tokens = 64;
  int short_tokens = 300;  // of a prompt that is asked twice beside the conversation
};

struct AgentTurn {
  int64_t prompt_tokens = 0;
  // Of the prompt, what was computed in an earlier turn: all of that turn's text but its last
  // token, which was only drawn.
  int64_t shared_tokens = 0;
  int64_t cached_tokens = 0;
  double ttft_seconds = 0;

  int64_t new_tokens() const { return prompt_tokens - cached_tokens; }
};

// What one cluster did with the conversation.
struct AgentRun {
  std::string url;
  std::vector<AgentTurn> turns;
  int64_t short_cached_tokens = 0;  // of the short prompt when it came again
  std::string error;                // of the request that failed; nothing was asked after it
};

struct AgentSummary {
  int64_t shared_tokens = 0;
  int64_t shared_unit_tokens = 0;  // of those, in units that are shared as a whole
  int64_t reused_tokens = 0;
  int64_t reused_unit_tokens = 0;
  // Least squares over the turns: TTFT = seconds_per_new_token x new tokens + rest_seconds.
  double seconds_per_new_token = 0;
  double rest_seconds = 0;
  bool cache_was_warm = false;  // more was cached than this conversation can have left

  // 1 if nothing was shared.
  double reused_share() const;
  double reused_unit_share() const;
};

AgentSummary SummariseAgent(const AgentRun& run);

// A line a turn, then the summary. Times in milliseconds.
std::string FormatAgentTable(const AgentRun& run);

// One JSON object for all runs of the same conversation, times in seconds, ending in a line feed.
std::string FormatAgentJson(const std::string& model, uint32_t seed, const AgentSettings& settings,
                            const std::vector<AgentRun>& runs);

}  // namespace quartet::cli

#endif  // QUARTET_SERVICES_CLI_BENCH_AGENT_REPORT_H_
