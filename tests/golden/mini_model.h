#ifndef QUARTET_TESTS_GOLDEN_MINI_MODEL_H_
#define QUARTET_TESTS_GOLDEN_MINI_MODEL_H_

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "shard_worker/checkpoint/safetensors.h"
#include "tests/unit/worker/model_rank.h"

namespace quartet {

// Sizes of the miniature model of tests/data/model.
inline constexpr int kHidden = 128;
inline constexpr int kStreams = 4;
inline constexpr int kVocab = 512;
inline constexpr int kLayers = 9;
inline constexpr int kKpool = 4;
inline constexpr int kTopkWidth = 67;
inline constexpr int kKdaLayers[] = {0, 1, 2, 4, 5, 6, 8};
inline constexpr int kDsaLayers[] = {3, 7};
inline constexpr int kMoeLayers[] = {6, 7, 8};

// What the model must meet against the reference: logits, streams and hidden rows; KDA states.
inline constexpr double kTolerance = 2e-4;
inline constexpr double kStateTolerance = 1e-4;
// Discrete choices are compared where the gap to the first rejected is at least this.
inline constexpr double kMinGap = 1e-4;

inline std::string DataDir() {
  return QUARTET_SOURCE_DIR "/tests/data/model";
}

inline ModelRankOptions MiniModel() {
  ModelRankOptions options;
  options.dir = DataDir();
  return options;
}

inline std::vector<int32_t> PageRange(int first, int count) {
  std::vector<int32_t> pages(count);
  std::iota(pages.begin(), pages.end(), first);
  return pages;
}

// Logits of rows [0, count) of `hidden`, [count, vocab].
inline std::vector<float> AllLogits(Model& model, const float* hidden, int count) {
  std::vector<int> rows(count);
  std::iota(rows.begin(), rows.end(), 0);
  std::vector<float> out;
  const absl::Status status = model.Logits(hidden, rows, [&](int, std::span<const float> logits) {
    out.insert(out.end(), logits.begin(), logits.end());
  });
  if (!status.ok()) out.clear();
  return out;
}

// Rows `rows` of a [.., width] tensor.
inline std::vector<float> Pick(const std::vector<float>& all, const std::vector<int32_t>& rows,
                               size_t width) {
  std::vector<float> out;
  for (const int32_t r : rows) {
    out.insert(out.end(), all.begin() + r * width, all.begin() + (r + 1) * width);
  }
  return out;
}

inline std::vector<float> CorrectionBias(const Checkpoint& checkpoint, int layer) {
  const TensorView* bias = checkpoint.Find(
      absl::StrCat("model.language_model.layers.", layer, ".mlp.gate.e_score_correction_bias"));
  std::vector<float> out(bias->elements());
  std::memcpy(out.data(), bias->data, bias->bytes);
  return out;
}

// Gap between the last selected and the best rejected expert in the reference's own scores.
inline double RouterGap(std::span<const float> logits, const std::vector<float>& bias, int top_k) {
  std::vector<double> scores;
  for (size_t e = 0; e < logits.size(); ++e) {
    scores.push_back(1 / (1 + std::exp(-static_cast<double>(logits[e]))) + bias[e]);
  }
  std::sort(scores.rbegin(), scores.rend());
  return scores[top_k - 1] - scores[top_k];
}

}  // namespace quartet

#endif  // QUARTET_TESTS_GOLDEN_MINI_MODEL_H_
