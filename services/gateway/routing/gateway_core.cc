#include "services/gateway/routing/gateway_core.h"

#include <sys/random.h>

#include <algorithm>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "services/common/log.h"
#include "services/gateway/routing/generation_metrics.h"
#include "services/gateway/text/utf8.h"

namespace quartet::gateway {
namespace {

void RandomBytes(void* to, size_t size) {
  if (getrandom(to, size, 0) == static_cast<ssize_t>(size)) return;
  std::random_device device;
  auto* bytes = static_cast<unsigned char*>(to);
  for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<unsigned char>(device());
}

// Takes a generation's tokens from what its caller may use in a minute: those of a prompt when the
// engine has taken it, those of the answer as they come.
class Charging final : public GenerationObserver {
 public:
  Charging(std::shared_ptr<GenerationObserver> inner, KeyGate* keys, uint64_t caller,
           std::shared_ptr<void> held)
      : inner_(std::move(inner)), keys_(keys), caller_(caller), held_(std::move(held)) {}

  void OnAdmitted(uint32_t choice, const ChoiceUsage& usage) override {
    Charge(choice, usage);
    inner_->OnAdmitted(choice, usage);
  }
  bool OnUpdate(ChoiceUpdate update) override {
    Charge(update.choice, update.usage);
    return inner_->OnUpdate(std::move(update));
  }
  // What is held is let go before the client learns of the end, so that it may ask again at once.
  void OnFinished() override {
    held_.reset();
    inner_->OnFinished();
  }
  void OnError(const absl::Status& status, bool admitted) override {
    held_.reset();
    inner_->OnError(status, admitted);
  }

 private:
  void Charge(uint32_t choice, const ChoiceUsage& usage) {
    if (charged_.size() <= choice) charged_.resize(choice + 1);
    const int64_t used = int64_t{usage.prompt_tokens} + usage.completion_tokens;
    if (used > charged_[choice]) keys_->ChargeTokens(caller_, used - charged_[choice]);
    charged_[choice] = std::max(charged_[choice], used);
  }

  const std::shared_ptr<GenerationObserver> inner_;
  KeyGate* const keys_;
  const uint64_t caller_;
  std::shared_ptr<void> held_;
  std::vector<int64_t> charged_;  // of each choice
};

// Names are the client's text, so few of them are shown, and of each a part.
std::string Names(const std::vector<std::string>& names) {
  constexpr size_t kNamesMax = 10;
  constexpr size_t kNameBytesMax = 40;
  std::string out;
  for (size_t i = 0; i < std::min(names.size(), kNamesMax); ++i) {
    absl::StrAppend(&out, i ? ", " : "",
                    text::ReplaceIllFormedUtf8(names[i].substr(0, kNameBytesMax)));
  }
  if (names.size() > kNamesMax) absl::StrAppend(&out, " and ", names.size() - kNamesMax, " more");
  return out;
}

void LogIgnored(const GenerationPlan& plan) {
  if (!plan.ignored.samplers.empty()) {
    LogWarning(absl::StrCat(
        "request ", plan.request_id,
        " asks for samplers that are not there, and goes without: ", Names(plan.ignored.samplers)));
  }
  if (!plan.ignored.unknown.empty()) {
    LogDebug(absl::StrCat("request ", plan.request_id,
                          " has unknown fields, which are ignored: ", Names(plan.ignored.unknown)));
  }
}

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

std::optional<KeyRefusal> GatewayCore::HoldTokens(GenerationPlan* plan) const {
  if (options_.keys == nullptr) return std::nullopt;
  int64_t tokens = 0;
  for (const ChoicePlan& choice : plan->choices) {
    tokens += static_cast<int64_t>(choice.prompt_ids.size()) + choice.max_tokens;
  }
  auto result = options_.keys->HoldTokens(plan->scheduling.fair_key, tokens);
  if (auto* refusal = std::get_if<KeyRefusal>(&result)) return std::move(*refusal);
  plan->held_tokens = std::get<std::shared_ptr<void>>(std::move(result));
  return std::nullopt;
}

std::shared_ptr<Generation> GatewayCore::Start(GenerationPlan plan,
                                               std::shared_ptr<GenerationObserver> observer,
                                               std::string_view endpoint) {
  LogIgnored(plan);
  metrics_
      ->GetHistogram("vllm:request_params_n", "Choices of a request", {1, 2, 5, 10, 20},
                     {{"model_name", options_.served_model_name}, {"engine", "0"}})
      .Observe(static_cast<double>(plan.choices.size()));
  if (options_.keys != nullptr) {
    observer = std::make_shared<Charging>(std::move(observer), options_.keys,
                                          plan.scheduling.fair_key, std::move(plan.held_tokens));
  }
  auto generation = StartGeneration(engine_, model(), std::move(plan),
                                    ObserveGeneration(std::move(observer), metrics_,
                                                      {.endpoint = std::string(endpoint),
                                                       .model = options_.served_model_name,
                                                       .otel = options_.otel_metrics},
                                                      open_));
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
