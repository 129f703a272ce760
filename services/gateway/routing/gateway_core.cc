#include "services/gateway/routing/gateway_core.h"

#include <sys/random.h>

#include <algorithm>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace quartet::gateway {
namespace {

void RandomBytes(void* to, size_t size) {
  if (getrandom(to, size, 0) == static_cast<ssize_t>(size)) return;
  std::random_device device;
  auto* bytes = static_cast<unsigned char*>(to);
  for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<unsigned char>(device());
}

// Counts what passes through on its way to the one who asked.
class Counting final : public GenerationObserver {
 public:
  Counting(std::shared_ptr<GenerationObserver> inner, Metrics* metrics, std::string_view endpoint,
           std::shared_ptr<std::atomic<int64_t>> open)
      : inner_(std::move(inner)),
        metrics_(metrics),
        endpoint_(endpoint),
        start_(absl::Now()),
        open_(std::move(open)) {
    SetOpen(open_->fetch_add(1) + 1);
  }
  ~Counting() override {
    SetOpen(open_->fetch_sub(1) - 1);
    if (!ended_) Outcome("cancelled");
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
    if (!first_token_ && !update.ids.empty()) {
      first_token_ = true;
      metrics_
          ->GetHistogram("quartet_gateway_time_to_first_token_seconds",
                         "From a request whose prompt is ready to its first token.",
                         LatencyBuckets())
          .Observe(absl::ToDoubleSeconds(absl::Now() - start_));
    }
    return inner_->OnUpdate(std::move(update));
  }
  void OnFinished() override {
    Outcome("finished");
    inner_->OnFinished();
  }
  void OnError(const absl::Status& status, bool admitted) override {
    Outcome("error");
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
  void Outcome(const char* outcome) {
    ended_ = true;
    metrics_
        ->GetCounter("quartet_gateway_generations_total", "Generations by how they ended.",
                     {{"endpoint", endpoint_}, {"outcome", outcome}})
        .Add();
    metrics_
        ->GetHistogram("quartet_gateway_generation_seconds", "Whole generations.", LatencyBuckets())
        .Observe(absl::ToDoubleSeconds(absl::Now() - start_));
  }

  const std::shared_ptr<GenerationObserver> inner_;
  Metrics* const metrics_;
  const std::string endpoint_;
  const absl::Time start_;
  const std::shared_ptr<std::atomic<int64_t>> open_;
  std::vector<ChoiceUsage> usage_;
  bool first_token_ = false;
  bool ended_ = false;
};

}  // namespace

GatewayCore::GatewayCore(GatewayOptions options, EngineClient* engine, TextPool* pool,
                         Metrics* metrics)
    : options_(std::move(options)),
      engine_(engine),
      pool_(pool),
      metrics_(metrics),
      created_unix_s_(absl::ToUnixSeconds(absl::Now())) {}

void GatewayCore::SetModel(std::shared_ptr<const text::ModelText> model) {
  std::lock_guard lock(mutex_);
  model_ = std::move(model);
}

std::shared_ptr<const text::ModelText> GatewayCore::model() const {
  std::lock_guard lock(mutex_);
  return model_;
}

std::string GatewayCore::NotReadyReason() const {
  {
    std::lock_guard lock(mutex_);
    if (draining_) return "the server is shutting down";
    if (!model_) return "the tokenizer is being loaded";
  }
  const EngineState state = engine_->state();
  return state.ready ? "" : state.not_ready_reason;
}

void GatewayCore::StartDraining() {
  std::lock_guard lock(mutex_);
  draining_ = true;
}

std::shared_ptr<Generation> GatewayCore::Start(GenerationPlan plan,
                                               std::shared_ptr<GenerationObserver> observer,
                                               std::string_view endpoint) {
  auto generation =
      StartGeneration(engine_, model(), std::move(plan),
                      std::make_shared<Counting>(std::move(observer), metrics_, endpoint, open_));
  std::lock_guard lock(mutex_);
  std::erase_if(generations_, [](const auto& weak) { return weak.expired(); });
  generations_.push_back(generation);
  return generation;
}

void GatewayCore::AbortAll(const absl::Status& status) {
  std::vector<std::weak_ptr<Generation>> generations;
  {
    std::lock_guard lock(mutex_);
    generations.swap(generations_);
  }
  for (const auto& weak : generations) {
    if (auto generation = weak.lock()) generation->Abort(status);
  }
}

std::string RandomId(std::string_view prefix) {
  static constexpr char kLetters[] =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
  unsigned char bytes[24];
  RandomBytes(bytes, sizeof(bytes));
  std::string id(prefix);
  for (unsigned char byte : bytes) id += kLetters[byte % 62];
  return id;
}

uint64_t RandomSeed() {
  uint64_t seed = 0;
  RandomBytes(&seed, sizeof(seed));
  return seed;
}

}  // namespace quartet::gateway
