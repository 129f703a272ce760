#ifndef QUARTET_SHARD_WORKER_COLLECTIVES_CUDA_START_H_
#define QUARTET_SHARD_WORKER_COLLECTIVES_CUDA_START_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/nccl.h"
#include "kernels/cuda/peer_memory.h"
#include "kernels/cuda/peer_transport.h"
#include "shard_worker/collectives/collectives.h"
#include "shard_worker/collectives/cuda_collectives.h"

// How a group of GPUs comes together, step by step. Every step is made by all ranks at the same
// time and ends alike on all of them. `group` are the ranks' processes.

namespace quartet {

// OK if it is on all ranks, else FAILED_PRECONDITION with the rank and what it says.
absl::Status Agree(Collectives& group, const absl::Status& mine);

// The ways between the GPUs. At least one is there.
struct GpuLinks {
  std::vector<cuda::PeerMemory> inboxes;  // by rank
  std::unique_ptr<cuda::PeerTransport> peer;
  std::unique_ptr<cuda::NcclCommunicator> nccl;
  std::string peer_form;  // how, or why not
  std::string nccl_form;
  bool one_gpu = false;  // some ranks are on the same GPU and take turns
};
absl::StatusOr<GpuLinks> ConnectGpus(cuda::Device& device, Collectives& group,
                                     const CudaCollectivesOptions& options);

using AllReduceFunction = absl::FunctionRef<absl::Status(float* data, size_t count)>;
struct GpuWays {
  AllReduceFunction by_peers;  // called only where GpuLinks has it
  AllReduceFunction by_nccl;
};

// Each way gives the sums that are known, and has opened its connections then. INTERNAL: it does
// not.
absl::Status CheckSums(cuda::Device& device, Collectives& group, const GpuLinks& links,
                       const CudaCollectivesOptions& options, const GpuWays& ways);

// Microseconds of an all-reduce of `bytes` bytes in a graph of `calls`; the same on all ranks.
absl::StatusOr<double> MeasureAllReduce(cuda::Device& device, Collectives& group, size_t bytes,
                                        int calls, AllReduceFunction all_reduce);

// Measures both ways and decides between them; the same on all ranks. FAILED_PRECONDITION: NCCL
// goes over sockets.
struct GpuChoice {
  size_t one_shot_bytes = 0;  // longest message for peer memory
  std::string description;
};
absl::StatusOr<GpuChoice> Choose(cuda::Device& device, Collectives& group, const GpuLinks& links,
                                 const CudaCollectivesOptions& options, const GpuWays& ways);

}  // namespace quartet

#endif  // QUARTET_SHARD_WORKER_COLLECTIVES_CUDA_START_H_
