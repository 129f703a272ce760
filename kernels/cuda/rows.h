#ifndef QUARTET_KERNELS_CUDA_ROWS_H_
#define QUARTET_KERNELS_CUDA_ROWS_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "kernels/cuda/context.h"

namespace quartet::cuda {

// Picks rows of FP32 matrices by row ids that lie in device memory. Widths are multiples of 4.
class RowMover {
 public:
  static absl::StatusOr<RowMover> Make(Context& context);

  // to[r] = from[ids[r]] for r < rows.
  void Gather(const float* from /*[.., width]*/, const int32_t* ids /*[rows]*/, int rows,
              int64_t width, float* to /*[rows, width]*/) const;
  // to[ids[r]] = from[r] for r < rows; no id occurs twice.
  void Scatter(const float* from /*[rows, width]*/, const int32_t* ids /*[rows]*/, int rows,
               int64_t width, float* to /*[.., width]*/) const;

 private:
  Device* device_ = nullptr;
  const Kernel* gather_ = nullptr;
  const Kernel* scatter_ = nullptr;
};

}  // namespace quartet::cuda

#endif  // QUARTET_KERNELS_CUDA_ROWS_H_
