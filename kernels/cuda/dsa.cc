#include "kernels/cuda/dsa.h"

namespace quartet::cuda {

absl::StatusOr<std::unique_ptr<ops::DsaProject>> PrepareDsaProjectOp(
    const ops::MlaWeights& mla, const ops::IndexerWeights& indexer, Context& context) {
  return absl::UnimplementedError("DsaProject on CUDA");
}
absl::StatusOr<std::unique_ptr<ops::IndexerSelect>> PrepareIndexerSelectOp(
    const ops::IndexerWeights& weights, Context& context) {
  return absl::UnimplementedError("IndexerSelect on CUDA");
}
absl::StatusOr<std::unique_ptr<ops::SparseMla>> PrepareSparseMlaOp(
    const ops::MlaWeights& mla, const ops::IndexerWeights& indexer, Context& context) {
  return absl::UnimplementedError("SparseMla on CUDA");
}

}  // namespace quartet::cuda
