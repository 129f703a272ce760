#include "kernels/cuda/mtp.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/linear.h"
#include "kernels/cuda/mtp_params.h"
#include "kernels/cuda/norm.h"
#include "kernels/cuda/weights.h"

namespace quartet::cuda {
namespace {

class MtpEntryOp final : public ops::MtpEntry {
 public:
  static absl::StatusOr<std::unique_ptr<ops::MtpEntry>> Prepare(const ops::MtpEntryWeights& w,
                                                                Context& context) {
    const int64_t hidden = w.enorm.weight.size;
    if (absl::Status s = CheckRowWidth(hidden, "enorm"); !s.ok()) return s;
    auto op = std::make_unique<MtpEntryOp>();
    absl::StatusOr<Buffer> enorm = UploadF32(context, w.enorm.weight, hidden, "enorm");
    if (!enorm.ok()) return enorm.status();
    absl::StatusOr<Buffer> hnorm = UploadF32(context, w.hnorm.weight, hidden, "hnorm");
    if (!hnorm.ok()) return hnorm.status();
    const ops::LinearWeights stack[] = {w.eh_proj};
    absl::StatusOr<PackedLinear> eh_proj =
        PackedLinear::Make(context, stack, PackedLinear::Precision::kF16, "eh_proj");
    if (!eh_proj.ok()) return eh_proj.status();
    if (eh_proj->in() != 2 * hidden) {
      return absl::InvalidArgumentError(absl::StrCat("eh_proj has ", eh_proj->in(),
                                                     " inputs, twice the hidden size ", hidden,
                                                     " is expected"));
    }
    absl::StatusOr<const Kernel*> kernel = context.device->Find("mtp_norm", hidden * sizeof(float));
    if (!kernel.ok()) return kernel.status();
    op->device_ = context.device;
    op->kernel_ = *kernel;
    op->enorm_ = *std::move(enorm);
    op->hnorm_ = *std::move(hnorm);
    op->eh_proj_ = *std::move(eh_proj);
    op->hidden_ = static_cast<int32_t>(hidden);
    op->enorm_eps_ = w.enorm.eps;
    op->hnorm_eps_ = w.hnorm.eps;
    return op;
  }

  size_t WorkspaceBytes(int max_rows) const override {
    WorkspaceCutter cutter;
    cutter.Take<float>(static_cast<int64_t>(max_rows) * 2 * hidden_);
    return cutter.used() + eh_proj_.WorkspaceBytes(max_rows);
  }

  void Run(const float* embedding, const float* h, const int32_t* positions, int rows, float* x,
           ops::Workspace workspace) const override {
    if (rows == 0) return;
    WorkspaceCutter cutter(workspace.data);
    float* both = cutter.Take<float>(static_cast<int64_t>(rows) * 2 * hidden_);
    device_->Launch(kernel_,
                    {.grid_x = 2,
                     .grid_y = static_cast<unsigned>(rows),
                     .threads = RowThreads(hidden_),
                     .shared_bytes = static_cast<unsigned>(hidden_ * sizeof(float))},
                    MtpNormParams{.embedding = embedding,
                                  .h = h,
                                  .positions = positions,
                                  .enorm = enorm_.as<float>(),
                                  .hnorm = hnorm_.as<float>(),
                                  .y = both,
                                  .hidden = hidden_,
                                  .enorm_eps = enorm_eps_,
                                  .hnorm_eps = hnorm_eps_});
    eh_proj_.Run(both, eh_proj_.in(), rows, x, eh_proj_.out(),
                 {cutter.rest(), workspace.bytes - cutter.used()});
  }

 private:
  Device* device_ = nullptr;
  const Kernel* kernel_ = nullptr;
  Buffer enorm_, hnorm_;  // [hidden]
  PackedLinear eh_proj_;  // [hidden, 2 hidden]
  int32_t hidden_ = 0;
  float enorm_eps_ = 0.0f, hnorm_eps_ = 0.0f;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ops::MtpEntry>> PrepareMtpEntryOp(
    const ops::MtpEntryWeights& weights, Context& context) {
  return MtpEntryOp::Prepare(weights, context);
}

}  // namespace quartet::cuda
