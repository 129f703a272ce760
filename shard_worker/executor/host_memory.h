#ifndef QUARTET_SHARD_WORKER_EXECUTOR_HOST_MEMORY_H_
#define QUARTET_SHARD_WORKER_EXECUTOR_HOST_MEMORY_H_

#include <cstdint>

namespace quartet {

// Bytes of memory that this process may hope for: the machine's, or its container's limit if that
// is less.
int64_t HostMemoryBytes();

}  // namespace quartet

#endif  // QUARTET_SHARD_WORKER_EXECUTOR_HOST_MEMORY_H_
