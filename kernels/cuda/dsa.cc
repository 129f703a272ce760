#include "kernels/cuda/dsa.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <span>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/cpu/context.h"
#include "kernels/cpu/linear.h"
#include "kernels/cuda/dsa_paged.h"
#include "kernels/cuda/dsa_params.h"
#include "kernels/cuda/linear.h"
#include "kernels/cuda/weights.h"

namespace quartet::cuda {
namespace {

using cpu::CheckShape;
using cpu::InFeatures;
using cpu::OutFeatures;
using Precision = PackedLinear::Precision;

constexpr int kMaxPool = 64;
constexpr unsigned kThreads = 256;

class DsaProjectOp final : public ops::DsaProject {
 public:
  static absl::StatusOr<std::unique_ptr<ops::DsaProject>> Prepare(const ops::MlaWeights& mla,
                                                                  const ops::IndexerWeights& index,
                                                                  Context& context) {
    QUARTET_CPU_RETURN(Check(mla, index));
    auto op = std::make_unique<DsaProjectOp>();
    const int64_t rank = OutFeatures(mla.kv_a);
    const std::vector<ops::LinearWeights> from_x = {mla.q_a, mla.kv_a, index.wk, index.gate};
    QUARTET_CPU_ASSIGN(op->from_x_, PackedLinear::Make(context, from_x, Precision::kF16,
                                                       "MLA q_a, kv_a, indexer wk, gate"));
    QUARTET_CPU_ASSIGN(op->head_weights_,
                       PackedLinear::Make(context, std::span(&index.head_weights, 1),
                                          Precision::kF32, "indexer head weights"));
    QUARTET_CPU_ASSIGN(
        op->q_norm_, UploadF32(context, mla.q_a_norm.weight, OutFeatures(mla.q_a), "MLA q_a_norm"));
    QUARTET_CPU_ASSIGN(op->kv_norm_,
                       UploadF32(context, mla.kv_a_norm.weight, rank, "MLA kv_a_norm"));
    QUARTET_CPU_ASSIGN(op->k_weight_,
                       UploadF32(context, index.k_norm_weight, index.dim, "indexer k_norm weight"));
    QUARTET_CPU_ASSIGN(op->k_bias_,
                       UploadF32(context, index.k_norm_bias, index.dim, "indexer k_norm bias"));
    QUARTET_CPU_ASSIGN(
        op->ape_, UploadF32(context, index.ape, int64_t{index.kpool} * index.dim, "indexer ape"));
    QUARTET_CPU_ASSIGN(op->append_, context.device->Find("dsa_append"));
    op->q_eps_ = mla.q_a_norm.eps;
    op->kv_eps_ = mla.kv_a_norm.eps;
    op->q_rank_ = static_cast<int>(OutFeatures(mla.q_a));
    op->rank_ = static_cast<int>(rank);
    op->dim_ = index.dim;
    op->kpool_ = index.kpool;
    op->index_heads_ = index.heads;
    op->context_ = &context;
    return op;
  }

  size_t WorkspaceBytes(int max_rows) const override {
    WorkspaceCutter cutter;
    cutter.Take<float>(max_rows * from_x_.out());
    cutter.Take<std::byte>(ForkedBytes(max_rows));
    return cutter.used() +
           std::max(from_x_.WorkspaceBytes(max_rows), head_weights_.WorkspaceBytes(max_rows));
  }

  void Run(const float* x, std::span<const ops::Segment> /*segments*/, int rows, ops::KvLayer kv,
           ops::OpenPool open, ops::DsaQueries out, ops::Workspace workspace) const override {
    assert(kv.page_tokens % kpool_ == 0 && open.ring_rows % kpool_ == 0);
    WorkspaceCutter cutter(workspace.data);
    const int64_t width = from_x_.out();
    float* u = cutter.Take<float>(rows * width);
    const size_t forked_bytes = ForkedBytes(rows);
    const ops::Workspace forked = {cutter.Take<std::byte>(forked_bytes), forked_bytes};
    const ops::Workspace rest = {cutter.rest(), workspace.bytes - cutter.used()};
    const auto weigh_heads = [&](ops::Workspace scratch) {
      head_weights_.Run(x, head_weights_.in(), rows, out.index_w, index_heads_, scratch);
    };
    const bool forks = rows <= kForkRows;
    if (forks) context_->device->Fork(Side::kAhead, [&] { weigh_heads(forked); });
    from_x_.Run(x, from_x_.in(), rows, u, width, rest);
    if (!forks) weigh_heads(rest);
    context_->device->Join();
    const DsaAppendParams params = {
        .step = context_->step->view(),
        .u = u,
        .u_stride = width,
        .q_latent = out.latent,
        .q_weight = q_norm_.as<float>(),
        .kv_weight = kv_norm_.as<float>(),
        .k_weight = k_weight_.as<float>(),
        .k_bias = k_bias_.as<float>(),
        .ape = ape_.as<float>(),
        .index_w = out.index_w,
        .latents = Latents(kv, rank_),
        .pool_keys = PoolKeys(kv, kpool_, dim_),
        .ring = open.data,
        .slot_stride = open.slot_stride,
        .ring_rows = open.ring_rows,
        .q_rank = q_rank_,
        .kpool = kpool_,
        .index_heads = index_heads_,
        .q_eps = q_eps_,
        .kv_eps = kv_eps_,
        .head_scale = 1.0f / std::sqrt(static_cast<float>(index_heads_)),
        .saturation = context_->saturation,
    };
    context_->device->Launch(
        append_, {.grid_x = static_cast<unsigned>(rows), .grid_y = 4, .threads = kThreads}, params);
  }

 private:
  // Of what is forked when there are few rows.
  size_t ForkedBytes(int rows) const {
    return head_weights_.WorkspaceBytes(std::min(rows, kForkRows));
  }

  static absl::Status Check(const ops::MlaWeights& mla, const ops::IndexerWeights& index) {
    if (mla.heads < 1 || mla.nope_dim < 1 || index.heads < 1 || index.dim < 1 || index.kpool < 1 ||
        index.kpool > kMaxPool) {
      return absl::InvalidArgumentError(
          absl::StrCat("DSA: ", mla.heads, " heads of ", mla.nope_dim, ", indexer ", index.heads,
                       " heads of ", index.dim, ", pools of ", index.kpool,
                       "; all must be positive and pools at most ", kMaxPool));
    }
    const int64_t hidden = InFeatures(mla.q_a);
    QUARTET_CPU_RETURN(
        CheckShape("indexer wk", OutFeatures(index.wk), InFeatures(index.wk), index.dim, hidden));
    QUARTET_CPU_RETURN(CheckShape("indexer gate", OutFeatures(index.gate), InFeatures(index.gate),
                                  index.dim, hidden));
    return CheckShape("indexer head weights", OutFeatures(index.head_weights),
                      InFeatures(index.head_weights), index.heads, hidden);
  }

  PackedLinear from_x_;        // q_a | kv_a | indexer wk | gate
  PackedLinear head_weights_;  // FP32
  Buffer q_norm_, kv_norm_, k_weight_, k_bias_, ape_;
  float q_eps_ = 0.0f, kv_eps_ = 0.0f;
  int q_rank_ = 0, rank_ = 0, dim_ = 0, kpool_ = 0, index_heads_ = 0;
  const Kernel* append_ = nullptr;
  Context* context_ = nullptr;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ops::DsaProject>> PrepareDsaProjectOp(
    const ops::MlaWeights& mla, const ops::IndexerWeights& indexer, Context& context) {
  return DsaProjectOp::Prepare(mla, indexer, context);
}

}  // namespace quartet::cuda
