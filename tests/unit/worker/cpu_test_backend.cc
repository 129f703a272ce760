#include "kernels/cpu/cpu_backend.h"
#include "tests/unit/worker/test_backend.h"

namespace quartet {

TestBackend MakeTestBackend(int threads, const StepLimits&, int, bool) {
  return {.device = nullptr, .backend = cpu::MakeCpuBackend({.threads = threads})};
}

bool TestBackendIsEmulated() {
  return false;
}

bool TestBackendIsFp32() {
  return true;
}

}  // namespace quartet
