#ifndef QUARTET_SHARD_WORKER_COLLECTIVES_COLLECTIVES_H_
#define QUARTET_SHARD_WORKER_COLLECTIVES_COLLECTIVES_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace quartet {

// What the ranks of one tensor-parallel group do together. All ranks call the same operations in
// the same order with the same sizes; each call returns when the caller's own result is complete.
// One thread at a time per rank, except Abort and Check, which any thread may call.
//
// Between GPUs (cuda_collectives.h) the data is device memory and a call only puts the operation on
// the device's stream: it returns before the result is complete, and what goes wrong later comes
// from Check and from later calls.
//
// An operation that fails leaves the group unusable: every later call on any rank returns an error.
// ABORTED: somebody called Abort. DEADLINE_EXCEEDED: a peer did not arrive within the limit.
class Collectives {
 public:
  virtual ~Collectives() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  // Replaces data[0, count) by the sum over ranks, added in float in the order of ranks, so that
  // every rank holds the same bits.
  virtual absl::Status AllReduceSum(float* data, size_t count) = 0;

  // Concatenates `bytes` bytes of each rank, in the order of ranks, into all[0, size * bytes).
  // `local` may not overlap `all`.
  virtual absl::Status AllGather(const void* local, size_t bytes, void* all) = 0;

  virtual absl::Status Barrier() = 0;

  // OK while the group is usable. Never waits.
  virtual absl::Status Check() = 0;

  // Wakes every rank that waits; they and all later calls return ABORTED with this reason (cut to
  // 255 bytes). The first reason stays.
  virtual void Abort(const std::string& reason) = 0;
};

// A group of one.
std::unique_ptr<Collectives> MakeSingleRank();

struct SharedMemoryOptions {
  std::string folder = "/dev/shm";  // on a file system that all ranks share
  std::string name;                 // file name of the segment, unique per group and epoch
  uint64_t epoch = 0;
  int rank = 0;
  int size = 1;  // at most 64
  // Bytes of one of the two data areas of a rank; longer messages go in pieces.
  size_t chunk_bytes = 256 * 1024;
  absl::Duration open_timeout = absl::Seconds(30);
  absl::Duration wait_timeout = absl::Seconds(60);
};

// Joins a group whose ranks are processes (or threads) of one machine, through a memory-mapped
// file. Whoever comes first creates it; returns when all ranks have come, and then the file's name
// is gone again, so that nothing stays behind. Refuses a file of another version, epoch, size or
// chunk (FAILED_PRECONDITION), a rank that is taken (ALREADY_EXISTS), and gives up after
// open_timeout (DEADLINE_EXCEEDED).
absl::StatusOr<std::unique_ptr<Collectives>> OpenSharedMemory(const SharedMemoryOptions& options);

}  // namespace quartet

#endif  // QUARTET_SHARD_WORKER_COLLECTIVES_COLLECTIVES_H_
