#include "services/common/metrics.h"

#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "prometheus/counter.h"
#include "prometheus/gauge.h"
#include "prometheus/histogram.h"
#include "prometheus/registry.h"
#include "prometheus/text_serializer.h"
#include "services/common/log.h"

namespace quartet {
namespace {

class PrometheusCounter final : public Counter {
 public:
  explicit PrometheusCounter(prometheus::Counter& series) : series_(series) {}
  void Add(double amount) override { series_.Increment(amount); }

 private:
  prometheus::Counter& series_;
};

class PrometheusGauge final : public Gauge {
 public:
  explicit PrometheusGauge(prometheus::Gauge& series) : series_(series) {}
  void Set(double value) override { series_.Set(value); }

 private:
  prometheus::Gauge& series_;
};

class PrometheusHistogram final : public Histogram {
 public:
  explicit PrometheusHistogram(prometheus::Histogram& series) : series_(series) {}
  void Observe(double value) override { series_.Observe(value); }

 private:
  prometheus::Histogram& series_;
};

using SeriesKey = std::pair<std::string, MetricLabels>;

class PrometheusMetrics final : public Metrics {
 public:
  Counter& GetCounter(const std::string& name, const std::string& help,
                      const MetricLabels& labels) override {
    return GetSeries<Counter>(counters_, name, labels, [&]() -> std::unique_ptr<Counter> {
      return std::make_unique<PrometheusCounter>(
          prometheus::BuildCounter().Name(name).Help(help).Register(registry_).Add(labels));
    });
  }

  Gauge& GetGauge(const std::string& name, const std::string& help,
                  const MetricLabels& labels) override {
    return GetSeries<Gauge>(gauges_, name, labels, [&]() -> std::unique_ptr<Gauge> {
      return std::make_unique<PrometheusGauge>(
          prometheus::BuildGauge().Name(name).Help(help).Register(registry_).Add(labels));
    });
  }

  Histogram& GetHistogram(const std::string& name, const std::string& help,
                          const std::vector<double>& bounds, const MetricLabels& labels) override {
    return GetSeries<Histogram>(histograms_, name, labels, [&]() -> std::unique_ptr<Histogram> {
      return std::make_unique<PrometheusHistogram>(
          prometheus::BuildHistogram().Name(name).Help(help).Register(registry_).Add(labels,
                                                                                     bounds));
    });
  }

  std::string Expose() const override {
    return prometheus::TextSerializer().Serialize(registry_.Collect());
  }

 private:
  template <typename T>
  T& GetSeries(std::map<SeriesKey, std::unique_ptr<T>>& all, const std::string& name,
               const MetricLabels& labels, const std::function<std::unique_ptr<T>()>& make) {
    std::lock_guard<std::mutex> lock(mutex_);
    std::unique_ptr<T>& series = all[SeriesKey(name, labels)];
    if (series == nullptr) {
      try {
        series = make();
      } catch (const std::exception& e) {
        // A metric's name, labels and type are constants of the program: a wrong one is a bug.
        LogError("metric '" + name + "' cannot be registered: " + e.what());
        std::terminate();
      }
    }
    return *series;
  }

  prometheus::Registry registry_;
  std::mutex mutex_;
  std::map<SeriesKey, std::unique_ptr<Counter>> counters_;
  std::map<SeriesKey, std::unique_ptr<Gauge>> gauges_;
  std::map<SeriesKey, std::unique_ptr<Histogram>> histograms_;
};

}  // namespace

std::unique_ptr<Metrics> MakeMetrics() {
  return std::make_unique<PrometheusMetrics>();
}

std::vector<double> LatencyBuckets() {
  return {0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2,  0.5,
          1.0,   2.0,   5.0,   10.0, 20.0, 60.0, 120, 300., 600.};
}

}  // namespace quartet
