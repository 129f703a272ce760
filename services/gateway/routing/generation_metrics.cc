#include "services/gateway/routing/generation_metrics.h"

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/time/clock.h"

namespace quartet::gateway {
namespace {

// Of the conventions whose names are used below.
constexpr char kOtelVersion[] = "1.37.0";

// Counts what passes through on its way to the one who asked.
class Counting final : public GenerationObserver {
 public:
  Counting(std::shared_ptr<GenerationObserver> inner, Metrics* metrics, GenerationLabels labels,
           std::shared_ptr<std::atomic<int64_t>> open)
      : inner_(std::move(inner)),
        metrics_(metrics),
        labels_(std::move(labels)),
        start_(absl::Now()),
        open_(std::move(open)) {
    SetOpen(open_->fetch_add(1) + 1);
  }
  ~Counting() override {
    SetOpen(open_->fetch_sub(1) - 1);
    if (!ended_) Outcome("cancelled", "cancelled");
    for (const ChoiceUsage& usage : usage_) {
      metrics_->GetCounter("quartet_gateway_prompt_tokens_total", "Prompt tokens of requests.")
          .Add(usage.prompt_tokens);
      metrics_
          ->GetCounter("quartet_gateway_cached_tokens_total",
                       "Prompt tokens whose state came from the cache.")
          .Add(usage.cached_tokens);
      metrics_->GetCounter("quartet_gateway_completion_tokens_total", "Sampled tokens that count.")
          .Add(usage.completion_tokens);
    }
  }

  void OnAdmitted(uint32_t choice, const ChoiceUsage& usage) override {
    Note(choice, usage);
    inner_->OnAdmitted(choice, usage);
  }
  bool OnUpdate(ChoiceUpdate update) override {
    Note(update.choice, update.usage);
    if (!update.ids.empty()) last_token_ = absl::Now();
    if (!first_token_.has_value() && !update.ids.empty()) {
      first_token_ = last_token_;
      metrics_
          ->GetHistogram("quartet_gateway_time_to_first_token_seconds",
                         "From a request whose prompt is ready to its first token.",
                         LatencyBuckets())
          .Observe(absl::ToDoubleSeconds(*first_token_ - start_));
    }
    return inner_->OnUpdate(std::move(update));
  }
  void OnFinished() override {
    Outcome("finished", "");
    inner_->OnFinished();
  }
  void OnError(const absl::Status& status, bool admitted) override {
    Outcome("error", absl::StatusCodeToString(status.code()));
    inner_->OnError(status, admitted);
  }

 private:
  void SetOpen(int64_t open) {
    metrics_->GetGauge("quartet_gateway_open_generations", "Generations at work.")
        .Set(static_cast<double>(open));
  }
  void Note(uint32_t choice, const ChoiceUsage& usage) {
    if (usage_.size() <= choice) usage_.resize(choice + 1);
    usage_[choice] = usage;
  }
  // `error_type`: empty if it is none.
  void Outcome(const char* outcome, const std::string& error_type) {
    ended_ = true;
    metrics_
        ->GetCounter("quartet_gateway_generations_total", "Generations by how they ended.",
                     {{"endpoint", labels_.endpoint}, {"outcome", outcome}})
        .Add();
    metrics_
        ->GetHistogram("quartet_gateway_generation_seconds", "Whole generations.", LatencyBuckets())
        .Observe(absl::ToDoubleSeconds(absl::Now() - start_));
    if (labels_.otel) ObserveOtel(error_type);
  }

  // The server metrics of OpenTelemetry's conventions for generative AI, as Prometheus spells them.
  void ObserveOtel(const std::string& error_type) {
    metrics_
        ->GetGauge("quartet_otel_conventions_info", "Version of the gen_ai_ names.",
                   {{"version", kOtelVersion}})
        .Set(1);
    MetricLabels labels{
        {"gen_ai_operation_name", labels_.endpoint == "chat" ? "chat" : "text_completion"},
        {"gen_ai_provider_name", "quartet"},
        {"gen_ai_request_model", labels_.model},
        {"gen_ai_response_model", labels_.model}};
    if (first_token_.has_value()) {
      metrics_
          ->GetHistogram("gen_ai_server_time_to_first_token_seconds", "Time to the first token.",
                         {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5,
                          5, 7.5, 10},
                         labels)
          .Observe(absl::ToDoubleSeconds(*first_token_ - start_));
      uint64_t tokens = 0;
      for (const ChoiceUsage& usage : usage_) tokens += usage.completion_tokens;
      if (tokens > 1) {
        metrics_
            ->GetHistogram("gen_ai_server_time_per_output_token_seconds",
                           "Time of each token after the first.",
                           {0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5},
                           labels)
            .Observe(absl::ToDoubleSeconds(last_token_ - *first_token_) /
                     static_cast<double>(tokens - 1));
      }
    }
    if (!error_type.empty()) labels["error_type"] = error_type;
    metrics_
        ->GetHistogram("gen_ai_server_request_duration_seconds", "Time of a whole request.",
                       {0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48,
                        40.96, 81.92},
                       labels)
        .Observe(absl::ToDoubleSeconds(absl::Now() - start_));
  }

  const std::shared_ptr<GenerationObserver> inner_;
  Metrics* const metrics_;
  const GenerationLabels labels_;
  const absl::Time start_;
  const std::shared_ptr<std::atomic<int64_t>> open_;
  std::vector<ChoiceUsage> usage_;
  std::optional<absl::Time> first_token_;
  absl::Time last_token_;
  bool ended_ = false;
};

}  // namespace

std::shared_ptr<GenerationObserver> ObserveGeneration(std::shared_ptr<GenerationObserver> inner,
                                                      Metrics* metrics, GenerationLabels labels,
                                                      std::shared_ptr<std::atomic<int64_t>> open) {
  return std::make_shared<Counting>(std::move(inner), metrics, std::move(labels), std::move(open));
}

}  // namespace quartet::gateway
