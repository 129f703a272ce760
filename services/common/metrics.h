#ifndef QUARTET_SERVICES_COMMON_METRICS_H_
#define QUARTET_SERVICES_COMMON_METRICS_H_

#include <map>
#include <memory>
#include <string>
#include <vector>

namespace quartet {

// Handles to one time series each. Owned by the Metrics object, valid as long as it lives; all
// calls are thread safe.
class Counter {
 public:
  virtual ~Counter() = default;
  virtual void Add(double amount = 1) = 0;
};
class Gauge {
 public:
  virtual ~Gauge() = default;
  virtual void Set(double value) = 0;
};
class Histogram {
 public:
  virtual ~Histogram() = default;
  virtual void Observe(double value) = 0;
};

using MetricLabels = std::map<std::string, std::string>;

// A process's metrics. Asking twice for the same name and labels gives the same series. Thread
// safe.
class Metrics {
 public:
  virtual ~Metrics() = default;
  virtual Counter& GetCounter(const std::string& name, const std::string& help,
                              const MetricLabels& labels = {}) = 0;
  virtual Gauge& GetGauge(const std::string& name, const std::string& help,
                          const MetricLabels& labels = {}) = 0;
  virtual Histogram& GetHistogram(const std::string& name, const std::string& help,
                                  const std::vector<double>& bounds,
                                  const MetricLabels& labels = {}) = 0;
  // Prometheus text exposition of everything.
  virtual std::string Expose() const = 0;
};

std::unique_ptr<Metrics> MakeMetrics();

// Seconds, 1 ms to 10 min: for latencies of requests and steps.
std::vector<double> LatencyBuckets();

}  // namespace quartet

#endif  // QUARTET_SERVICES_COMMON_METRICS_H_
