// What the HTTP and the gRPC end of a gateway share.
#ifndef QUARTET_SERVICES_GATEWAY_ROUTING_GATEWAY_CORE_H_
#define QUARTET_SERVICES_GATEWAY_ROUTING_GATEWAY_CORE_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/time/time.h"
#include "services/common/metrics.h"
#include "services/gateway/access/key_gate.h"
#include "services/gateway/routing/engine_client.h"
#include "services/gateway/routing/generation.h"
#include "services/gateway/routing/text_pool.h"
#include "services/gateway/text/model_text.h"

namespace quartet::gateway {

struct GatewayOptions {
  std::string served_model_name;
  bool trust_content_tokens = false;
  bool share_cache_between_keys = false;  // cached prefixes
  bool any_model = false;                 // requests may name any
  bool stop_in_reasoning = false;         // stop strings are looked for there too
  bool nonempty_content = false;          // AnswerTextOptions
  bool otel_metrics = false;              // OpenTelemetry's names beside our own
  KeyGate* keys = nullptr;                // whose keys are asked for; null: anybody may ask
};

// Thread safe. Engine, pool, metrics and keys belong to the caller and must outlive the core.
class GatewayCore {
 public:
  GatewayCore(GatewayOptions options, EngineClient* engine, TextPool* pool, Metrics* metrics);

  const GatewayOptions& options() const { return options_; }
  EngineClient* engine() const { return engine_; }
  TextPool* pool() const { return pool_; }
  int64_t created_unix_s() const { return created_unix_s_; }

  // Called once, when the model folder's text files have been read.
  void SetModel(std::shared_ptr<const text::ModelText> model);
  // Null before that.
  std::shared_ptr<const text::ModelText> model() const;

  // Why no request can be served; empty if they can.
  std::string NotReadyReason() const;
  // From now on new requests are refused.
  void StartDraining();

  // Holds for the plan the tokens that its choices may need, out of what the caller's key may have
  // at a time; why not, if that is too much. Belongs before Start.
  std::optional<KeyRefusal> HoldTokens(GenerationPlan* plan) const;

  // Starts a generation that AbortAll reaches. `endpoint` is a metrics label.
  std::shared_ptr<Generation> Start(GenerationPlan plan,
                                    std::shared_ptr<GenerationObserver> observer,
                                    std::string_view endpoint);
  // Ends all generations with an error. Those started afterwards are not concerned.
  void AbortAll(const absl::Status& status);

  // Metrics of the gateway itself.
  std::string OwnMetrics() const { return metrics_->Expose(); }
  Metrics* metrics() const { return metrics_; }

 private:
  const GatewayOptions options_;
  EngineClient* const engine_;
  TextPool* const pool_;
  Metrics* const metrics_;
  const int64_t created_unix_s_;
  // Generations at work. Shared with them, since the last may end after the core.
  const std::shared_ptr<std::atomic<int64_t>> open_ = std::make_shared<std::atomic<int64_t>>(0);

  mutable std::mutex mutex_;
  std::shared_ptr<const text::ModelText> model_;
  bool draining_ = false;
  std::vector<std::weak_ptr<Generation>> generations_;
};

// 24 random letters and digits behind `prefix`, from the system's random source.
std::string RandomId(std::string_view prefix);
uint64_t RandomSeed();

}  // namespace quartet::gateway

#endif  // QUARTET_SERVICES_GATEWAY_ROUTING_GATEWAY_CORE_H_
