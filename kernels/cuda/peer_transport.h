#ifndef QUARTET_KERNELS_CUDA_PEER_TRANSPORT_H_
#define QUARTET_KERNELS_CUDA_PEER_TRANSPORT_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/peer_params.h"

namespace quartet::cuda {

struct PeerOptions {
  int rank = 0;
  int size = 1;  // at most kMaxPeers
  uint64_t epoch = 0;
  size_t message_bytes = 256 * 1024;  // longer messages go in pieces; a multiple of 16
  absl::Duration wait_timeout = absl::Seconds(30);
  uint32_t first_call = 0;  // the same on all ranks; for tests of the counters
};

// Operations between ranks through memory that all of them can write (peer_params.h), on the
// device's stream: the calls return before anything is done, and can be captured in a graph. All
// ranks put the same operations with the same sizes on their streams. A group of one does nothing
// but copy.
//
// A rank that waits longer than wait_timeout for another makes its side of the group unusable: all
// that follows on the stream leaves its results undefined, without waiting, and Check says why.
class PeerTransport {
 public:
  static size_t InboxBytes(const PeerOptions& options);

  // inboxes[r]: InboxBytes of rank r, zeroed before any rank's first operation. Outlived by them.
  // The first launches happen here, so that nothing is loaded while a rank waits for this one.
  static absl::StatusOr<std::unique_ptr<PeerTransport>> Create(
      Device& device, const PeerOptions& options, const std::array<void*, kMaxPeers>& inboxes);

  // sum[0, count): the ranks' partials added in float in the order of ranks, the same bits on all
  // ranks. Both aligned to 8 bytes; they may be the same.
  void AllReduceSum(const float* partial, float* sum, size_t count);
  // Concatenates `bytes` bytes of each rank in all[0, size * bytes), in the order of ranks.
  void AllGather(const void* local, size_t bytes, void* all);
  // What was put on any rank's stream before it is complete, and seen by what comes after it.
  void Barrier();

  // For kernels that send or receive packets themselves (device/peer.cuh).
  const PeerGroup& group() const { return group_; }

  // OK, or DEADLINE_EXCEEDED with the rank that did not send. Never waits. Any thread.
  absl::Status Check() const;
  // Ends the waits of this rank's device, and lets it do nothing from then on. Any thread.
  void Abort();

 private:
  PeerTransport(Device& device, const PeerOptions& options) : device_(device), options_(options) {}
  absl::Status Prepare(const std::array<void*, kMaxPeers>& inboxes);

  Device& device_;
  const PeerOptions options_;
  PeerGroup group_{};
  Buffer state_;
  const Kernel* all_reduce_ = nullptr;
  const Kernel* all_gather_ = nullptr;
  const Kernel* barrier_ = nullptr;
};

}  // namespace quartet::cuda

#endif  // QUARTET_KERNELS_CUDA_PEER_TRANSPORT_H_
