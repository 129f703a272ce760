#ifndef QUARTET_SHARD_WORKER_COLLECTIVES_DESCRIPTOR_EXCHANGE_H_
#define QUARTET_SHARD_WORKER_COLLECTIVES_DESCRIPTOR_EXCHANGE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "shard_worker/collectives/collectives.h"
#include "shard_worker/collectives/file_descriptor.h"

namespace quartet {

// Where the ranks of `group` meet: sockets folder/name.RANK, gone when the exchange is over.
struct DescriptorExchangeOptions {
  std::string folder;
  std::string name;
  uint64_t epoch = 0;
  absl::Duration timeout = absl::Seconds(30);
};

// Gives a copy of `own` to every other rank of the group, and returns theirs by rank; the entry of
// the own rank is empty. Every rank calls it at the same time. DEADLINE_EXCEEDED: somebody did not
// come; FAILED_PRECONDITION: somebody of another epoch came.
absl::StatusOr<std::vector<FileDescriptor>> ExchangeDescriptors(
    Collectives& group, int own, const DescriptorExchangeOptions& options);

}  // namespace quartet

#endif  // QUARTET_SHARD_WORKER_COLLECTIVES_DESCRIPTOR_EXCHANGE_H_
