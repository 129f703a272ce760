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
  void SetModel(const std::string& model_name);

  void OnLedger(const Ledger& ledger);
  void OnOutput(const Output& output, TimeUs now);
  void OnPlan(const StepPlan& plan);
  // `kind`: what the step's rows were: prefill, decode or mixed.
  void OnStep(const std::string& kind, double seconds);
  void OnRefused(const std::string& reason);
  void OnMismatch();

 private:
  void RaiseTo(Counter& counter, uint64_t* seen, uint64_t value);
  Histogram& RequestHistogram(const std::string& name, const std::string& help);

  Metrics* metrics_;
  MetricLabels model_labels_;
  Ledger seen_;
};

}  // namespace quartet::coordinator

#endif  // QUARTET_SERVICES_COORDINATOR_RPC_ENGINE_METRICS_H_
