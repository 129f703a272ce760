#ifndef QUARTET_TESTS_GOLDEN_RECORDING_TRACE_H_
#define QUARTET_TESTS_GOLDEN_RECORDING_TRACE_H_

#include <map>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "shard_worker/model/model.h"

namespace quartet {

// Keeps everything that a model shows, rows of later steps behind those of earlier ones.
class RecordingTrace : public Trace {
 public:
  struct SelectedRow {
    std::vector<int32_t> pools;
    float margin = 0;
  };
  struct RoutedRow {
    std::vector<int32_t> experts;  // best first
    std::vector<float> weights;
    std::vector<float> logits;
  };

  void Values(int layer, TracePoint point, std::span<const float> values, int rows) override {
    std::vector<float>& all = values_[{layer, point}];
    all.insert(all.end(), values.begin(), values.end());
  }
  void Selected(int layer, const ops::Selection& selection, int topk_pools, int rows) override {
    for (int r = 0; r < rows; ++r) {
      const int32_t* pools = selection.pools + r * topk_pools;
      selected_[layer].push_back({{pools, pools + selection.counts[r]}, selection.margins[r]});
    }
  }
  void Routed(int layer, const ops::RouterTrace& router, int top_k, int experts,
              int rows) override {
    for (int r = 0; r < rows; ++r) {
      routed_[layer].push_back({{router.experts + r * top_k, router.experts + (r + 1) * top_k},
                                {router.weights + r * top_k, router.weights + (r + 1) * top_k},
                                {router.logits + r * experts, router.logits + (r + 1) * experts}});
    }
  }

  const std::vector<float>& values(int layer, TracePoint point) { return values_[{layer, point}]; }
  const std::vector<SelectedRow>& selected(int layer) { return selected_[layer]; }
  const std::vector<RoutedRow>& routed(int layer) { return routed_[layer]; }

  void Clear() {
    values_.clear();
    selected_.clear();
    routed_.clear();
  }

 private:
  std::map<std::pair<int, TracePoint>, std::vector<float>> values_;
  std::map<int, std::vector<SelectedRow>> selected_;
  std::map<int, std::vector<RoutedRow>> routed_;
};

// The positions that a row attends to: its pools and the tail.
inline std::set<int32_t> Positions(const std::vector<int32_t>& pools, int position, int kpool) {
  std::set<int32_t> out;
  for (const int32_t pool : pools) {
    for (int j = 0; j < kpool; ++j) out.insert(pool * kpool + j);
  }
  for (int p = (position + 1) / kpool * kpool; p <= position; ++p) out.insert(p);
  return out;
}

// A row of a reference list, where -1 fills what is not used.
inline std::set<int32_t> Positions(std::span<const int32_t> row) {
  std::set<int32_t> out;
  for (const int32_t p : row) {
    if (p >= 0) out.insert(p);
  }
  return out;
}

}  // namespace quartet

#endif  // QUARTET_TESTS_GOLDEN_RECORDING_TRACE_H_
