#ifndef QUARTET_KERNELS_CUDA_CUDA_BACKEND_H_
#define QUARTET_KERNELS_CUDA_CUDA_BACKEND_H_

#include <cstdint>
#include <memory>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/context.h"
#include "kernels/cuda/device.h"
#include "kernels/ops/backend.h"

namespace quartet::cuda {

// The ops on one GPU. All pointers that ops take are device memory, except spans. Ops only put work
// on the device's stream.
class CudaBackend : public ops::Backend {};

struct MoeTestHook;

struct BackendOptions {
  // See ops::Backend::batch_invariant. Several times slower where there are many rows.
  bool batch_invariant = false;
  const MoeTestHook* hook = nullptr;  // for measurements (moe.h); outlives the ops
};

// The device must outlive the backend, the backend its ops.
absl::StatusOr<std::unique_ptr<CudaBackend>> MakeCudaBackend(Device& device,
                                                             const StepLimits& limits,
                                                             const BackendOptions& options = {});

}  // namespace quartet::cuda

#endif  // QUARTET_KERNELS_CUDA_CUDA_BACKEND_H_
