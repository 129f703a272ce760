#include "kernels/cuda/norm.h"

#include <algorithm>
#include <cassert>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/weights.h"

namespace quartet::cuda {
namespace {

constexpr int64_t kMaxWidth = 24'576;

// The kernel and its weight.
class RowNorm {
 public:
  static absl::StatusOr<RowNorm> Make(const ops::NormWeights& weights, Context& context) {
    const int64_t width = weights.weight.size;
    if (absl::Status s = CheckRowWidth(width, "RMSNorm"); !s.ok()) return s;
    absl::StatusOr<Buffer> weight = UploadF32(context, weights.weight, width, "RMSNorm weight");
    if (!weight.ok()) return weight.status();
    absl::StatusOr<const Kernel*> kernel = context.device->Find("norm_rows", width * sizeof(float));
    if (!kernel.ok()) return kernel.status();
    RowNorm norm;
    norm.device_ = context.device;
    norm.kernel_ = *kernel;
    norm.weight_ = *std::move(weight);
    norm.width_ = static_cast<int32_t>(width);
    norm.eps_ = weights.eps;
    return norm;
  }

  void Run(const float* x, std::span<const float* const> partials, float* sum, int rows,
           float* y) const {
    if (rows == 0) return;
    device_->Launch(kernel_,
                    {.grid_x = static_cast<unsigned>(rows),
                     .threads = RowThreads(width_),
                     .shared_bytes = static_cast<unsigned>(width_ * sizeof(float))},
                    NormParams{.x = x,
                               .partials = MakePartials(partials),
                               .sum = sum,
                               .weight = weight_.as<float>(),
                               .y = y,
                               .width = width_,
                               .eps = eps_});
  }

 private:
  Device* device_ = nullptr;
  const Kernel* kernel_ = nullptr;
  Buffer weight_;  // [width]
  int32_t width_ = 0;
  float eps_ = 0.0f;
};

class RmsNormOp final : public ops::RmsNorm {
 public:
  explicit RmsNormOp(RowNorm norm) : norm_(std::move(norm)) {}
  void Run(const float* x, int rows, float* y) const override {
    norm_.Run(x, {}, nullptr, rows, y);
  }

 private:
  RowNorm norm_;
};

class ResidualNormOp final : public ops::ResidualNorm {
 public:
  explicit ResidualNormOp(RowNorm norm) : norm_(std::move(norm)) {}
  void Run(float* x, std::span<const float* const> partials, int rows, float* y) const override {
    norm_.Run(x, partials, x, rows, y);
  }

 private:
  RowNorm norm_;
};

}  // namespace

absl::Status CheckRowWidth(int64_t width, std::string_view what) {
  if (width > 0 && width % 4 == 0 && width <= kMaxWidth) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(std::string(what), ": width ", width,
                                                 "; a multiple of 4 up to ", kMaxWidth,
                                                 " is supported"));
}

unsigned RowThreads(int64_t width) {
  return std::min<unsigned>(kRowThreads, CeilDiv(width / 4, 32) * 32);
}

Partials MakePartials(std::span<const float* const> partials) {
  assert(partials.size() <= kMaxPartials);
  Partials out = {};
  out.count = static_cast<int32_t>(partials.size());
  std::copy(partials.begin(), partials.end(), out.of);
  return out;
}

absl::StatusOr<std::unique_ptr<ops::RmsNorm>> PrepareRmsNormOp(const ops::NormWeights& weights,
                                                               Context& context) {
  absl::StatusOr<RowNorm> norm = RowNorm::Make(weights, context);
  if (!norm.ok()) return norm.status();
  return std::make_unique<RmsNormOp>(*std::move(norm));
}

absl::StatusOr<std::unique_ptr<ops::ResidualNorm>> PrepareResidualNormOp(
    const ops::NormWeights& weights, Context& context) {
  absl::StatusOr<RowNorm> norm = RowNorm::Make(weights, context);
  if (!norm.ok()) return norm.status();
  return std::make_unique<ResidualNormOp>(*std::move(norm));
}

}  // namespace quartet::cuda
