#ifndef QUARTET_SERVICES_GATEWAY_ROUTING_GENERATION_METRICS_H_
#define QUARTET_SERVICES_GATEWAY_ROUTING_GENERATION_METRICS_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "services/common/metrics.h"
#include "services/gateway/routing/generation.h"

namespace quartet::gateway {

struct GenerationLabels {
  std::string endpoint;  // chat, completions or grpc
  std::string model;
  bool otel = false;  // OpenTelemetry's names too
};

// Passes everything on to `inner` and counts and times it on its way. `open`: generations at work.
// `metrics` must outlive what comes back.
std::shared_ptr<GenerationObserver> ObserveGeneration(std::shared_ptr<GenerationObserver> inner,
                                                      Metrics* metrics, GenerationLabels labels,
                                                      std::shared_ptr<std::atomic<int64_t>> open);

}  // namespace quartet::gateway

#endif  // QUARTET_SERVICES_GATEWAY_ROUTING_GENERATION_METRICS_H_
