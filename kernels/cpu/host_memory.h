#ifndef QUARTET_KERNELS_CPU_HOST_MEMORY_H_
#define QUARTET_KERNELS_CPU_HOST_MEMORY_H_

#include <cstddef>
#include <string_view>

#include "absl/status/statusor.h"
#include "kernels/ops/memory.h"

namespace quartet::cpu {

// Zero-filled. The address space is taken at once, pages become resident when they are first
// touched. RESOURCE_EXHAUSTED names `what`.
absl::StatusOr<ops::Memory> AllocateHostMemory(size_t bytes, std::string_view what);

}  // namespace quartet::cpu

#endif  // QUARTET_KERNELS_CPU_HOST_MEMORY_H_
