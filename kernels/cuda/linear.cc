#include "kernels/cuda/linear.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/linear_exact.h"
#include "kernels/cuda/linear_exl3.h"
#include "kernels/cuda/linear_f16.h"
#include "kernels/cuda/mlp_params.h"
#include "kernels/cuda/weights.h"

namespace quartet::cuda {
namespace {

constexpr unsigned kGluThreads = 256;

}  // namespace

absl::StatusOr<PackedLinear> PackedLinear::Make(Context& context,
                                                std::span<const ops::LinearWeights> stack,
                                                Precision precision, std::string_view what,
                                                bool shared_decision) {
  PackedLinear linear;
  linear.context_ = &context;
  absl::StatusOr<const Kernel*> glu = context.device->Find("clamped_swiglu");
  if (!glu.ok()) return glu.status();
  linear.glu_ = *glu;
  std::vector<ops::DenseMatrix> dense;  // consecutive ones that become one part
  const auto flush = [&]() -> absl::Status {
    if (dense.empty()) return absl::OkStatus();
    const std::vector<ops::DenseMatrix> matrices = std::exchange(dense, {});
    return linear.Append(precision == Precision::kF32
                             ? LinearExact::Make(context, matrices, what)
                             : LinearF16::Make(context, matrices, what, shared_decision),
                         what);
  };
  for (const ops::LinearWeights& weights : stack) {
    const auto* matrix = std::get_if<ops::DenseMatrix>(&weights);
    if (matrix == nullptr) {
      if (absl::Status s = flush(); !s.ok()) return s;
      const auto& exl3 = std::get<ops::Exl3Matrix>(weights);
      if (absl::Status s = linear.Append(LinearExl3::Make(context, exl3, what), what); !s.ok()) {
        return s;
      }
      continue;
    }
    // Exact parts keep one stored type each.
    if (precision == Precision::kF32 && !dense.empty() &&
        StoredType(dense.back()) != StoredType(*matrix)) {
      if (absl::Status s = flush(); !s.ok()) return s;
    }
    dense.push_back(*matrix);
  }
  if (absl::Status s = flush(); !s.ok()) return s;
  return linear;
}

absl::Status PackedLinear::Append(absl::StatusOr<std::unique_ptr<LinearPart>> part,
                                  std::string_view what) {
  if (!part.ok()) return part.status();
  if (!parts_.empty() && (*part)->in() != in_) {
    return absl::InvalidArgumentError(absl::StrCat(std::string(what), ": a matrix of ",
                                                   (*part)->in(), " inputs in a stack of ", in_));
  }
  in_ = (*part)->in();
  out_ += (*part)->out();
  parts_.push_back(*std::move(part));
  return absl::OkStatus();
}

size_t PackedLinear::WorkspaceBytes(int max_rows) const {
  size_t most = 0;
  for (const auto& part : parts_) most = std::max(most, part->WorkspaceBytes(max_rows));
  return most;
}

void PackedLinear::Run(const float* x, int64_t x_stride, int rows, float* y, int64_t y_stride,
                       ops::Workspace workspace) const {
  const int at_once = context_->RowsAtOnce(rows);
  for (const auto& part : parts_) {
    for (int r = 0; r < rows; r += at_once) {
      part->Run(x + r * x_stride, x_stride, at_once, y + r * y_stride, y_stride, workspace);
    }
    y += part->out();
  }
}

size_t PackedLinear::GatedWorkspaceBytes(int max_rows) const {
  WorkspaceCutter cutter;
  cutter.Take<float>(max_rows * out_);
  return cutter.used() + WorkspaceBytes(max_rows);
}

void PackedLinear::RunGated(const float* x, int64_t x_stride, int rows, float* y, int64_t y_stride,
                            float limit, ops::Workspace workspace) const {
  const int at_once = context_->RowsAtOnce(rows);
  if (parts_.size() == 1 && parts_[0]->RunsGated(at_once)) {
    for (int r = 0; r < rows; r += at_once) {
      parts_[0]->RunGated(x + r * x_stride, x_stride, at_once, y + r * y_stride, y_stride, limit,
                          workspace);
    }
    return;
  }
  WorkspaceCutter cutter(workspace.data);
  float* both = cutter.Take<float>(rows * out_);  // [rows, gate | up]
  Run(x, x_stride, rows, both, out_, {cutter.rest(), workspace.bytes - cutter.used()});
  context_->device->Launch(glu_,
                           {.grid_x = CeilDiv(out_ / 2, kGluThreads),
                            .grid_y = static_cast<unsigned>(rows),
                            .threads = kGluThreads},
                           ClampedSwiGluParams{.gate = both,
                                               .up = both + out_ / 2,
                                               .out = y,
                                               .in_stride = out_,
                                               .out_stride = y_stride,
                                               .width = static_cast<int32_t>(out_ / 2),
                                               .limit = limit});
}

}  // namespace quartet::cuda
