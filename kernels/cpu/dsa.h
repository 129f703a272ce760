#ifndef QUARTET_KERNELS_CPU_DSA_H_
#define QUARTET_KERNELS_CPU_DSA_H_

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/cpu/context.h"
#include "kernels/ops/dsa.h"

namespace quartet::cpu {

absl::StatusOr<std::unique_ptr<ops::DsaProject>> PrepareDsaProjectOp(
    const ops::MlaWeights& mla, const ops::IndexerWeights& indexer, const Context& context);
absl::StatusOr<std::unique_ptr<ops::IndexerSelect>> PrepareIndexerSelectOp(
    const ops::IndexerWeights& weights, const Context& context);
absl::StatusOr<std::unique_ptr<ops::SparseMla>> PrepareSparseMlaOp(
    const ops::MlaWeights& mla, const ops::IndexerWeights& indexer, const Context& context);

// The scores of pools 0 .. count - 1 for one row's queries: sum_h w[h] relu(q[h] . P_m dim^-1/2),
// h ascending. keys [count, dim]; scratch [heads].
void IndexScores(const float* q, const float* w, size_t heads, size_t dim, const float* keys,
                 size_t count, float* scratch, float* scores);

// The `keep` best of scores [count]: higher first, equal ones by lower index, NaN last. Writes them
// ascending by index and returns how many; *margin gets the last selected score minus the best
// rejected one, +inf if none was rejected. order [count] is scratch.
int SelectPools(const float* scores, int count, int keep, int32_t* order, int32_t* selected,
                float* margin);

}  // namespace quartet::cpu

#endif  // QUARTET_KERNELS_CPU_DSA_H_
