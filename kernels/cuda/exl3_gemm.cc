#include "kernels/cuda/exl3_gemm.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/device/exl3_layout.h"

namespace quartet::cuda {

absl::StatusOr<Exl3Gemm> Exl3Gemm::Make(Context& context, const PackedExl3& bank) {
  Exl3Gemm gemm;
  gemm.context_ = &context;
  const std::string kind =
      absl::StrCat(bank.mul1 ? "_mul1" : "_sum", bank.column_major ? "_colmajor" : "_sm80");
  const std::string small = "exl3_gemm_small" + kind;
  const std::string large = "exl3_gemm_large" + kind;
  const std::pair<const char*, const Kernel**> kernels[] = {
      {"exl3_transform_rows", &gemm.rows_},
      {"exl3_transform_activations", &gemm.activations_},
      {small.c_str(), &gemm.small_},
      {large.c_str(), &gemm.large_}};
  for (const auto& [name, kernel] : kernels) {
    absl::StatusOr<const Kernel*> found = context.device->Find(name);
    if (!found.ok()) return found.status();
    *kernel = *found;
  }
  return gemm;
}

void Exl3Gemm::TransformRows(const Exl3TransformParams& params) const {
  context_->device->Launch(
      rows_, {.grid_x = static_cast<unsigned>(params.positions.count), .threads = exl3::kThreads},
      params);
}

void Exl3Gemm::TransformActivations(const Exl3TransformParams& params) const {
  context_->device->Launch(
      activations_,
      {.grid_x = static_cast<unsigned>(params.positions.count), .threads = exl3::kThreads}, params);
}

int Exl3Gemm::RowTile(int64_t rows) {
  return rows < 96 ? exl3::kSmallRowTile : exl3::kLargeRowTile;
}

void Exl3Gemm::Multiply(const Exl3GemmParams& params, int row_tile, int row_tiles) const {
  context_->device->Launch(row_tile == exl3::kSmallRowTile ? small_ : large_,
                           {.grid_x = params.matrices * CeilDiv(params.out, exl3::kColumnTile),
                            .grid_y = static_cast<unsigned>(row_tiles),
                            .threads = exl3::kThreads},
                           params);
}

}  // namespace quartet::cuda
