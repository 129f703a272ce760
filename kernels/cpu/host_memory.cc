#include "kernels/cpu/host_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

#include "absl/status/status.h"
#include "absl/strings/str_format.h"

namespace quartet::cpu {

absl::StatusOr<ops::Memory> AllocateHostMemory(size_t bytes, std::string_view what) {
  const size_t size = std::max(ops::AlignUp(bytes), ops::kMemoryAlignment);
  void* data = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) {
    return absl::ResourceExhaustedError(absl::StrFormat(
        "cannot take %.1f MiB for the %s: %s; lower --memory-gib, --max-model-len or "
        "--max-num-seqs",
        static_cast<double>(bytes) / (1 << 20), what, std::strerror(errno)));
  }
  return ops::Memory(static_cast<std::byte*>(data), size,
                     std::shared_ptr<void>(data, [size](void* p) { munmap(p, size); }));
}

}  // namespace quartet::cpu
