#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "kernels/cpu/context.h"
#include "kernels/cpu/linear.h"
#include "kernels/cuda/dsa.h"
#include "kernels/cuda/dsa_paged.h"
#include "kernels/cuda/indexer_params.h"
#include "kernels/cuda/linear.h"

namespace quartet::cuda {
namespace {

// Rows whose scores lie in the workspace at a time.
constexpr int kTileRows = 512;
// Up to here the keys are read by as many blocks as there is room for, beyond by blocks that hold
// keys in registers while rows pass by.
constexpr int kFewRows = 16;
constexpr int kFewGroup = 8;
constexpr int kManyGroup = 64;
constexpr unsigned kManyBlocks = 64;  // a group; each takes every 64th tile of 512 pools
constexpr int kDim = 128;             // of the kernels that use tensor cores
constexpr int kStride = kDim + 8;     // halves
constexpr int kStageRows = 4;
constexpr int kMaxHeads = 32;  // of the kernels that use tensor cores

size_t SharedBytes(int heads, int stages, int warps) {
  const size_t padded = (heads + 15) / 16 * 16;
  const size_t queries = stages * kStageRows * padded * kStride * 2;
  const size_t keys = size_t(warps) * 16 * kStride * 2;
  const size_t weights = stages * kStageRows * padded * sizeof(float);
  return (stages == 2 ? std::max(queries, keys) : queries + keys) + weights;
}

class IndexerSelectOp final : public ops::IndexerSelect {
 public:
  static absl::StatusOr<std::unique_ptr<ops::IndexerSelect>> Prepare(
      const ops::IndexerWeights& weights, Context& context) {
    if (weights.heads < 1 || weights.dim < 1 || weights.dim % 8 != 0 || weights.kpool < 1 ||
        weights.topk_pools < 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("indexer: ", weights.heads, " heads of ", weights.dim, ", pools of ",
                       weights.kpool, ", the best ", weights.topk_pools,
                       "; all must be positive and the width of a head a multiple of 8"));
    }
    auto op = std::make_unique<IndexerSelectOp>();
    op->heads_ = weights.heads;
    op->dim_ = weights.dim;
    op->kpool_ = weights.kpool;
    op->topk_ = weights.topk_pools;
    op->context_ = &context;
    op->few_shared_ = SharedBytes(weights.heads, 1, 8);
    op->many_shared_ = SharedBytes(weights.heads, 2, 16);
    QUARTET_CPU_RETURN(cpu::CheckShape(
        "indexer wq_b", cpu::OutFeatures(weights.wq_b), cpu::InFeatures(weights.wq_b),
        int64_t{weights.heads} * weights.dim, cpu::InFeatures(weights.wq_b)));
    QUARTET_CPU_ASSIGN(op->wq_b_,
                       PackedLinear::Make(context, std::span(&weights.wq_b, 1),
                                          PackedLinear::Precision::kF16, "indexer wq_b"));
    Device* device = context.device;
    if (op->has_tiles()) {
      QUARTET_CPU_ASSIGN(op->few_, device->Find("index_score_few", op->few_shared_));
      QUARTET_CPU_ASSIGN(op->many_, device->Find("index_score_many", op->many_shared_));
    }
    QUARTET_CPU_ASSIGN(op->plain_, device->Find("index_score_plain"));
    QUARTET_CPU_ASSIGN(op->round_, device->Find("index_round"));
    QUARTET_CPU_ASSIGN(op->select_, device->Find("index_select"));
    return op;
  }

  size_t WorkspaceBytes(int max_rows, int max_context) const override {
    const int64_t tile_rows = TileRows(max_rows);
    WorkspaceCutter cutter;
    cutter.Take<float>(int64_t{max_rows} * heads_ * dim_);
    WorkspaceCutter product = cutter;
    product.Take<std::byte>(static_cast<int64_t>(wq_b_.WorkspaceBytes(max_rows)));
    cutter.Take<uint16_t>(tile_rows * heads_ * dim_);
    // Strides are multiples of four.
    cutter.Take<float>(tile_rows * (max_context / kpool_ + 8));
    return std::max(product.used(), cutter.used());
  }

  void Run(const ops::DsaQueries& queries, std::span<const ops::Segment> segments, ops::KvLayer kv,
           ops::Selection out, ops::Workspace workspace) const override {
    int rows = 0;
    for (const ops::Segment& segment : segments) rows += segment.rows;
    const int tile_rows = TileRows(rows);
    WorkspaceCutter cutter(workspace.data);
    auto* q = cutter.Take<float>(int64_t{rows} * heads_ * dim_);
    wq_b_.Run(queries.latent, wq_b_.in(), rows, q, wq_b_.out(),
              {cutter.rest(), workspace.bytes - cutter.used()});
    auto* q_f16 = cutter.Take<uint16_t>(int64_t{tile_rows} * heads_ * dim_);
    auto* scores = reinterpret_cast<float*>(cutter.rest());
    // All there is: how long the contexts of this step are is known on the device only, and they
    // fit if the workspace has the size that was asked for.
    const auto free = static_cast<int64_t>(workspace.bytes - cutter.used()) / 4;
    const int64_t stride = free / tile_rows / 4 * 4;

    IndexScoreParams score = {
        .step = context_->step->view(),
        .q = q,
        .w = queries.index_w,
        .q_f16 = q_f16,
        .keys = PoolKeys(kv, kpool_, dim_),
        .scores = scores,
        .stride = stride,
        .heads = heads_,
        .kpool = kpool_,
        .topk = topk_,
        .scale = 1.0f / std::sqrt(static_cast<float>(dim_)),
        .saturation = context_->saturation,
    };
    IndexSelectParams select = {
        .step = score.step,
        .scores = scores,
        .stride = stride,
        .kpool = kpool_,
        .topk = topk_,
        .pools = out.pools,
        .counts = out.counts,
        .margins = out.margins,
    };
    for (int begin = 0; begin < rows; begin += tile_rows) {
      score.row_begin = select.row_begin = begin;
      score.rows = std::min(tile_rows, rows - begin);
      Score(score, q_f16);
      context_->device->Launch(
          select_, {.grid_x = static_cast<unsigned>(score.rows), .threads = 1024}, select);
    }
  }

 private:
  int TileRows(int rows) const { return context_->RowsAtOnce(std::min(rows, kTileRows)); }
  bool has_tiles() const { return dim_ == kDim && heads_ <= kMaxHeads; }

  // Grids do not depend on the context: blocks beyond it end at once.
  void Score(IndexScoreParams& params, uint16_t* q_f16) const {
    Device* device = context_->device;
    const auto multiprocessors = static_cast<unsigned>(device->info().multiprocessors);
    if (!has_tiles() || params.keys.form != Stored::kF16) {
      device->Launch(plain_,
                     {.grid_x = 2 * multiprocessors,
                      .grid_y = static_cast<unsigned>(params.rows),
                      .threads = 256},
                     params);
      return;
    }
    if (params.rows <= kFewRows) {
      params.group_rows = kFewGroup;
      device->Launch(few_,
                     {.grid_x = 2 * multiprocessors,
                      .grid_y = CeilDiv(params.rows, kFewGroup),
                      .threads = 256,
                      .shared_bytes = static_cast<unsigned>(few_shared_)},
                     params);
      return;
    }
    const int64_t first = int64_t{params.row_begin} * heads_ * dim_;
    const int64_t pieces = int64_t{params.rows} * heads_ * dim_ / 4;
    device->Launch(round_, {.grid_x = CeilDiv(pieces, 256), .threads = 256},
                   IndexRoundParams{params.q + first, q_f16, pieces, params.saturation});
    params.group_rows = kManyGroup;
    device->Launch(many_,
                   {.grid_x = kManyBlocks,
                    .grid_y = CeilDiv(params.rows, kManyGroup),
                    .threads = 512,
                    .shared_bytes = static_cast<unsigned>(many_shared_)},
                   params);
  }

  PackedLinear wq_b_;
  int heads_ = 0, dim_ = 0, kpool_ = 0, topk_ = 0;
  size_t few_shared_ = 0, many_shared_ = 0;
  const Kernel *few_ = nullptr, *many_ = nullptr, *plain_ = nullptr, *round_ = nullptr,
               *select_ = nullptr;
  Context* context_ = nullptr;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ops::IndexerSelect>> PrepareIndexerSelectOp(
    const ops::IndexerWeights& weights, Context& context) {
  return IndexerSelectOp::Prepare(weights, context);
}

}  // namespace quartet::cuda
