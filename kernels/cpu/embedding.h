#ifndef QUARTET_KERNELS_CPU_EMBEDDING_H_
#define QUARTET_KERNELS_CPU_EMBEDDING_H_

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/cpu/context.h"
#include "kernels/ops/embedding.h"
#include "kernels/ops/mtp.h"

namespace quartet::cpu {

absl::StatusOr<std::unique_ptr<ops::Embedding>> PrepareEmbeddingOp(
    const ops::EmbeddingWeights& weights, const Context& context);
absl::StatusOr<std::unique_ptr<ops::Head>> PrepareHeadOp(const ops::HeadWeights& weights,
                                                         const Context& context);
absl::StatusOr<std::unique_ptr<ops::MtpEntry>> PrepareMtpEntryOp(
    const ops::MtpEntryWeights& weights, const Context& context);

}  // namespace quartet::cpu

#endif  // QUARTET_KERNELS_CPU_EMBEDDING_H_
