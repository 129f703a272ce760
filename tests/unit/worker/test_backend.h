#ifndef QUARTET_TESTS_UNIT_WORKER_TEST_BACKEND_H_
#define QUARTET_TESTS_UNIT_WORKER_TEST_BACKEND_H_

#include <memory>

#include "kernels/ops/backend.h"
#include "shard_worker/model/model.h"

namespace quartet {

// The backend on which tests of whole models run. Defined twice: for the CPU (cpu_test_backend.cc)
// and for a GPU (cuda_test_backend.cc); a test program links one of them.
struct TestBackend {
  std::shared_ptr<void> device;  // what the backend stands on; outlives it
  std::unique_ptr<ops::Backend> backend;
};
// batch_invariant: see ops::Backend; the CPU's always is.
TestBackend MakeTestBackend(int threads, const StepLimits& limits, int slots, bool batch_invariant);

// Whether a GPU's kernels run on the CPU here, where a row takes most of a second.
bool TestBackendIsEmulated();

// How far results may be from a reference in FP32, relative to what is asked of FP32: 16-bit
// weights and GEMM operands cost precision.
bool TestBackendIsFp32();

}  // namespace quartet

#endif  // QUARTET_TESTS_UNIT_WORKER_TEST_BACKEND_H_
