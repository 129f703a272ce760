#include <vector>

#include "shard_worker/model/model.h"

namespace quartet {
namespace {

// A copy of device memory for the trace. Faults show in the step's own results.
template <typename T>
std::vector<T> Fetch(ops::Backend& backend, const T* data, int64_t count) {
  std::vector<T> out(count);
  backend.CopyOut(out.data(), data, count * sizeof(T)).IgnoreError();
  return out;
}

}  // namespace

void Model::TraceValues(int layer, TracePoint point, const float* data, int rows, int64_t width) {
  if (trace_ == nullptr) return;
  trace_->Values(layer, point, Fetch(backend_, data, rows * width), rows);
}

void Model::TraceSelected(int layer, const ops::Selection& selection, int rows) {
  if (trace_ == nullptr) return;
  const int64_t topk = config_.index_pools();
  std::vector<int32_t> pools = Fetch(backend_, selection.pools, rows * topk);
  std::vector<int32_t> counts = Fetch(backend_, selection.counts, rows);
  std::vector<float> margins = Fetch(backend_, selection.margins, rows);
  const ops::Selection copy = {
      .pools = pools.data(), .counts = counts.data(), .margins = margins.data()};
  trace_->Selected(layer, copy, static_cast<int>(topk), rows);
}

void Model::TraceRouted(int layer, const ops::RouterTrace& router, int rows) {
  if (trace_ == nullptr) return;
  const int64_t top_k = config_.experts_per_token;
  std::vector<int32_t> experts = Fetch(backend_, router.experts, rows * top_k);
  std::vector<float> weights = Fetch(backend_, router.weights, rows * top_k);
  std::vector<float> logits = Fetch(backend_, router.logits, rows * config_.experts);
  const ops::RouterTrace copy = {
      .experts = experts.data(), .weights = weights.data(), .logits = logits.data()};
  trace_->Routed(layer, copy, static_cast<int>(top_k), static_cast<int>(config_.experts), rows);
}

}  // namespace quartet
