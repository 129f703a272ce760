#include "shard_worker/executor/host_memory.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>

namespace quartet {

int64_t HostMemoryBytes() {
  int64_t bytes = int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGE_SIZE);
  // "max" does not parse as a number and changes nothing.
  int64_t limit = 0;
  if (std::ifstream file("/sys/fs/cgroup/memory.max"); file >> limit && limit > 0) {
    bytes = std::min(bytes, limit);
  }
  return bytes;
}

}  // namespace quartet
