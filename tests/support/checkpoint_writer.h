#ifndef QUARTET_TESTS_SUPPORT_CHECKPOINT_WRITER_H_
#define QUARTET_TESTS_SUPPORT_CHECKPOINT_WRITER_H_

#include <boost/json/object.hpp>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "shard_worker/checkpoint/model_config.h"
#include "shard_worker/checkpoint/safetensors.h"

// Writes a checkpoint in the layouts that models of this architecture are published in, from one
// that exists, so that layouts without data of their own can be tested. Every function that changes
// values has a twin in F32 (Widen) that means exactly the same weights.

namespace quartet::testing {

struct StoredTensor {
  std::string name;
  Dtype dtype = Dtype::kF32;
  std::vector<int64_t> shape;
  std::string bytes;
};

// A whole checkpoint in memory.
struct CheckpointImage {
  boost::json::object config;
  std::vector<StoredTensor> tensors;

  StoredTensor* Find(std::string_view name);
  // Removes the tensor of that name and returns it.
  StoredTensor Take(std::string_view name);
};

// A folder under the test's temporary folder that is removed with all its files at the end.
class ScratchFolder {
 public:
  ScratchFolder();
  ~ScratchFolder();
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

absl::StatusOr<CheckpointImage> ReadImage(const std::string& dir);

// shards 1: config.json and model.safetensors; more: that many shards, tensors dealt in turn, and
// the index. The folder must exist; files of those names are replaced.
absl::Status WriteImage(const CheckpointImage& image, const std::string& dir, int shards = 1);

// Every floating tensor as F32, F8 multiplied with its block scales; quantization_config goes if it
// was FP8.
CheckpointImage Widen(const CheckpointImage& image);

// Every BF16 tensor rounded to F16.
CheckpointImage ToHalf(const CheckpointImage& image);

// The matrices that the FP8 release stores in 8 bits (MLA projections without kv_b, all MLPs), with
// F32 factors per block.
CheckpointImage ToFp8(const CheckpointImage& image, int64_t block_rows = 128,
                      int64_t block_cols = 128);

// q, k and v of linear attention joined: self_attn.qkv_proj, self_attn.conv1d.
CheckpointImage FuseKda(const CheckpointImage& image);

// "model.language_model." and "lm_head" replaced.
CheckpointImage Rename(const CheckpointImage& image, std::string_view trunk_prefix,
                       std::string_view head_module);

enum class ExpertLayout { kStacked, kPerExpert };

struct Exl3Options {
  Exl3Codebook codebook = Exl3Codebook::kMcg;
  Exl3TileOrder tile_order = Exl3TileOrder::kSm80;
  ExpertLayout layout = ExpertLayout::kPerExpert;
  // Per expert: bits alternate between the two from matrix to matrix. Stacked: from layer to layer.
  int bits = 3;
  int other_bits = 4;
  // Instead: by module, "...layers.7.mlp.experts.2.gate_proj". Of a stack all are the same.
  std::function<int(std::string_view module)> bits_of;
  // Per expert only: signs as bit fields (.su, .sv) instead of values.
  bool legacy_signs = false;
  // Per expert and column-major only: a .tile_order marker beside every trellis.
  bool tile_order_markers = false;
  uint32_t seed = 1;
  // Without it, the twin is left without experts: decoding is what takes the time.
  bool with_twin = true;
};

struct Exl3Pair {
  CheckpointImage quantised;
  CheckpointImage widened;  // the decoded experts as F32 weights
};

// Replaces every routed expert by an EXL3 matrix with random trellis bits, of about the spread that
// the original had.
Exl3Pair ToExl3(const CheckpointImage& image, const Exl3Options& options);

// The ways in which a checkpoint may be bad.
enum class Damage {
  kMissingShard,     // sharded only
  kTruncatedTensor,  // the file ends 64 bytes before its last tensor does
  kOverlappingTensors,
  kHeaderLongerThanFile,
  kWrongDtype,
  kWrongShape,
  kMissingTensor,        // neither in the header nor in the index
  kTensorNotInItsShard,  // sharded only: in the index, not in the header
  kTensorNotInIndex,     // sharded only: the reverse
  kUnknownTensor,
  kDuplicateInHeader,
  kDuplicateAcrossShards,   // sharded only
  kUnknownTileOrder,        // EXL3 only
  kContradictoryTileOrder,  // EXL3 per expert only: a marker against the configuration
  kUnsupportedModelType,
};

// Damages the checkpoint in the folder, which WriteImage wrote.
absl::Status DamageCheckpoint(const std::string& dir, Damage damage);

// Nearest values, ties to even.
uint16_t FloatToHalf(float value);
uint8_t FloatToFp8E4m3(float value);

}  // namespace quartet::testing

#endif  // QUARTET_TESTS_SUPPORT_CHECKPOINT_WRITER_H_
