#include "kernels/cuda/rows.h"

#include <cassert>

#include "kernels/cuda/norm.h"
#include "kernels/cuda/rows_params.h"

namespace quartet::cuda {
namespace {

void Launch(Device* device, const Kernel* kernel, const float* from, const int32_t* ids, int rows,
            int64_t width, float* to) {
  assert(width % 4 == 0);
  if (rows == 0) return;
  device->Launch(kernel, {.grid_x = static_cast<unsigned>(rows), .threads = RowThreads(width)},
                 MoveRowsParams{from, ids, to, static_cast<int32_t>(width)});
}

}  // namespace

absl::StatusOr<RowMover> RowMover::Make(Context& context) {
  absl::StatusOr<const Kernel*> gather = context.device->Find("gather_rows");
  if (!gather.ok()) return gather.status();
  absl::StatusOr<const Kernel*> scatter = context.device->Find("scatter_rows");
  if (!scatter.ok()) return scatter.status();
  RowMover mover;
  mover.device_ = context.device;
  mover.gather_ = *gather;
  mover.scatter_ = *scatter;
  return mover;
}

void RowMover::Gather(const float* from, const int32_t* ids, int rows, int64_t width,
                      float* to) const {
  Launch(device_, gather_, from, ids, rows, width, to);
}

void RowMover::Scatter(const float* from, const int32_t* ids, int rows, int64_t width,
                       float* to) const {
  Launch(device_, scatter_, from, ids, rows, width, to);
}

}  // namespace quartet::cuda
