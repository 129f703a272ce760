#include <atomic>
#include <chrono>
#include <cstdint>
#include <fstream>
#include <iostream>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "CLI/App.hpp"
#include "CLI/Config.hpp"
#include "CLI/Formatter.hpp"
#include "absl/strings/str_cat.h"
#include "services/cli/bench_agent.h"
#include "services/cli/bench_report.h"
#include "services/cli/bench_request.h"
#include "services/cli/commands.h"
#include "services/cli/http_client.h"
#include "services/cli/terminal.h"

namespace quartet::cli {
namespace {

using SteadyClock = std::chrono::steady_clock;

constexpr char kRequests[] = "requests";
constexpr char kAgent[] = "agent";
constexpr int kMostConnections = 1024;

struct BenchFlags {
  std::string scenario = kRequests;
  BenchSettings settings;
  AgentSettings agent;
  std::string compare_url;
  std::string json_file;
  uint32_t seed = 1;
};

double Seconds(SteadyClock::duration duration) {
  return std::chrono::duration<double>(duration).count();
}

// A new prompt for every request: a repeated one would measure the prefix cache.
BenchSample RunOne(HttpClient& client, const BenchSettings& settings, uint32_t seed) {
  std::mt19937 random(seed);
  return TimeCompletion(client, settings.model, RandomTokens(random, settings.prompt_tokens),
                        settings.output_tokens);
}

// The table goes to standard output, or to standard error if the JSON goes there. False if the file
// cannot be written.
bool WriteReport(const std::string& json_file, const std::string& table, const std::string& json) {
  const bool json_to_stdout = json_file == "-";
  (json_to_stdout ? std::cerr : std::cout) << table << std::flush;
  if (json_to_stdout) {
    std::cout << json << std::flush;
  } else if (!json_file.empty()) {
    std::ofstream file(json_file);
    file << json << std::flush;
    if (!file) {
      std::cerr << "quartet: cannot write --json " << json_file << "\n";
      return false;
    }
  }
  return true;
}

int RunRequests(const BenchFlags& flags, const Url& url) {
  const BenchSettings& settings = flags.settings;
  std::vector<BenchSample> samples(static_cast<size_t>(settings.requests));
  std::atomic<int> next{0};
  // Each thread takes the next request that nobody has, and writes only its own samples.
  const auto work = [&] {
    const std::unique_ptr<HttpClient> client = MakeHttpClient(url, ApiKeyOfEnvironment());
    for (int i = next++; i < settings.requests; i = next++) {
      samples[static_cast<size_t>(i)] =
          RunOne(*client, settings, flags.seed + static_cast<uint32_t>(i));
    }
  };
  const auto start = SteadyClock::now();
  std::vector<std::thread> threads;
  for (int t = 1; t < settings.concurrency; ++t) threads.emplace_back(work);
  work();
  for (std::thread& thread : threads) thread.join();
  const BenchSummary summary = Summarise(settings, samples, Seconds(SteadyClock::now() - start));

  if (!WriteReport(flags.json_file, FormatTable(settings, summary),
                   FormatJson(settings, summary))) {
    return 1;
  }
  if (summary.failed > 0) {
    std::cerr << "quartet: " << summary.failed << " of " << settings.requests
              << " requests failed; the first: " << Printable(summary.first_error) << "\n";
    return 1;
  }
  return 0;
}

// The same conversation with each cluster, one after the other.
int RunAgentScenario(const BenchFlags& flags, const std::vector<std::pair<std::string, Url>>& at) {
  AgentSettings agent = flags.agent;
  agent.answer_tokens = flags.settings.output_tokens;
  if (agent.turn_tokens_min > agent.turn_tokens_max) {
    std::cerr << "quartet: --turn-tokens-min " << agent.turn_tokens_min
              << " is above --turn-tokens-max " << agent.turn_tokens_max << "\n";
    return 2;
  }
  std::vector<AgentRun> runs;
  std::string tables;
  for (const auto& [text, url] : at) {
    const std::unique_ptr<HttpClient> client = MakeHttpClient(url, ApiKeyOfEnvironment());
    runs.push_back(RunAgent(*client, text, flags.settings.model, flags.seed, agent));
    absl::StrAppend(&tables, tables.empty() ? "" : "\n", FormatAgentTable(runs.back()));
  }
  if (!WriteReport(flags.json_file, tables,
                   FormatAgentJson(flags.settings.model, flags.seed, agent, runs))) {
    return 1;
  }
  int exit_code = 0;
  for (const AgentRun& run : runs) {
    if (run.error.empty()) continue;
    std::cerr << "quartet: " << run.url << ", after " << run.turns.size() << " of " << agent.turns
              << " turns: " << Printable(run.error) << "\n";
    exit_code = 1;
  }
  return exit_code;
}

int RunBench(BenchFlags flags) {
  std::vector<std::pair<std::string, Url>> clusters;
  for (const auto& [flag, text] :
       {std::pair("--url", flags.settings.url), std::pair("--compare-url", flags.compare_url)}) {
    if (text.empty()) continue;
    const absl::StatusOr<Url> url = ParseUrl(text);
    if (!url.ok()) {
      std::cerr << "quartet: " << flag << " " << url.status().message() << "\n";
      return 2;
    }
    clusters.emplace_back(text, *url);
  }
  if (flags.settings.model.empty()) {
    const absl::StatusOr<std::string> model =
        FirstModel(*MakeHttpClient(clusters.front().second, ApiKeyOfEnvironment()));
    if (!model.ok()) {
      std::cerr << "quartet: " << model.status().message()
                << "\nIs the cluster up? `quartet serve --model DIR` starts one.\n";
      return 1;
    }
    flags.settings.model = *model;
  }
  if (flags.scenario == kAgent) return RunAgentScenario(flags, clusters);
  return RunRequests(flags, clusters.front().second);
}

}  // namespace

void AddBenchCommand(CLI::App& app, Command* chosen) {
  auto flags = std::make_shared<BenchFlags>();
  CLI::App* bench = app.add_subcommand("bench", "Measure a running cluster");
  BenchSettings& settings = flags->settings;
  settings.url = "http://127.0.0.1:8000";
  bench
      ->add_option("--scenario", flags->scenario,
                   "requests: prompts that have nothing in common; agent: one conversation that "
                   "grows")
      ->check(CLI::IsMember({kRequests, kAgent}))
      ->capture_default_str();
  bench->add_option("--url", settings.url, "The gateway")->capture_default_str();
  bench->add_option("--model", settings.model,
                    "The model's name (default: the first that is served)");
  bench->add_option("--prompt-tokens", settings.prompt_tokens, "Length of each prompt")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  bench->add_option("--output-tokens", settings.output_tokens, "Length of each answer, in tokens")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  bench->add_option("--concurrency", settings.concurrency, "Requests at the same time")
      ->check(CLI::Range(1, kMostConnections))
      ->capture_default_str();
  bench->add_option("--requests", settings.requests, "Requests in all")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  AgentSettings& agent = flags->agent;
  bench
      ->add_option("--compare-url", flags->compare_url,
                   "agent: play the same conversation with this cluster too, such as one with "
                   "--snapshot-policy boundary")
      ->needs(bench->get_option("--scenario"));
  const auto tokens = [bench](const char* name, int& value, const char* help) {
    bench->add_option(name, value, help)->check(CLI::PositiveNumber)->capture_default_str();
  };
  tokens("--turns", agent.turns, "agent: turns of the conversation");
  tokens("--system-tokens", agent.system_tokens, "agent: length of system prompt and tools");
  tokens("--turn-tokens-min", agent.turn_tokens_min,
         "agent: least that the user or a tool adds in a turn");
  tokens("--turn-tokens-max", agent.turn_tokens_max, "agent: most that they add");
  tokens("--short-tokens", agent.short_tokens,
         "agent: length of a prompt that is asked twice at the end");
  bench->add_option("--seed", flags->seed, "Another seed means other prompts")
      ->capture_default_str();
  bench->add_option("--json", flags->json_file,
                    "Write the results as JSON to this file; - is standard output, and the table "
                    "goes to standard error");
  bench->callback([flags, chosen] { *chosen = [flags] { return RunBench(*flags); }; });
}

}  // namespace quartet::cli
