#include "kernels/cpu/mhc.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/cpu/convert.h"
#include "kernels/cpu/math.h"
#include "kernels/cpu/packed_matrix.h"

namespace quartet::cpu {
namespace {

// Rows mapped together; their m lies on the stack.
constexpr size_t kTileRows = 6;
constexpr size_t kParallelFloats = 65'536;

absl::Status CheckStreams(int streams) {
  if (streams >= 1 && streams <= kMaxStreams) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("hc_mult: ", streams, " streams; 1 to ", kMaxStreams, " are supported"));
}

class MhcSiteOp : public ops::MhcSite {
 public:
  static absl::StatusOr<std::unique_ptr<ops::MhcSite>> Prepare(const ops::MhcSiteWeights& w,
                                                               const Context& context) {
    QUARTET_CPU_RETURN(CheckStreams(w.hc_mult));
    auto op = std::make_unique<MhcSiteOp>();
    const int64_t n = w.hc_mult;
    const int64_t map = 2 * n + n * n;
    op->hidden_ = static_cast<size_t>(w.norm.weight.size);
    QUARTET_CPU_RETURN(CheckShape("hc fn", w.fn.rows, w.fn.cols, map, n * w.norm.weight.size));
    QUARTET_CPU_ASSIGN(op->base_, Widen(w.base, map, "hc base"));
    QUARTET_CPU_ASSIGN(op->scale_, Widen(w.scale, 3, "hc scale"));
    QUARTET_CPU_ASSIGN(op->norm_, Widen(w.norm.weight, w.norm.weight.size, "site norm"));
    QUARTET_CPU_ASSIGN(std::vector<float> fn, Widen(w.fn, "hc fn"));
    op->fn_ = PackedMatrix::FromRows(fn.data(), map, w.fn.cols);
    op->constants_ = {w.hc_mult, w.sinkhorn_iters, w.hc_eps};
    op->site_norm_eps_ = w.norm.eps;
    op->norm_eps_ = w.norm_eps;
    op->context_ = context;
    return op;
  }

  void Begin(const float* embedding, int rows, float* streams, ops::MhcMix mix,
             float* x) const override {
    ForRows(rows, [&](size_t begin, size_t end) {
      const size_t n = static_cast<size_t>(constants_.streams);
      for (size_t r = begin; r < end; ++r) {
        for (size_t j = 0; j < n; ++j) {
          std::memcpy(streams + (r * n + j) * hidden_, embedding + r * hidden_,
                      hidden_ * sizeof(float));
        }
      }
      Map(begin, end, streams, mix, x);
    });
  }

  void Boundary(std::span<const float* const> partials, int rows, float* streams, ops::MhcMix mix,
                float* x) const override {
    ForRows(rows, [&](size_t begin, size_t end) {
      const size_t n = static_cast<size_t>(constants_.streams);
      for (size_t r = begin; r < end; ++r) {
        MhcExpand(partials.data(), partials.size(), r * hidden_, mix.post + r * n,
                  mix.comb + r * n * n, n, hidden_, streams + r * n * hidden_);
      }
      Map(begin, end, streams, mix, x);
    });
  }

 private:
  template <class Fn>
  void ForRows(int rows, Fn fn) const {
    const size_t count = static_cast<size_t>(rows);
    const bool parallel =
        count * hidden_ * static_cast<size_t>(constants_.streams) >= kParallelFloats;
    context_.pool->For(count, kTileRows, parallel, [&](size_t begin, size_t end, int) {
      for (size_t r = begin; r < end; r += kTileRows) fn(r, std::min(end, r + kTileRows));
    });
  }

  // Map, collapse and norm for at most kTileRows rows.
  void Map(size_t begin, size_t end, const float* streams, ops::MhcMix mix, float* x) const {
    const size_t n = static_cast<size_t>(constants_.streams);
    const size_t flat = n * hidden_;
    const size_t map = 2 * n + n * n;
    float m[kTileRows * kMaxMap];
    fn_.Multiply(streams + begin * flat, flat, end - begin, m, map, context_.pool);
    for (size_t r = begin; r < end; ++r) {
      const float* s = streams + r * flat;
      float* row = m + (r - begin) * map;
      const float scale = 1.0f / std::sqrt(Dot(s, s, flat) / static_cast<float>(flat) + norm_eps_);
      for (size_t i = 0; i < map; ++i) row[i] *= scale;
      float pre[kMaxStreams];
      MhcMapRow(constants_, row, base_.data(), scale_.data(), pre, mix.post + r * n,
                mix.comb + r * n * n);
      float* out = x + r * hidden_;
      MhcCollapseRow(constants_.streams, hidden_, pre, s, out);
      RmsNormRow(out, norm_.data(), hidden_, site_norm_eps_, out);
    }
  }

  MhcConstants constants_;
  PackedMatrix fn_;
  std::vector<float> base_, scale_, norm_;
  size_t hidden_ = 0;
  float norm_eps_ = 0.0f;
  float site_norm_eps_ = 0.0f;
  Context context_;
};

class MhcFinishOp : public ops::MhcFinish {
 public:
  MhcFinishOp(std::vector<float> norm, float eps, int streams, const Context& context)
      : norm_(std::move(norm)), eps_(eps), streams_(streams), context_(context) {}

  void Run(std::span<const float* const> partials, int rows, float* streams, ops::MhcMix mix,
           float* h) const override {
    const size_t hidden = norm_.size();
    const size_t n = static_cast<size_t>(streams_);
    const size_t count = static_cast<size_t>(rows);
    float mean[kMaxStreams];
    std::fill_n(mean, n, 1.0f / static_cast<float>(n));
    context_.pool->For(count, 1, count * n * hidden >= kParallelFloats,
                       [&](size_t begin, size_t end, int) {
                         for (size_t r = begin; r < end; ++r) {
                           float* s = streams + r * n * hidden;
                           MhcExpand(partials.data(), partials.size(), r * hidden, mix.post + r * n,
                                     mix.comb + r * n * n, n, hidden, s);
                           float* out = h + r * hidden;
                           MhcCollapseRow(streams_, hidden, mean, s, out);
                           RmsNormRow(out, norm_.data(), hidden, eps_, out);
                         }
                       });
  }

 private:
  std::vector<float> norm_;
  float eps_;
  int streams_;
  Context context_;
};

}  // namespace

void MhcMapRow(const MhcConstants& constants, const float* m, const float* base, const float* scale,
               float* pre, float* post, float* comb) {
  const int n = constants.streams;
  const float eps = constants.hc_eps;
  for (int j = 0; j < n; ++j) {
    pre[j] = Sigmoid(m[j] * scale[0] + base[j]) + eps;
    post[j] = 2.0f * Sigmoid(m[n + j] * scale[1] + base[n + j]);
  }
  for (int j = 0; j < n; ++j) {
    float* row = comb + j * n;
    float largest = -INFINITY;
    for (int i = 0; i < n; ++i) {
      const int at = 2 * n + n * j + i;
      row[i] = m[at] * scale[2] + base[at];
      largest = std::max(largest, row[i]);
    }
    float sum = 0.0f;
    for (int i = 0; i < n; ++i) {
      row[i] = std::exp(row[i] - largest);
      sum += row[i];
    }
    for (int i = 0; i < n; ++i) row[i] = row[i] / sum + eps;
  }
  for (int iteration = 0; iteration < constants.sinkhorn_iters; ++iteration) {
    if (iteration > 0) {
      for (int j = 0; j < n; ++j) {
        float sum = eps;
        for (int i = 0; i < n; ++i) sum += comb[j * n + i];
        for (int i = 0; i < n; ++i) comb[j * n + i] /= sum;
      }
    }
    for (int i = 0; i < n; ++i) {
      float sum = eps;
      for (int j = 0; j < n; ++j) sum += comb[j * n + i];
      for (int j = 0; j < n; ++j) comb[j * n + i] /= sum;
    }
  }
}

void MhcCollapseRow(int streams, size_t hidden, const float* pre, const float* s, float* x) {
  WeightedSum(pre, s, hidden, static_cast<size_t>(streams), hidden, x);
}

absl::StatusOr<std::unique_ptr<ops::MhcSite>> PrepareMhcSiteOp(const ops::MhcSiteWeights& weights,
                                                               const Context& context) {
  return MhcSiteOp::Prepare(weights, context);
}

absl::StatusOr<std::unique_ptr<ops::MhcFinish>> PrepareMhcFinishOp(
    const ops::NormWeights& final_norm, int hc_mult, const Context& context) {
  QUARTET_CPU_RETURN(CheckStreams(hc_mult));
  QUARTET_CPU_ASSIGN(std::vector<float> norm,
                     Widen(final_norm.weight, final_norm.weight.size, "final norm"));
  return std::make_unique<MhcFinishOp>(std::move(norm), final_norm.eps, hc_mult, context);
}

}  // namespace quartet::cpu
