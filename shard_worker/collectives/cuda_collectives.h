#ifndef QUARTET_SHARD_WORKER_COLLECTIVES_CUDA_COLLECTIVES_H_
#define QUARTET_SHARD_WORKER_COLLECTIVES_CUDA_COLLECTIVES_H_

#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/peer_transport.h"
#include "shard_worker/collectives/collectives.h"

namespace quartet {

enum class CollectiveForm {
  kAuto,  // peer memory for the sizes where it is faster, NCCL for the others
  kPeer,  // peer memory only; also for several ranks on one GPU, which NCCL refuses
  kNccl,
};

// auto, peer or nccl.
absl::StatusOr<CollectiveForm> ParseCollectiveForm(std::string_view name);

struct CudaCollectivesOptions {
  // Where the ranks meet; also epoch, rank and size (at most 8).
  SharedMemoryOptions rendezvous;
  CollectiveForm form = CollectiveForm::kAuto;
  // How long one operation on the device waits for another rank.
  absl::Duration wait_timeout = absl::Seconds(30);
  // Longest message through peer memory in one piece; beyond it NCCL is used where there is NCCL,
  // else more pieces. Inboxes have 4 times this for each rank.
  size_t one_shot_bytes = 256 * 1024;
  // NCCL between ranks of one machine that moves less than this goes over sockets, and is refused.
  // GB/s over each link of the ring at 16 MiB: between four H200s sockets reached 2.9, host memory
  // 29, NVLink 253. 0 lets everything pass.
  double nccl_gbs_min = 4.0;
  // Whether memory may be shared by file descriptors; CUDA IPC is the other way.
  bool allow_descriptors = true;
};

// Collectives between GPUs. Data pointers are device memory (AllReduceSum: aligned to 8 bytes), and
// an operation is put on the device's stream or into the graph that is being captured; see
// collectives.h for what its status means. Sums are in the order of ranks, except of messages that
// NCCL takes: those are the same on all ranks, in an order of NCCL's.
//
// A thread of its own looks every 100 ms whether another rank has aborted, NCCL reports an error or
// an operation takes longer than wait_timeout; then everything that waits on the device ends, the
// results are undefined and every rank gets an error.
class CudaCollectives : public Collectives {
 public:
  // What was chosen and how long it takes, for one line of a log.
  virtual const std::string& description() const = 0;

  // For kernels that send or receive packets themselves. Null where peer memory is not in use.
  virtual cuda::PeerTransport* peer() = 0;

  // Out of place: sum[0, count) of all ranks' partial[0, count).
  virtual absl::Status AllReduceSum(const float* partial, float* sum, size_t count) = 0;
  using Collectives::AllReduceSum;
};

// Joins the group: shares memory with the other ranks or makes a communicator, launches everything
// once, checks a known sum and measures. To be called by all ranks at the same time, each with its
// own device, by the thread of the device, before anything of this epoch is on a stream. The device
// outlives it. Errors beyond those of OpenSharedMemory: FAILED_PRECONDITION where the form that was
// asked for does not work here, with the reason of each that was tried, or NCCL would go over
// sockets.
absl::StatusOr<std::unique_ptr<CudaCollectives>> OpenCudaCollectives(
    cuda::Device& device, const CudaCollectivesOptions& options);

}  // namespace quartet

#endif  // QUARTET_SHARD_WORKER_COLLECTIVES_CUDA_COLLECTIVES_H_
