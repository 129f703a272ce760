#ifndef QUARTET_SHARD_WORKER_CHECKPOINT_LINEAR_RESOLVER_H_
#define QUARTET_SHARD_WORKER_CHECKPOINT_LINEAR_RESOLVER_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "shard_worker/checkpoint/model_config.h"
#include "shard_worker/checkpoint/safetensors.h"
#include "shard_worker/checkpoint/weights.h"

namespace quartet {

// Which dimension of a linear layer is divided among the ranks.
enum class Split { kNone, kOutputs, kInputs };

// A linear layer as the model knows it. Several may lie in one stored matrix, one below the other.
struct LinearSpec {
  std::string module;  // tensor name without ".weight" or ".trellis"
  int64_t out = 0;     // of the whole layer, all ranks
  int64_t in = 0;
  Split split = Split::kNone;
  // Where the layer's outputs begin in the stored matrix, and how many outputs that has (0: `out`).
  int64_t stored_begin = 0;
  int64_t stored_out = 0;
  // Routed experts only: their layer, for the checks of bits per weight.
  std::optional<int64_t> expert_layer;
};

// Finds tensors by name, checks dtype and shape, cuts out the part of one rank, and remembers which
// tensors were used, so that the rest can be reported.
class LinearResolver {
 public:
  LinearResolver(const Checkpoint& checkpoint, const ModelConfig& config, int tp, int rank);

  // Checks that hold for the checkpoint as a whole: per-tensor tile order markers against the
  // configuration, quantization_config.json. Call once, first.
  absl::Status CheckWholeCheckpoint();

  // A layer stored as `.weight` or as EXL3 parts.
  absl::StatusOr<LinearView> Linear(const LinearSpec& spec);
  // A layer that must be dense; `name` is the whole tensor name, and the stored shape is
  // [stored_out, in] or, for a depthwise convolution, [stored_out, 1, in].
  absl::StatusOr<DenseView> Dense(const std::string& name, const LinearSpec& spec,
                                  bool convolution = false);
  absl::StatusOr<VectorView> Vector(const std::string& name, int64_t count, Split split);

  // Expert `expert` of a stack of `experts` EXL3 matrices; `stem` is the name up to "_trellis".
  absl::StatusOr<LinearView> StackedExpert(const std::string& stem, int64_t expert, int64_t experts,
                                           const LinearSpec& spec);

  // True if a tensor of that name exists. Does not count as a use.
  bool Has(const std::string& name) const { return checkpoint_.Find(name) != nullptr; }
  // True if the module exists as `.weight` or as any EXL3 part.
  bool HasModule(const std::string& module) const;
  bool Used(const TensorView* tensor) const { return used_.count(tensor) != 0; }

  // The error for a tensor that should be there: names the file that holds its nearest neighbour.
  absl::Status Missing(const std::string& name) const;

 private:
  struct Cut {
    int64_t begin;
    int64_t size;
  };

  Cut CutFor(int64_t size, bool split) const;
  // The tensor, marked as used, or an error when it is missing.
  absl::StatusOr<const TensorView*> Take(const std::string& name);
  absl::StatusOr<LinearView> Exl3Module(const LinearSpec& spec);
  absl::StatusOr<Exl3Codebook> CodebookOf(const std::string& module);
  absl::Status TakeTileOrderMarker(const std::string& module);
  absl::StatusOr<Exl3Vector> ScaleVector(const std::string& half_name, const std::string& sign_name,
                                         int64_t count);
  // Checks the trellis' shape (past the leading dimension of a stack), bits and cuts; fills all of
  // the view but codebook and vectors. `suh` and `svh` in the view hold whole vectors and are cut.
  absl::StatusOr<Exl3View> CutTrellis(const TensorView& trellis, int64_t first_dim,
                                      const LinearSpec& spec, std::string_view name, Exl3Vector suh,
                                      Exl3Vector svh) const;
  absl::Status CheckBits(const TensorView& trellis, int bits, const LinearSpec& spec) const;
  absl::Status CheckExl3Configured(const TensorView& trellis) const;
  std::string DescribeOrder() const;

  const Checkpoint& checkpoint_;
  const ModelConfig& config_;
  const int tp_;
  const int rank_;
  bool tile_order_markers_ = false;
  std::unordered_map<std::string, int64_t> stored_bits_;  // quantization_config.json, by module
  std::unordered_set<const TensorView*> used_;
  std::vector<const TensorView*> sorted_;  // by name
};

}  // namespace quartet

#endif  // QUARTET_SHARD_WORKER_CHECKPOINT_LINEAR_RESOLVER_H_
