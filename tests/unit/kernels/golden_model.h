#ifndef QUARTET_TESTS_UNIT_KERNELS_GOLDEN_MODEL_H_
#define QUARTET_TESTS_UNIT_KERNELS_GOLDEN_MODEL_H_

#include <string>

#include "kernels/ops/backend.h"
#include "tests/unit/kernels/tensor_file.h"

namespace quartet::testing {

// The miniature model of tests/data/model as op weights; sizes as its config.json has them.
class GoldenModel {
 public:
  static constexpr int kHidden = 128;
  static constexpr int kLayers = 9;
  static constexpr int kStreams = 4;
  static constexpr int kHeads = 4;
  static constexpr int kKdaDim = 32;
  static constexpr int kKdaWidth = kHeads * kKdaDim;
  static constexpr int kNope = 64;
  static constexpr int kQueryRank = 128;
  static constexpr int kRank = 128;
  static constexpr int kIndexHeads = 16;
  static constexpr int kIndexDim = 128;
  static constexpr int kPool = 4;
  static constexpr int kTopkPools = 16;
  static constexpr int kExperts = 8;
  static constexpr int kTopK = 3;

  GoldenModel() : file_("model/model-00001-of-00001.safetensors") {}

  static bool IsDsa(int layer) { return layer % 4 == 3; }
  static bool IsMoe(int layer) { return layer >= 6; }

  const TensorFile& file() const { return file_; }
  ops::KdaWeights Kda(int layer) const;
  ops::MlaWeights Mla(int layer) const;
  ops::IndexerWeights Indexer(int layer) const;
  ops::MlpWeights Mlp(const std::string& prefix) const;
  ops::MlpWeights DenseMlp(int layer) const { return Mlp(Layer(layer) + "mlp."); }
  ops::MoeWeights Moe(int layer) const;
  // site: "attn" or "ffn".
  ops::MhcSiteWeights Mhc(int layer, const std::string& site) const;
  ops::NormWeights Norm(const std::string& name) const;
  static std::string Layer(int layer) {
    return "model.language_model.layers." + std::to_string(layer) + ".";
  }

 private:
  TensorFile file_;
};

}  // namespace quartet::testing

#endif  // QUARTET_TESTS_UNIT_KERNELS_GOLDEN_MODEL_H_
