#ifndef QUARTET_KERNELS_CUDA_KDA_HOST_H_
#define QUARTET_KERNELS_CUDA_KDA_HOST_H_

#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "kernels/cuda/context.h"
#include "kernels/cuda/kda_params.h"

// What the host side of the KDA ops shares.

namespace quartet::cuda {

// The channels that the kernels' lanes are laid out for; narrower heads leave lanes idle.
inline int KdaWidth(int head_dim) {
  return head_dim <= 32 ? 32 : head_dim <= 64 ? 64 : 128;
}

inline absl::Status CheckKdaHeads(int heads, int head_dim) {
  if (heads >= 1 && head_dim >= 4 && head_dim <= 128 && head_dim % 4 == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("KDA on CUDA: ", heads, " heads of ", head_dim,
                   "; there must be at least one, of 4 to 128 channels, a multiple of 4"));
}

// The kernel `name` for heads of this width.
inline absl::StatusOr<const Kernel*> FindKdaKernel(Context& context, const char* name, int head_dim,
                                                   size_t shared_bytes = 0) {
  return context.device->Find(absl::StrCat(name, "_", KdaWidth(head_dim)).c_str(), shared_bytes);
}

// Consecutive segments of the step.
inline KdaSegments MakeKdaSegments(const Context& context, std::span<const ops::Segment> segments) {
  KdaSegments out = {.step = context.step->view(),
                     .first_row = segments.front().row_begin,
                     .count = static_cast<int32_t>(segments.size()),
                     .rows = 0};
  for (const ops::Segment& segment : segments) out.rows += segment.rows;
  return out;
}

// At least as many as the tiles of all segments; their lengths are not the host's business.
inline int MaxTiles(const KdaSegments& segments, int tile_rows) {
  return segments.rows <= tile_rows ? segments.count
                                    : (segments.rows - segments.count) / tile_rows + segments.count;
}

}  // namespace quartet::cuda

#endif  // QUARTET_KERNELS_CUDA_KDA_HOST_H_
