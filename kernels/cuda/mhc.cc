#include "kernels/cuda/mhc.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/cpu/convert.h"
#include "kernels/cuda/mhc_params.h"
#include "kernels/cuda/norm.h"
#include "kernels/cuda/weights.h"

namespace quartet::cuda {
namespace {

// Rows of one pair of launches of mhc_spread and mhc_collapse, which bounds the memory of a site;
// from how many rows on a block spreads kSpreadGroup of them, so that fn is read less often; from
// how many on mhc_group, which reads fn once for 16 rows, is faster (on an H200).
constexpr int kSpreadRows = 64;
constexpr int kSpreadGroup = 4;
constexpr int kSpreadGroupFrom = 9;
constexpr int kGroupFrom = 11 * kSpreadRows;

absl::Status CheckStreams(int streams) {
  if (streams == kMhcStreams) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("hc_mult: ", streams, " streams; ", kMhcStreams, " are supported on a GPU"));
}

bool SixteenBits(ops::DType dtype) {
  return dtype == ops::DType::kF16 || dtype == ops::DType::kBF16;
}

// fn [kMhcMap, 4 hidden] in the order in which warps read it: [slices, kMhcMap, chunks, 32 lanes,
// values of a chunk]. A lane has four channels of a slice; its values go stream by stream. Channels
// beyond the hidden size are zero.
template <class T>
std::vector<T> PackFn(const std::vector<T>& fn, int hidden) {
  constexpr int kValues = 16 / sizeof(T);
  constexpr int kLaneValues = 4 * kMhcStreams;
  const int slices = static_cast<int>(CeilDiv(hidden, kMhcSlice));
  std::vector<T> packed(static_cast<size_t>(slices) * kMhcMap * 32 * kLaneValues);
  for (int s = 0; s < slices; ++s) {
    for (int o = 0; o < kMhcMap; ++o) {
      T* to = packed.data() + (static_cast<size_t>(s) * kMhcMap + o) * 32 * kLaneValues;
      for (int lane = 0; lane < 32; ++lane) {
        for (int e = 0; e < kLaneValues; ++e) {
          const int channel = s * kMhcSlice + 4 * lane + e % 4;
          if (channel >= hidden) continue;
          to[(e / kValues * 32 + lane) * kValues + e % kValues] =
              fn[static_cast<size_t>(o) * kMhcStreams * hidden + e / 4 * hidden + channel];
        }
      }
    }
  }
  return packed;
}

class MhcSiteOp final : public ops::MhcSite {
 public:
  static absl::StatusOr<std::unique_ptr<ops::MhcSite>> Prepare(const ops::MhcSiteWeights& w,
                                                               Context& context) {
    if (absl::Status s = CheckStreams(w.hc_mult); !s.ok()) return s;
    const int64_t hidden = w.norm.weight.size;
    if (absl::Status s = CheckRowWidth(hidden, "site norm"); !s.ok()) return s;
    if (w.fn.rows != kMhcMap || w.fn.cols != kMhcStreams * hidden) {
      return absl::InvalidArgumentError(absl::StrCat("hc fn is [", w.fn.rows, ", ", w.fn.cols,
                                                     "], expected [", kMhcMap, ", ",
                                                     kMhcStreams * hidden, "]"));
    }
    auto op = std::make_unique<MhcSiteOp>();
    op->device_ = context.device;
    op->batch_invariant_ = context.batch_invariant;
    const auto upload = [&](const ops::VectorView& v, int64_t size, const char* what,
                            Buffer& to) -> absl::Status {
      absl::StatusOr<Buffer> buffer = UploadF32(context, v, size, what);
      if (!buffer.ok()) return buffer.status();
      to = *std::move(buffer);
      return absl::OkStatus();
    };
    if (absl::Status s = upload(w.base, kMhcMap, "hc base", op->base_); !s.ok()) return s;
    if (absl::Status s = upload(w.scale, 3, "hc scale", op->scale_); !s.ok()) return s;
    if (absl::Status s = upload(w.norm.weight, hidden, "site norm", op->norm_); !s.ok()) return s;
    op->constants_ = {.hidden = static_cast<int32_t>(hidden),
                      .slices = static_cast<int32_t>(CeilDiv(hidden, kMhcSlice)),
                      .base = op->base_.as<float>(),
                      .scale = op->scale_.as<float>(),
                      .norm = op->norm_.as<float>(),
                      .sinkhorn_iters = w.sinkhorn_iters,
                      .hc_eps = w.hc_eps,
                      .norm_eps = w.norm_eps,
                      .site_eps = w.norm.eps};
    if (absl::Status s = op->PrepareFn(w.fn, context); !s.ok()) return s;
    if (absl::Status s = op->AllocateSums(); !s.ok()) return s;
    return op;
  }

  void Begin(const float* embedding, int rows, float* streams, ops::MhcMix mix,
             float* x) const override {
    const float* const partials[] = {embedding};
    Run(partials, true, rows, streams, mix, x);
  }
  void Boundary(std::span<const float* const> partials, int rows, float* streams, ops::MhcMix mix,
                float* x) const override {
    Run(partials, false, rows, streams, mix, x);
  }

 private:
  absl::Status PrepareFn(const ops::DenseMatrix& fn, Context& context) {
    const bool half = SixteenBits(fn.dtype);
    absl::StatusOr<Buffer> buffer = absl::UnknownError("");
    if (half) {
      absl::StatusOr<std::vector<uint16_t>> values = ToF16(fn, "hc fn");
      if (!values.ok()) return values.status();
      const std::vector<uint16_t> packed = PackFn(*values, constants_.hidden);
      buffer = UploadBytes(context, packed.data(), packed.size() * sizeof(uint16_t), "hc fn");
    } else {
      absl::StatusOr<std::vector<float>> values = cpu::Widen(fn, "hc fn");
      if (!values.ok()) return values.status();
      const std::vector<float> packed = PackFn(*values, constants_.hidden);
      buffer = UploadBytes(context, packed.data(), packed.size() * sizeof(float), "hc fn");
    }
    if (!buffer.ok()) return buffer.status();
    fn_ = *std::move(buffer);
    constants_.fn = fn_.as<const uint4>();
    // One slice of FP32 or two of FP16: 48 KiB either way.
    group_shared_bytes_ = kMhcMap * kMhcSlice * kMhcStreams * sizeof(float);
    const auto find = [&](const char* name, size_t shared, const Kernel*& to) -> absl::Status {
      absl::StatusOr<const Kernel*> kernel = device_->Find(name, shared);
      if (kernel.ok()) to = *kernel;
      return kernel.status();
    };
    if (absl::Status s = find(half ? "mhc_spread_f16" : "mhc_spread_f32", 0, spread_); !s.ok()) {
      return s;
    }
    if (absl::Status s = find(half ? "mhc_spread4_f16" : "mhc_spread4_f32", 0, spread_group_);
        !s.ok()) {
      return s;
    }
    if (absl::Status s = find("mhc_collapse", 0, collapse_); !s.ok()) return s;
    return find(half ? "mhc_group_f16" : "mhc_group_f32", group_shared_bytes_, group_);
  }

  absl::Status AllocateSums() {
    absl::StatusOr<Buffer> buffer = device_->Allocate(
        size_t{kSpreadRows} * constants_.slices * kMhcSums * sizeof(float), "sums of an mHC site");
    if (!buffer.ok()) return buffer.status();
    sums_ = *std::move(buffer);
    constants_.sums = sums_.as<float>();
    return absl::OkStatus();
  }

  void Run(std::span<const float* const> partials, bool begin, int rows, float* streams,
           ops::MhcMix mix, float* x) const {
    MhcSiteParams p = constants_;
    p.partials = MakePartials(partials);
    p.begin = begin;
    p.streams = streams;
    p.post = mix.post;
    p.comb = mix.comb;
    p.x = x;
    if (rows >= kGroupFrom && !batch_invariant_) {
      p.rows = rows;
      device_->Launch(group_,
                      {.grid_x = CeilDiv(rows, kMhcGroupRows),
                       .threads = kCollapseThreads,
                       .shared_bytes = group_shared_bytes_},
                      p);
      return;
    }
    for (int done = 0; done < rows; done += kSpreadRows) {
      p.rows = std::min(kSpreadRows, rows - done);
      RunSpread(p);
      for (int i = 0; i < p.partials.count; ++i) p.partials.of[i] += int64_t{p.rows} * p.hidden;
      p.streams += int64_t{p.rows} * kMhcStreams * p.hidden;
      p.post += p.rows * kMhcStreams;
      p.comb += p.rows * kMhcStreams * kMhcStreams;
      p.x += int64_t{p.rows} * p.hidden;
    }
  }

  void RunSpread(const MhcSiteParams& p) const {
    const bool grouped = p.rows >= kSpreadGroupFrom && !batch_invariant_;
    device_->Launch(grouped ? spread_group_ : spread_,
                    {.grid_x = static_cast<unsigned>(p.slices),
                     .grid_y = CeilDiv(p.rows, grouped ? kSpreadGroup : 1),
                     .threads = kMhcSpreadThreads},
                    p);
    device_->Launch(collapse_,
                    {.grid_x = static_cast<unsigned>(p.rows), .threads = kMhcCollapseBlock}, p);
  }

  Device* device_ = nullptr;
  bool batch_invariant_ = false;
  Buffer fn_, base_, scale_, norm_;
  Buffer sums_;  // between mhc_spread and mhc_collapse: [kSpreadRows, slices, kMhcSums]
  MhcSiteParams constants_ = {};
  const Kernel* spread_ = nullptr;
  const Kernel* spread_group_ = nullptr;
  const Kernel* collapse_ = nullptr;
  const Kernel* group_ = nullptr;
  unsigned group_shared_bytes_ = 0;
};

class MhcFinishOp final : public ops::MhcFinish {
 public:
  static absl::StatusOr<std::unique_ptr<ops::MhcFinish>> Prepare(const ops::NormWeights& norm,
                                                                 int hc_mult, Context& context) {
    if (absl::Status s = CheckStreams(hc_mult); !s.ok()) return s;
    const int64_t hidden = norm.weight.size;
    if (absl::Status s = CheckRowWidth(hidden, "final norm"); !s.ok()) return s;
    absl::StatusOr<Buffer> weight = UploadF32(context, norm.weight, hidden, "final norm");
    if (!weight.ok()) return weight.status();
    absl::StatusOr<const Kernel*> kernel =
        context.device->Find("mhc_finish", hidden * sizeof(float));
    if (!kernel.ok()) return kernel.status();
    auto op = std::make_unique<MhcFinishOp>();
    op->device_ = context.device;
    op->kernel_ = *kernel;
    op->norm_ = *std::move(weight);
    op->hidden_ = static_cast<int32_t>(hidden);
    op->eps_ = norm.eps;
    return op;
  }

  void Run(std::span<const float* const> partials, int rows, float* streams, ops::MhcMix mix,
           float* h) const override {
    if (rows == 0) return;
    device_->Launch(kernel_,
                    {.grid_x = static_cast<unsigned>(rows),
                     .threads = std::min(1024u, CeilDiv(hidden_ / 4, 32) * 32),
                     .shared_bytes = static_cast<unsigned>(hidden_ * sizeof(float))},
                    MhcFinishParams{.partials = MakePartials(partials),
                                    .hidden = hidden_,
                                    .streams = streams,
                                    .post = mix.post,
                                    .comb = mix.comb,
                                    .norm = norm_.as<float>(),
                                    .h = h,
                                    .eps = eps_});
  }

 private:
  Device* device_ = nullptr;
  const Kernel* kernel_ = nullptr;
  Buffer norm_;
  int32_t hidden_ = 0;
  float eps_ = 0.0f;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ops::MhcSite>> PrepareMhcSiteOp(const ops::MhcSiteWeights& weights,
                                                               Context& context) {
  return MhcSiteOp::Prepare(weights, context);
}

absl::StatusOr<std::unique_ptr<ops::MhcFinish>> PrepareMhcFinishOp(
    const ops::NormWeights& final_norm, int hc_mult, Context& context) {
  return MhcFinishOp::Prepare(final_norm, hc_mult, context);
}

}  // namespace quartet::cuda
