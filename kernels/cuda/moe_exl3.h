#ifndef QUARTET_KERNELS_CUDA_MOE_EXL3_H_
#define QUARTET_KERNELS_CUDA_MOE_EXL3_H_

#include <memory>
#include <vector>

#include "kernels/cuda/exl3_gemm.h"
#include "kernels/cuda/moe_experts.h"

namespace quartet::cuda {

// Sizes of an expert.
struct ExpertShape {
  int64_t hidden = 0, padded_hidden = 0;
  int64_t inner = 0, padded_inner = 0;
  float limit = 0.0f;
};

class Exl3Experts final : public RoutedExperts {
 public:
  static absl::StatusOr<std::unique_ptr<Exl3Experts>> Make(
      Context& context, const std::vector<ops::MlpWeights>& experts, int top_k);

  size_t WorkspaceBytes(int max_rows) const override;
  void Run(const float* x, int rows, const RouterChoice& choice, float* partial,
           ops::Workspace workspace) const override;

  // At most this many rows at a time: what bounds the workspace.
  static constexpr int kPrefillRows = 4096;

  // How the products of `rows` rows are cut, for benchmarks that try others.
  struct Cuts {
    Exl3Cut gate_up, down;
  };
  Cuts CutsFor(int rows) const;

  // The parts of a decode step (at most eight rows), for benchmarks of them.
  struct DecodeBuffers {
    MoeSlot* slots = nullptr;     // [rows, top_k]
    Exl3Group* groups = nullptr;  // [rows * top_k]
    float* gate_up = nullptr;     // [parts][slots][2 * inner]
    float* down = nullptr;        // [parts][slots][hidden]
  };
  DecodeBuffers Cut(WorkspaceCutter& cutter, int rows, const Cuts& cuts) const;
  void Select(int rows, const RouterChoice& choice, const DecodeBuffers& b) const;
  void GateUp(const float* x, int rows, const Cuts& cuts, const DecodeBuffers& b) const;
  void Down(int rows, const Cuts& cuts, const DecodeBuffers& b) const;
  void Combine(int rows, int parts, const MoeSlot* slots, const int32_t* places, const float* sums,
               float* partial) const;

 private:
  // Many rows: slots sorted by expert.
  struct PrefillBuffers {
    MoeSlot* slots = nullptr;
    int32_t* sorted = nullptr;
    int32_t* places = nullptr;
    int32_t* expert_of = nullptr;
    Exl3RowTile* tiles = nullptr;
    int32_t* tile_count = nullptr;
    uint16_t* inputs = nullptr;       // FP16 [gate, up][slots][hidden], transformed
    float* gate_up = nullptr;         // [slots][2 * inner]
    uint16_t* activations = nullptr;  // FP16 [slots][inner], transformed
    float* down = nullptr;            // [slots][hidden], where `inputs` was
  };
  PrefillBuffers CutPrefill(WorkspaceCutter& cutter, int rows) const;
  int RowTile(int rows) const;
  int MostTiles(int rows) const;
  int Groups(int rows) const;
  void Decode(const float* x, int rows, const RouterChoice& choice, float* partial,
              std::byte* workspace) const;
  void Prefill(const float* x, int rows, const RouterChoice& choice, float* partial,
               std::byte* workspace) const;
  void SelectMany(int rows, const RouterChoice& choice, const PrefillBuffers& b) const;

  Context* context_ = nullptr;
  int experts_ = 0;
  int top_k_ = 0;
  ExpertShape shape_;
  PackedExl3 bank_;
  Buffer table_;  // Exl3Weights [experts][gate, up, down]
  Exl3Product product_;
  Exl3Gemm gemm_;
  const Kernel* select_ = nullptr;
  const Kernel* sort_ = nullptr;
  const Kernel* combine_ = nullptr;
};

}  // namespace quartet::cuda

#endif  // QUARTET_KERNELS_CUDA_MOE_EXL3_H_
