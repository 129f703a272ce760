#include "services/cli/bench_request.h"

#include <chrono>
#include <optional>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "boost/json.hpp"
#include "services/cli/sse_reader.h"

namespace quartet::cli {
namespace {

namespace json = boost::json;
using SteadyClock = std::chrono::steady_clock;

// Ordinary tokens in the demo's vocabulary of 2,048 and in the large model's: above the single
// bytes, below the first added token of either.
constexpr int kFirstPromptId = 300;
constexpr int kLastPromptId = 1900;

double Seconds(SteadyClock::duration duration) {
  return std::chrono::duration<double>(duration).count();
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
    if (const json::value* cached =
            value.find_pointer("/usage/prompt_tokens_details/cached_tokens", failed)) {
      if (cached->is_int64()) sample_.cached_tokens = cached->get_int64();
    }
    const json::value* ids = value.find_pointer("/choices/0/token_ids", failed);
    if (ids == nullptr || !ids->is_array() || ids->get_array().empty()) return;
    for (const json::value& id : ids->get_array()) {
      sample_.output_ids.push_back(id.is_int64() ? static_cast<int32_t>(id.get_int64()) : 0);
    }
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

}  // namespace

int RandomBetween(std::mt19937& random, int low, int high) {
  return low + static_cast<int>(random() % static_cast<uint32_t>(high - low + 1));
}

std::vector<int32_t> RandomTokens(std::mt19937& random, int count) {
  std::vector<int32_t> tokens;
  for (int i = 0; i < count; ++i) {
    tokens.push_back(RandomBetween(random, kFirstPromptId, kLastPromptId));
  }
  return tokens;
}

BenchSample TimeCompletion(HttpClient& client, const std::string& model,
                           const std::vector<int32_t>& prompt, int output_tokens) {
  const std::string request =
      json::serialize(json::object{{"model", model},
                                   {"prompt", json::array(prompt.begin(), prompt.end())},
                                   {"max_tokens", output_tokens},
                                   {"temperature", 0},
                                   {"ignore_eos", true},
                                   {"stream", true},
                                   {"return_token_ids", true},
                                   {"stream_options", {{"include_usage", true}}}});
  Stopwatch stopwatch(SteadyClock::now());
  SseReader reader;
  const absl::StatusOr<HttpResponse> response =
      client.PostStreaming("/v1/completions", request, [&](std::string_view bytes) {
        reader.Feed(bytes, [&stopwatch](const SseEvent& event) { stopwatch.Take(event); });
      });
  if (response.ok() && response->status == 200) return std::move(stopwatch).Finish(output_tokens);
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

}  // namespace quartet::cli
