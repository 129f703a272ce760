#include <atomic>
#include <chrono>
#include <cstdint>
#include <fstream>
#include <iostream>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "CLI/App.hpp"
#include "CLI/Config.hpp"
#include "CLI/Formatter.hpp"
#include "absl/strings/str_cat.h"
#include "boost/json.hpp"
#include "services/cli/bench_report.h"
#include "services/cli/commands.h"
#include "services/cli/http_client.h"
#include "services/cli/sse_reader.h"
#include "services/cli/terminal.h"

namespace quartet::cli {
namespace {

namespace json = boost::json;
using SteadyClock = std::chrono::steady_clock;

// Ordinary tokens in the demo's vocabulary of 2,048 and in the large model's: above the single
// bytes, below the first added token of either.
constexpr int kFirstPromptId = 300;
constexpr int kLastPromptId = 1900;
constexpr int kMostConnections = 1024;

struct BenchFlags {
  BenchSettings settings;
  std::string json_file;
  uint32_t seed = 1;
};

double Seconds(SteadyClock::duration duration) {
  return std::chrono::duration<double>(duration).count();
}

std::string MakeRequest(const BenchSettings& settings, uint32_t seed) {
  std::mt19937 random(seed);
  std::uniform_int_distribution<int> id(kFirstPromptId, kLastPromptId);
  json::array prompt;
  for (int i = 0; i < settings.prompt_tokens; ++i) prompt.push_back(id(random));
  return json::serialize(json::object{{"model", settings.model},
                                      {"prompt", std::move(prompt)},
                                      {"max_tokens", settings.output_tokens},
                                      {"temperature", 0},
                                      {"ignore_eos", true},
                                      {"stream", true},
                                      {"return_token_ids", true},
                                      {"stream_options", {{"include_usage", true}}}});
}

// Turns the events of one answer into times.
class Stopwatch {
 public:
  explicit Stopwatch(SteadyClock::time_point start) : start_(start), last_(start) {}

  void Take(const SseEvent& event) {
    const auto now = SteadyClock::now();
    if (event.data == "[DONE]") return;
    json::error_code failed;
    const json::value value = json::parse(event.data, failed);
    if (failed || !value.is_object()) return;
    if (const json::value* message = value.find_pointer("/error/message", failed)) {
      sample_.error = message->is_string() ? message->get_string().c_str() : "an error event";
      return;
    }
    if (const json::value* tokens = value.find_pointer("/usage/completion_tokens", failed)) {
      if (tokens->is_int64()) counted_ = tokens->get_int64();
    }
    const json::value* ids = value.find_pointer("/choices/0/token_ids", failed);
    if (ids == nullptr || !ids->is_array() || ids->get_array().empty()) return;
    AddTokens(static_cast<int64_t>(ids->get_array().size()), now);
  }

  // `wanted` tokens were asked for; fewer make the sample a failure.
  BenchSample Finish(int64_t wanted) && {
    if (!sample_.error.empty()) return std::move(sample_);
    if (sample_.output_tokens == 0) {
      sample_.error = "no tokens came (token_ids of the streamed answer are what is timed)";
    } else if (counted_ && *counted_ != sample_.output_tokens) {
      sample_.error =
          absl::StrCat("usage counts ", *counted_, " tokens, but ", sample_.output_tokens, " came");
    } else if (sample_.output_tokens != wanted) {
      sample_.error = absl::StrCat(sample_.output_tokens, " tokens came, not ", wanted);
    } else {
      sample_.ok = true;
    }
    return std::move(sample_);
  }

 private:
  void AddTokens(int64_t count, SteadyClock::time_point now) {
    // Several tokens in one event arrived together: the later ones without a gap.
    if (sample_.output_tokens == 0) {
      sample_.ttft_seconds = Seconds(now - start_);
    } else {
      sample_.gaps_seconds.push_back(Seconds(now - last_));
    }
    for (int64_t i = 1; i < count; ++i) sample_.gaps_seconds.push_back(0.0);
    sample_.output_tokens += count;
    last_ = now;
  }

  const SteadyClock::time_point start_;
  SteadyClock::time_point last_;
  BenchSample sample_;
  std::optional<int64_t> counted_;
};

BenchSample RunOne(HttpClient& client, const BenchSettings& settings, uint32_t seed) {
  const std::string request = MakeRequest(settings, seed);
  Stopwatch stopwatch(SteadyClock::now());
  SseReader reader;
  const absl::StatusOr<HttpResponse> response =
      client.PostStreaming("/v1/completions", request, [&](std::string_view bytes) {
        reader.Feed(bytes, [&stopwatch](const SseEvent& event) { stopwatch.Take(event); });
      });
  if (response.ok() && response->status == 200) {
    return std::move(stopwatch).Finish(settings.output_tokens);
  }
  BenchSample failed;
  failed.error = response.ok() ? ErrorText(*response) : std::string(response.status().message());
  return failed;
}

absl::StatusOr<std::string> FirstModel(HttpClient& client) {
  absl::StatusOr<HttpResponse> response = client.Get("/v1/models");
  if (!response.ok()) return response.status();
  if (response->status != 200) return absl::UnavailableError(ErrorText(*response));
  json::error_code failed;
  const json::value value = json::parse(response->body, failed);
  const json::value* id = failed ? nullptr : value.find_pointer("/data/0/id", failed);
  if (id == nullptr || !id->is_string()) {
    return absl::UnavailableError("/v1/models lists no model; is this an OpenAI service?");
  }
  return std::string(id->get_string().c_str());
}

int RunBench(BenchFlags flags) {
  BenchSettings& settings = flags.settings;
  const absl::StatusOr<Url> url = ParseUrl(settings.url);
  if (!url.ok()) {
    std::cerr << "quartet: --url " << url.status().message() << "\n";
    return 2;
  }
  if (settings.model.empty()) {
    const absl::StatusOr<std::string> model = FirstModel(*MakeHttpClient(*url));
    if (!model.ok()) {
      std::cerr << "quartet: " << model.status().message()
                << "\nIs the cluster up? `quartet serve --model DIR` starts one.\n";
      return 1;
    }
    settings.model = *model;
  }
  std::vector<BenchSample> samples(static_cast<size_t>(settings.requests));
  std::atomic<int> next{0};
  // Each thread takes the next request that nobody has, and writes only its own samples.
  const auto work = [&] {
    const std::unique_ptr<HttpClient> client = MakeHttpClient(*url);
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

  const bool json_to_stdout = flags.json_file == "-";
  (json_to_stdout ? std::cerr : std::cout) << FormatTable(settings, summary) << std::flush;
  if (json_to_stdout) {
    std::cout << FormatJson(settings, summary) << std::flush;
  } else if (!flags.json_file.empty()) {
    std::ofstream file(flags.json_file);
    file << FormatJson(settings, summary) << std::flush;
    if (!file) {
      std::cerr << "quartet: cannot write --json " << flags.json_file << "\n";
      return 1;
    }
  }
  if (summary.failed > 0) {
    std::cerr << "quartet: " << summary.failed << " of " << settings.requests
              << " requests failed; the first: " << Printable(summary.first_error) << "\n";
    return 1;
  }
  return 0;
}

}  // namespace

void AddBenchCommand(CLI::App& app, Command* chosen) {
  auto flags = std::make_shared<BenchFlags>();
  CLI::App* bench = app.add_subcommand("bench", "Measure a running cluster");
  BenchSettings& settings = flags->settings;
  settings.url = "http://127.0.0.1:8000";
  bench->add_option("--url", settings.url, "The gateway")->capture_default_str();
  bench->add_option("--model", settings.model,
                    "The model's name (default: the first that is served)");
  bench->add_option("--prompt-tokens", settings.prompt_tokens, "Length of each prompt")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  bench->add_option("--output-tokens", settings.output_tokens, "Length of each answer")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  bench->add_option("--concurrency", settings.concurrency, "Requests at the same time")
      ->check(CLI::Range(1, kMostConnections))
      ->capture_default_str();
  bench->add_option("--requests", settings.requests, "Requests in all")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  bench->add_option("--seed", flags->seed, "Another seed means other prompts")
      ->capture_default_str();
  bench->add_option("--json", flags->json_file,
                    "Write the results as JSON to this file; - is standard output, and the table "
                    "goes to standard error");
  bench->callback([flags, chosen] { *chosen = [flags] { return RunBench(*flags); }; });
}

}  // namespace quartet::cli
