#ifndef QUARTET_SERVICES_CLI_BENCH_AGENT_H_
#define QUARTET_SERVICES_CLI_BENCH_AGENT_H_

#include <cstdint>
#include <string>

#include "services/cli/bench_agent_report.h"
#include "services/cli/http_client.h"

namespace quartet::cli {

// Plays the conversation that the seed gives: the system prompt with its tools and a first
// question, then in every turn all that was said before, the answer included, and a tool's result.
// At the end a short prompt, twice. Prompts are token ids, so that their lengths are exact and each
// holds the answer before it token for token. Stops at the first request that fails.
AgentRun RunAgent(HttpClient& client, const std::string& url, const std::string& model,
                  uint32_t seed, const AgentSettings& settings);

}  // namespace quartet::cli

#endif  // QUARTET_SERVICES_CLI_BENCH_AGENT_H_
