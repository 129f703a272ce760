#ifndef QUARTET_KERNELS_CPU_MHC_H_
#define QUARTET_KERNELS_CPU_MHC_H_

#include <cstddef>
#include <memory>

#include "absl/status/statusor.h"
#include "kernels/cpu/context.h"
#include "kernels/ops/mhc.h"

namespace quartet::cpu {

inline constexpr int kMaxStreams = 8;
inline constexpr int kMaxMap = 2 * kMaxStreams + kMaxStreams * kMaxStreams;

struct MhcConstants {
  int streams = 4;  // n
  int sinkhorn_iters = 20;
  float hc_eps = 1e-6f;
};

// One row's map from m = z fn^T [2n + n n] (already normalised) to pre [n], post [n] and
// comb [n][n] ([j][i]), as the contract gives it.
void MhcMapRow(const MhcConstants& constants, const float* m, const float* base, const float* scale,
               float* pre, float* post, float* comb);

// x = sum_j pre[j] S[j], j ascending: the collapsed input before the sublayer's norm.
void MhcCollapseRow(int streams, size_t hidden, const float* pre, const float* s, float* x);

absl::StatusOr<std::unique_ptr<ops::MhcSite>> PrepareMhcSiteOp(const ops::MhcSiteWeights& weights,
                                                               const Context& context);
absl::StatusOr<std::unique_ptr<ops::MhcFinish>> PrepareMhcFinishOp(
    const ops::NormWeights& final_norm, int hc_mult, const Context& context);

}  // namespace quartet::cpu

#endif  // QUARTET_KERNELS_CPU_MHC_H_
