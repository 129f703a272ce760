#include <cstdio>
#include <cstdlib>

#include "kernels/cuda/cuda_backend.h"
#include "shard_worker/memory/pools.h"
#include "tests/support/simt/simt_device.h"
#include "tests/unit/worker/test_backend.h"

namespace quartet {

TestBackend MakeTestBackend(int, const StepLimits& limits, int slots, bool batch_invariant) {
  std::shared_ptr<cuda::Device> device = testing::OpenTestDevice();
  const int pages = static_cast<int>(limits.max_context / kTokensPerPage + 1);
  auto backend = cuda::MakeCudaBackend(
      *device, {.max_rows = limits.max_rows, .max_segments = slots, .max_pages = slots * pages},
      {.batch_invariant = batch_invariant});
  if (!backend.ok()) {
    std::fprintf(stderr, "%s\n", backend.status().ToString().c_str());
    std::abort();
  }
  return {.device = device, .backend = *std::move(backend)};
}

bool TestBackendIsEmulated() {
  return testing::TestDeviceIsEmulated();
}

bool TestBackendIsFp32() {
  return false;
}

}  // namespace quartet
