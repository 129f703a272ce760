#ifndef QUARTET_KERNELS_CUDA_NCCL_H_
#define QUARTET_KERNELS_CUDA_NCCL_H_

#include <array>
#include <cstddef>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "kernels/cuda/device.h"

// NCCL, whose header is needed to build and whose library (libnccl.so.2) is found at run time.

namespace quartet::cuda {

// What the ranks of one communicator share. Made by one of them.
using NcclId = std::array<char, 128>;

// UNAVAILABLE: no library, with what the loader says; UNIMPLEMENTED: built without NCCL.
absl::StatusOr<NcclId> MakeNcclId();
// Such as "NCCL 2.28.9"; errors as MakeNcclId.
absl::StatusOr<std::string> NcclVersion();

// One rank of a communicator, for the thread and the stream of its device. Operations are put on
// the stream, and can be captured in a graph; they return before anything is done.
class NcclCommunicator {
 public:
  // Waits until all ranks have come. DEADLINE_EXCEEDED after `timeout`.
  static absl::StatusOr<std::unique_ptr<NcclCommunicator>> Join(Device& device, const NcclId& id,
                                                                int rank, int size,
                                                                absl::Duration timeout);
  virtual ~NcclCommunicator() = default;

  // Replaces data[0, count) by the sum over ranks, the same bits on all ranks, in an order that is
  // NCCL's.
  virtual absl::Status AllReduceSum(float* data, size_t count) = 0;
  virtual absl::Status AllGather(const void* local, size_t bytes, void* all) = 0;

  // What NCCL found wrong with this or another rank. Never waits. Any thread.
  virtual absl::Status Check() = 0;
  // Ends everything that runs or waits, here and now; later calls return ABORTED. Any thread.
  virtual void Abort() = 0;
};

}  // namespace quartet::cuda

#endif  // QUARTET_KERNELS_CUDA_NCCL_H_
