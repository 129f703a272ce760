#ifndef QUARTET_SERVICES_COORDINATOR_RPC_ENGINE_METRICS_H_
#define QUARTET_SERVICES_COORDINATOR_RPC_ENGINE_METRICS_H_

#include <cstdint>
#include <string>

#include "services/common/metrics.h"
#include "services/coordinator/core/types.h"

namespace quartet::coordinator {

// The engine's metrics. Gauges and counters of what the core does are set from the core's ledger;
// only latencies and refusals are observed one by one. Owned by the engine thread.
class EngineMetrics {
 public:
  // `metrics` outlives this object.
  EngineMetrics(Metrics* metrics, uint64_t epoch);

  // Names with a model label exist from here on.
  void SetModel(const std::string& model_name, const CoreConfig& config);

  void OnLedger(const Ledger& ledger);
  // `max_tokens`: as the client asked for; 0 = what is left of the context.
  void OnAccepted(uint32_t max_tokens);
  void OnOutput(const Output& output, TimeUs now);
  void OnPlan(const StepPlan& plan);
  // `kind`: what the step's rows were: prefill, decode or mixed; without rows commit or copy.
  void OnStep(const std::string& kind, size_t rows, double seconds);
  // From a step's last answer until the next plan was sent: what the workers wait for this process.
  void OnHostTime(double seconds);
  // What making the masks of a step took.
  void OnMaskTime(double seconds);
  void OnRefused(const std::string& reason);
  void OnMismatch();

 private:
  void OnSpeculation(const Ledger& ledger);
  void OnTier(const std::string& tier, const TierLedger& now, TierLedger* seen);
  void OnLowerTier(const std::string& tier, const TierLedger& now, TierLedger* seen);
  // Raises a counter from *seen to the ledger's value; with the model's labels or with these.
  void SetModelCounter(const char* name, const char* help, uint64_t* seen, uint64_t value);
  void SetCounter(const char* name, const char* help, const MetricLabels& labels, uint64_t* seen,
                  uint64_t value);
  Histogram& RequestHistogram(const std::string& name, const std::string& help);

  Metrics* metrics_;
  MetricLabels model_labels_;
  Ledger seen_;
};

}  // namespace quartet::coordinator

#endif  // QUARTET_SERVICES_COORDINATOR_RPC_ENGINE_METRICS_H_
