#include <algorithm>

#include "kernels/cpu/context.h"
#include "kernels/cuda/kda.h"
#include "kernels/cuda/kda_chunk_params.h"
#include "kernels/cuda/kda_host.h"

namespace quartet::cuda {
namespace {

constexpr int kStepThreads = 128;
constexpr int kChunkThreads = 320;
constexpr int kWalkThreads = 128;
// Chunks times heads of a pass: enough to fill a large GPU while the workspace stays small.
constexpr int kPassChunks = 512;

// What the chunked form needs for one width of heads.
struct ChunkSizes {
  size_t workspace_floats;  // for a chunk of one head
  size_t walk_shared_bytes;
};

template <int Width>
ChunkSizes SizesOf() {
  return {KdaChunkLayout<Width>::kFloats, sizeof(KdaWalkShared<Width>)};
}

class KdaRecurrenceOp final : public ops::KdaRecurrence {
 public:
  static absl::StatusOr<std::unique_ptr<ops::KdaRecurrence>> Prepare(int heads, int head_dim,
                                                                     Context& context) {
    QUARTET_CPU_RETURN(CheckKdaHeads(heads, head_dim));
    auto op = std::make_unique<KdaRecurrenceOp>();
    op->context_ = &context;
    op->heads_ = heads;
    op->dim_ = head_dim;
    const int width = KdaWidth(head_dim);
    op->sizes_ = width == 32 ? SizesOf<32>() : width == 64 ? SizesOf<64>() : SizesOf<128>();
    QUARTET_CPU_ASSIGN(op->step_, FindKdaKernel(context, "kda_step", head_dim));
    QUARTET_CPU_ASSIGN(op->chunk_,
                       FindKdaKernel(context, "kda_chunk", head_dim, sizeof(KdaChunkShared)));
    QUARTET_CPU_ASSIGN(op->walk_,
                       FindKdaKernel(context, "kda_walk", head_dim, op->sizes_.walk_shared_bytes));
    return op;
  }

  size_t WorkspaceBytes(int max_rows) const override {
    const int segments = context_->step->limits().max_segments;
    const int chunks = std::min(max_rows, max_rows / kKdaChunk + segments);
    return static_cast<size_t>(std::min(chunks, PassChunks())) * heads_ * sizes_.workspace_floats *
           sizeof(float);
  }

  void Step(const ops::KdaInputs& in, std::span<const ops::Segment> segments, ops::KdaState state,
            float* o, ops::Workspace) const override {
    LaunchStep(in, segments, state, o, false);
  }

  void Commit(std::span<const ops::Segment> segments, ops::KdaState state,
              ops::Workspace) const override {
    LaunchStep({}, segments, state, nullptr, true);
  }

  void Chunked(const ops::KdaInputs& in, std::span<const ops::Segment> segments,
               ops::KdaState state, float* o, ops::Workspace workspace) const override {
    KdaChunkParams params = {.segments = MakeKdaSegments(*context_, segments),
                             .in = Inputs(in),
                             .states = States(state),
                             .o = o,
                             .workspace = reinterpret_cast<float*>(workspace.data),
                             .first_chunk = 0,
                             .chunks = 0};
    const int chunks = MaxTiles(params.segments, kKdaChunk);
    for (int first = 0; first < chunks; first += PassChunks()) {
      params.first_chunk = first;
      params.chunks = std::min(PassChunks(), chunks - first);
      context_->device->Launch(chunk_,
                               {.grid_x = static_cast<unsigned>(params.chunks),
                                .grid_y = static_cast<unsigned>(heads_),
                                .threads = kChunkThreads,
                                .shared_bytes = sizeof(KdaChunkShared)},
                               params);
      context_->device->Launch(walk_,
                               {.grid_x = HeadBlocks(),
                                .grid_y = static_cast<unsigned>(segments.size()),
                                .threads = kWalkThreads,
                                .shared_bytes = static_cast<unsigned>(sizes_.walk_shared_bytes)},
                               params);
    }
  }

 private:
  void LaunchStep(const ops::KdaInputs& in, std::span<const ops::Segment> segments,
                  const ops::KdaState& state, float* o, bool commit_only) const {
    const ops::KdaWindow& w = state.window;
    const KdaStepParams params = {.segments = MakeKdaSegments(*context_, segments),
                                  .in = Inputs(in),
                                  .states = States(state),
                                  .ring = {w.k, w.v, w.g, w.beta, w.slot_stride, w.rows},
                                  .o = o,
                                  .commit_only = commit_only ? 1 : 0};
    context_->device->Launch(step_,
                             {.grid_x = HeadBlocks(),
                              .grid_y = static_cast<unsigned>(segments.size()),
                              .threads = kStepThreads},
                             params);
  }

  int PassChunks() const { return std::max(1, kPassChunks / heads_); }
  unsigned HeadBlocks() const { return static_cast<unsigned>(heads_) * CeilDiv(dim_, kKdaColumns); }
  KdaRecurrenceInputs Inputs(const ops::KdaInputs& in) const {
    return {in.q, in.k, in.v, in.g, in.beta, heads_, dim_};
  }
  static KdaStates States(const ops::KdaState& state) {
    return {state.recurrent, state.recurrent_slot_stride};
  }

  Context* context_ = nullptr;
  int heads_ = 0, dim_ = 0;
  ChunkSizes sizes_ = {};
  const Kernel* step_ = nullptr;
  const Kernel* chunk_ = nullptr;
  const Kernel* walk_ = nullptr;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ops::KdaRecurrence>> PrepareKdaRecurrenceOp(int heads, int head_dim,
                                                                           Context& context) {
  return KdaRecurrenceOp::Prepare(heads, head_dim, context);
}

}  // namespace quartet::cuda
