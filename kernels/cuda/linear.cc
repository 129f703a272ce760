#include "kernels/cuda/linear.h"

#include "kernels/cpu/convert.h"
#include "kernels/cuda/linear_params.h"
#include "kernels/cuda/weights.h"

namespace quartet::cuda {

absl::StatusOr<PackedLinear> PackedLinear::Make(Context& context,
                                                std::span<const ops::LinearWeights> stack,
                                                Precision precision, std::string_view what) {
  PackedLinear linear;
  linear.context_ = &context;
  std::vector<float> all;
  for (const ops::LinearWeights& weights : stack) {
    const auto* dense = std::get_if<ops::DenseMatrix>(&weights);
    if (dense == nullptr) return absl::UnimplementedError("EXL3");
    absl::StatusOr<std::vector<float>> wide = cpu::Widen(*dense, what);
    if (!wide.ok()) return wide.status();
    all.insert(all.end(), wide->begin(), wide->end());
    linear.in_ = dense->cols;
    linear.out_ += dense->rows;
  }
  absl::StatusOr<Buffer> buffer =
      UploadBytes(context, all.data(), all.size() * sizeof(float), what);
  if (!buffer.ok()) return buffer.status();
  linear.weights_ = *std::move(buffer);
  absl::StatusOr<const Kernel*> kernel = context.device->Find("linear_f32");
  if (!kernel.ok()) return kernel.status();
  linear.kernel_ = *kernel;
  return linear;
}

size_t PackedLinear::WorkspaceBytes(int) const {
  return 0;
}

void PackedLinear::Run(const float* x, int64_t x_stride, int rows, float* y, int64_t y_stride,
                       ops::Workspace) const {
  LinearF32Params params = {.x = x,
                            .weights = weights_.as<float>(),
                            .y = y,
                            .x_stride = x_stride,
                            .y_stride = y_stride,
                            .in = static_cast<int32_t>(in_),
                            .out = static_cast<int32_t>(out_)};
  context_->device->Launch(
      kernel_, {.grid_x = CeilDiv(out_, 8), .grid_y = static_cast<unsigned>(rows), .threads = 256},
      params);
}

}  // namespace quartet::cuda
