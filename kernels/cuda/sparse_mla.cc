#include <algorithm>
#include <cmath>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/cpu/context.h"
#include "kernels/cpu/linear.h"
#include "kernels/cuda/dsa.h"
#include "kernels/cuda/dsa_paged.h"
#include "kernels/cuda/linear.h"
#include "kernels/cuda/sparse_mla_params.h"
#include "kernels/cuda/weights.h"

namespace quartet::cuda {
namespace {

using cpu::CheckShape;
using cpu::OutFeatures;

// Rows whose absorbed queries and outputs lie in the workspace at a time.
constexpr int kTileRows = 1024;
constexpr int kMaxWidth = 512;
constexpr int kSmallHeads = 16;
constexpr int kLargeHeads = 64;
// From so many rows on the blocks that hold 64 heads are faster than those that hold 16 (measured
// on an H200).
constexpr int kLargeRows = 4;

// W_h of all heads, FP16 [heads, out, in], and the kernels that multiply by it.
class HeadLinear {
 public:
  // `name` begins the kernels' names.
  static absl::StatusOr<HeadLinear> Make(Context& context, const std::vector<uint16_t>& weights,
                                         int heads, int out, int in, const std::string& name,
                                         std::string_view what) {
    HeadLinear linear;
    QUARTET_CPU_ASSIGN(linear.weights_,
                       UploadBytes(context, weights.data(), weights.size() * 2, what));
    QUARTET_CPU_ASSIGN(linear.one_, context.device->Find((name + "_one").c_str()));
    QUARTET_CPU_ASSIGN(linear.few_,
                       context.device->Find((name + "_few").c_str(), HeadLinearSharedBytes(in)));
    QUARTET_CPU_ASSIGN(linear.many_, context.device->Find((name + "_many").c_str()));
    linear.heads_ = heads;
    linear.out_ = out;
    linear.in_ = in;
    linear.context_ = &context;
    return linear;
  }

  void Run(const void* x, int rows, void* y) const {
    const HeadLinearParams params = {.x = x,
                                     .w = weights_.as<uint16_t>(),
                                     .y = y,
                                     .rows = rows,
                                     .heads = heads_,
                                     .in = in_,
                                     .out = out_,
                                     .saturation = context_->saturation};
    const auto heads = static_cast<unsigned>(heads_);
    if (rows == 1) {
      context_->device->Launch(one_, {.grid_x = CeilDiv(out_, 64), .grid_y = heads, .threads = 256},
                               params);
      return;
    }
    if (rows <= kHeadLinearRows) {
      context_->device->Launch(few_,
                               {.grid_x = CeilDiv(out_, kHeadLinearOutputs),
                                .grid_y = heads,
                                .threads = kHeadLinearThreads,
                                .shared_bytes = static_cast<unsigned>(HeadLinearSharedBytes(in_))},
                               params);
      return;
    }
    context_->device->Launch(many_,
                             {.grid_x = CeilDiv(out_, 128),
                              .grid_y = CeilDiv(rows, 128),
                              .grid_z = heads,
                              .threads = 256},
                             params);
  }

 private:
  Buffer weights_;
  const Kernel *one_ = nullptr, *few_ = nullptr, *many_ = nullptr;
  int heads_ = 0, out_ = 0, in_ = 0;
  Context* context_ = nullptr;
};

// Which kernel attends, and in how many pieces.
struct AttendPlan {
  bool large = false;  // all heads of 64 in one block
  int splits = 1;
  int split_tiles = 0;
};

class SparseMlaOp final : public ops::SparseMla {
 public:
  static absl::StatusOr<std::unique_ptr<ops::SparseMla>> Prepare(const ops::MlaWeights& mla,
                                                                 const ops::IndexerWeights& index,
                                                                 Context& context) {
    QUARTET_CPU_RETURN(Check(mla, index));
    auto op = std::make_unique<SparseMlaOp>();
    op->heads_ = mla.heads;
    op->nope_ = mla.nope_dim;
    op->v_ = mla.v_dim;
    op->rank_ = static_cast<int>(OutFeatures(mla.kv_a));
    op->kpool_ = index.kpool;
    op->topk_ = index.topk_pools;
    op->context_ = &context;
    QUARTET_CPU_RETURN(op->MakeHeads(std::get<ops::DenseMatrix>(mla.kv_b)));
    QUARTET_CPU_ASSIGN(op->q_b_, PackedLinear::Make(context, std::span(&mla.q_b, 1),
                                                    PackedLinear::Precision::kF16, "MLA q_b"));
    QUARTET_CPU_ASSIGN(op->o_, PackedLinear::Make(context, std::span(&mla.o, 1),
                                                  PackedLinear::Precision::kF16, "MLA o"));
    return FindKernels(std::move(op));
  }

  size_t WorkspaceBytes(int max_rows, int /*max_context*/) const override {
    const int rows = TileRows(max_rows);
    WorkspaceCutter cutter;
    Take(cutter, rows);
    return cutter.used() + std::max(q_b_.WorkspaceBytes(rows), o_.WorkspaceBytes(rows));
  }

  void Run(const ops::DsaQueries& queries, const ops::Selection& selection,
           std::span<const ops::Segment> /*segments*/, int rows, ops::KvLayer kv, float* partial,
           ops::Workspace workspace) const override {
    const int tile_rows = TileRows(rows);
    WorkspaceCutter cutter(workspace.data);
    const Buffers buffers = Take(cutter, tile_rows);
    const ops::Workspace rest = {cutter.rest(), workspace.bytes - cutter.used()};
    AttendParams params = {
        .step = context_->step->view(),
        .pools = selection.pools,
        .counts = selection.counts,
        .tails = selection.tail_positions,
        .latents = Latents(kv, rank_),
        .q = buffers.latent,
        .parts = buffers.parts,
        .part_max = buffers.part_max,
        .part_sum = buffers.part_sum,
        .heads = heads_,
        .kpool = kpool_,
        .topk = topk_,
        .scale_log2 = static_cast<float>(M_LOG2E / std::sqrt(static_cast<double>(nope_))),
        .saturation = context_->saturation,
    };
    for (int begin = 0; begin < rows; begin += tile_rows) {
      const int count = std::min(tile_rows, rows - begin);
      params.row_begin = begin;
      q_b_.Run(queries.latent + begin * q_b_.in(), q_b_.in(), count, buffers.q, q_b_.out(), rest);
      key_.Run(buffers.q, count, buffers.latent);
      context_->device->Join();  // of the selection
      Attend(params, count);
      value_.Run(buffers.latent, count, buffers.out);
      o_.Run(buffers.out, int64_t{heads_} * v_, count, partial + begin * o_.out(), o_.out(), rest);
    }
  }

 private:
  struct Buffers {
    float* q;          // [rows, n, nope]
    uint16_t* latent;  // [rows, n, r]: absorbed queries, then weighted latents
    float* out;        // [rows, n, v]
    float* parts;      // of the rows that are split; see AttendParams
    float* part_max;
    float* part_sum;
  };

  static absl::Status Check(const ops::MlaWeights& mla, const ops::IndexerWeights& index) {
    if (mla.heads < 1 || mla.nope_dim < 1 || mla.v_dim < 1 || index.kpool < 1 ||
        index.topk_pools < 1) {
      return absl::InvalidArgumentError(absl::StrCat(
          "MLA: ", mla.heads, " heads of ", mla.nope_dim, " and ", mla.v_dim, ", pools of ",
          index.kpool, ", the best ", index.topk_pools, "; all must be positive"));
    }
    const int64_t rank = OutFeatures(mla.kv_a);
    if (rank % 16 != 0 || rank > kMaxWidth || mla.nope_dim % 8 != 0 || mla.v_dim % 8 != 0 ||
        mla.nope_dim > kMaxWidth) {
      return absl::InvalidArgumentError(absl::StrCat(
          "MLA: latents of ", rank, ", heads of ", mla.nope_dim, " and ", mla.v_dim,
          "; on CUDA latents must be a multiple of 16, heads of 8, none above ", kMaxWidth));
    }
    if (!std::holds_alternative<ops::DenseMatrix>(mla.kv_b)) {
      return absl::UnimplementedError("MLA kv_b: EXL3 weights are not supported on CUDA");
    }
    const int64_t per_head = int64_t{mla.nope_dim} + mla.v_dim;
    QUARTET_CPU_RETURN(CheckShape("MLA kv_b", OutFeatures(mla.kv_b), cpu::InFeatures(mla.kv_b),
                                  mla.heads * per_head, rank));
    QUARTET_CPU_RETURN(CheckShape("MLA q_b", OutFeatures(mla.q_b), cpu::InFeatures(mla.q_b),
                                  int64_t{mla.heads} * mla.nope_dim, OutFeatures(mla.q_a)));
    return CheckShape("MLA o", OutFeatures(mla.o), cpu::InFeatures(mla.o), OutFeatures(mla.o),
                      int64_t{mla.heads} * mla.v_dim);
  }

  // Cuts kv_b into W_UK, transposed, and W_UV.
  absl::Status MakeHeads(const ops::DenseMatrix& kv_b) {
    QUARTET_CPU_ASSIGN(const std::vector<uint16_t> all, ToF16(kv_b, "MLA kv_b"));
    std::vector<uint16_t> key(size_t(heads_) * rank_ * nope_);
    std::vector<uint16_t> value(size_t(heads_) * v_ * rank_);
    for (int h = 0; h < heads_; ++h) {
      const uint16_t* head = all.data() + size_t(h) * (nope_ + v_) * rank_;
      uint16_t* key_head = key.data() + size_t(h) * rank_ * nope_;
      for (int i = 0; i < nope_; ++i) {
        for (int c = 0; c < rank_; ++c) key_head[c * nope_ + i] = head[i * rank_ + c];
      }
      std::copy_n(head + size_t(nope_) * rank_, size_t(v_) * rank_,
                  value.data() + size_t(h) * v_ * rank_);
    }
    QUARTET_CPU_ASSIGN(key_, HeadLinear::Make(*context_, key, heads_, rank_, nope_, "mla_absorb",
                                              "MLA kv_b (keys)"));
    QUARTET_CPU_ASSIGN(value_, HeadLinear::Make(*context_, value, heads_, v_, rank_, "mla_value",
                                                "MLA kv_b (values)"));
    return absl::OkStatus();
  }

  static absl::StatusOr<std::unique_ptr<ops::SparseMla>> FindKernels(
      std::unique_ptr<SparseMlaOp> op) {
    Device& device = *op->context_->device;
    op->width_ = op->rank_ <= 128 ? 128 : kMaxWidth;
    QUARTET_CPU_ASSIGN(op->small_,
                       device.Find(op->width_ == 128 ? "mla_attend_16_128" : "mla_attend_16_512",
                                   AttendSharedBytes(kSmallHeads, op->width_, op->topk_, 0)));
    const int large_bytes = AttendSharedBytes(kLargeHeads, op->width_, op->topk_, 2 * op->width_);
    if (op->heads_ % kLargeHeads == 0 &&
        static_cast<size_t>(large_bytes) <= device.info().shared_bytes_per_block) {
      QUARTET_CPU_ASSIGN(
          op->large_,
          device.Find(op->width_ == 128 ? "mla_attend_64_128" : "mla_attend_64_512", large_bytes));
    }
    QUARTET_CPU_ASSIGN(op->merge_, device.Find("mla_merge"));
    return op;
  }

  int TileRows(int rows) const { return context_->RowsAtOnce(std::min(rows, kTileRows)); }
  int64_t Groups() const { return CeilDiv(heads_, kSmallHeads); }
  int64_t Multiprocessors() const { return context_->device->info().multiprocessors; }

  // Two small blocks fit a multiprocessor, or a large one; as many splits as fill it once. By rows
  // alone, so that a graph holds for any context.
  AttendPlan Plan(int rows, Stored form) const {
    const int64_t tiles = CeilDiv(int64_t{topk_} * kpool_ + kpool_ - 1, kAttendKeys);
    AttendPlan plan;
    plan.large = large_ != nullptr && form != Stored::kF32 && rows >= kLargeRows;
    const int64_t blocks = plan.large ? Multiprocessors() / (int64_t{rows} * heads_ / kLargeHeads)
                                      : 2 * Multiprocessors() / (rows * Groups());
    plan.split_tiles = static_cast<int>(CeilDiv(tiles, std::clamp<int64_t>(blocks, 1, kMaxSplits)));
    plan.splits = static_cast<int>(CeilDiv(tiles, plan.split_tiles));
    return plan;
  }

  void Attend(AttendParams& params, int rows) const {
    Device* device = context_->device;
    const AttendPlan plan = Plan(rows, params.latents.form);
    params.splits = plan.splits;
    params.split_tiles = plan.split_tiles;
    const int heads = plan.large ? kLargeHeads : kSmallHeads;
    const int raw_bytes = plan.large ? width_ * StoredBytes(params.latents.form) : 0;
    device->Launch(
        plan.large ? large_ : small_,
        {.grid_x = static_cast<unsigned>(plan.splits),
         .grid_y = CeilDiv(heads_, heads),
         .grid_z = static_cast<unsigned>(rows),
         .threads = static_cast<unsigned>(plan.large && width_ == kMaxWidth ? kAttendLargeThreads
                                                                            : kAttendThreads),
         .shared_bytes = static_cast<unsigned>(AttendSharedBytes(heads, width_, topk_, raw_bytes))},
        params);
    if (plan.splits == 1) return;
    device->Launch(merge_,
                   {.grid_x = static_cast<unsigned>(heads_),
                    .grid_y = static_cast<unsigned>(rows),
                    .threads = 512},
                   params);
  }

  Buffers Take(WorkspaceCutter& cutter, int rows) const {
    // What is split fills the card once: see Plan.
    const int64_t split_heads = Multiprocessors() * std::max(2 * kSmallHeads, kLargeHeads);
    Buffers buffers;
    buffers.q = cutter.Take<float>(int64_t{rows} * heads_ * nope_);
    buffers.latent = cutter.Take<uint16_t>(int64_t{rows} * heads_ * rank_);
    buffers.out = cutter.Take<float>(int64_t{rows} * heads_ * v_);
    buffers.parts = cutter.Take<float>(split_heads * rank_);
    buffers.part_max = cutter.Take<float>(split_heads);
    buffers.part_sum = cutter.Take<float>(split_heads);
    return buffers;
  }

  PackedLinear q_b_;
  HeadLinear key_;    // q [nope] -> [r]
  HeadLinear value_;  // z [r] -> [v]
  PackedLinear o_;
  const Kernel *small_ = nullptr, *large_ = nullptr, *merge_ = nullptr;
  int heads_ = 0, nope_ = 0, v_ = 0, rank_ = 0, width_ = 0, kpool_ = 0, topk_ = 0;
  Context* context_ = nullptr;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ops::SparseMla>> PrepareSparseMlaOp(
    const ops::MlaWeights& mla, const ops::IndexerWeights& indexer, Context& context) {
  return SparseMlaOp::Prepare(mla, indexer, context);
}

}  // namespace quartet::cuda
