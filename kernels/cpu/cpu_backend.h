#ifndef QUARTET_KERNELS_CPU_CPU_BACKEND_H_
#define QUARTET_KERNELS_CPU_CPU_BACKEND_H_

#include <cstdint>
#include <memory>

#include "kernels/ops/backend.h"

namespace quartet::cpu {

struct CpuOptions {
  int threads = 1;  // the calling thread included; below 1 means 1
};

// The ops on the CPU: every weight widened to FP32 by Prepare*, everything computed in FP32. A
// row's result depends on nothing but the row (and the sequence's state): not on other rows, their
// number, how a sequence was cut into segments, or threads, bit for bit.
//
// Prepare* is for one thread at a time. Ops may run on several threads at once, each with its own
// workspace; the pool's helpers serve one of them, the others run alone. No op allocates.
class CpuBackend : public ops::Backend {};

std::unique_ptr<CpuBackend> MakeCpuBackend(CpuOptions options);

}  // namespace quartet::cpu

#endif  // QUARTET_KERNELS_CPU_CPU_BACKEND_H_
