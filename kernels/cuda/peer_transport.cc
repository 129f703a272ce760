#include "kernels/cuda/peer_transport.h"

#include <algorithm>
#include <atomic>

#include "absl/strings/str_cat.h"

namespace quartet::cuda {
namespace {

constexpr LaunchShape kShape = {.grid_x = kPeerBlocks, .threads = kPeerThreads};

size_t Capacity(const PeerOptions& options) {
  return options.message_bytes / 8;
}

absl::Status CheckOptions(const PeerOptions& options) {
  if (options.size < 1 || options.size > kMaxPeers) {
    return absl::InvalidArgumentError(
        absl::StrCat("group of ", options.size, " GPUs, expected 1 to ", kMaxPeers));
  }
  if (options.rank < 0 || options.rank >= options.size) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", options.rank, ", expected 0 to ", options.size - 1));
  }
  if (options.message_bytes == 0 || options.message_bytes % 16 != 0 ||
      Capacity(options) > UINT32_MAX) {
    return absl::InvalidArgumentError(absl::StrCat("message_bytes is ", options.message_bytes,
                                                   ", expected a multiple of 16 below 32 GiB"));
  }
  return absl::OkStatus();
}

}  // namespace

size_t PeerTransport::InboxBytes(const PeerOptions& options) {
  return 2 * static_cast<size_t>(options.size) * Capacity(options) * sizeof(Packet);
}

absl::StatusOr<std::unique_ptr<PeerTransport>> PeerTransport::Create(
    Device& device, const PeerOptions& options, const std::array<void*, kMaxPeers>& inboxes) {
  if (absl::Status s = CheckOptions(options); !s.ok()) return s;
  std::unique_ptr<PeerTransport> transport(new PeerTransport(device, options));
  if (absl::Status s = transport->Prepare(inboxes); !s.ok()) return s;
  return transport;
}

absl::Status PeerTransport::Prepare(const std::array<void*, kMaxPeers>& inboxes) {
  for (const auto& [name, kernel] :
       {std::pair{"peer_all_reduce", &all_reduce_}, std::pair{"peer_all_gather", &all_gather_},
        std::pair{"peer_barrier", &barrier_}}) {
    absl::StatusOr<const Kernel*> found = device_.Find(name);
    if (!found.ok()) return found.status();
    *kernel = *found;
  }
  absl::StatusOr<Buffer> state = device_.Allocate(sizeof(PeerState), "the state of the peers");
  if (!state.ok()) return state.status();
  state_ = *std::move(state);
  absl::StatusOr<void*> signals =
      device_.AllocatePinned(sizeof(PeerSignals), "the signals of the peers");
  if (!signals.ok()) return signals.status();
  group_.signals = new (*signals) PeerSignals();

  for (int r = 0; r < options_.size; ++r) group_.inboxes[r] = static_cast<Packet*>(inboxes[r]);
  group_.state = state_.as<PeerState>();
  group_.timeout_ns = static_cast<uint64_t>(absl::ToInt64Nanoseconds(options_.wait_timeout));
  group_.capacity = static_cast<uint32_t>(Capacity(options_));
  group_.epoch = static_cast<uint32_t>(options_.epoch);
  group_.rank = options_.rank;
  group_.size = options_.size;

  // A group that has failed launches and does nothing.
  PeerState first = {};
  first.failed = 1;
  if (absl::Status s = device_.CopyIn(state_.data(), &first, sizeof(first)); !s.ok()) return s;
  device_.Launch(all_reduce_, kShape, PeerAllReduceParams{.group = group_});
  device_.Launch(all_gather_, kShape, PeerAllGatherParams{.group = group_});
  device_.Launch(barrier_, kShape, PeerBarrierParams{.group = group_});
  if (absl::Status s = device_.Synchronize(); !s.ok()) return s;
  first.failed = 0;
  std::fill(std::begin(first.calls), std::end(first.calls), options_.first_call);
  return device_.CopyIn(state_.data(), &first, sizeof(first));
}

void PeerTransport::AllReduceSum(const float* partial, float* sum, size_t count) {
  if (options_.size == 1) {
    if (partial != sum) device_.Copy(sum, partial, count * sizeof(float));
    return;
  }
  const size_t piece = options_.message_bytes / sizeof(float);
  for (size_t done = 0; done < count; done += piece) {
    const size_t n = std::min(piece, count - done);
    device_.Launch(all_reduce_, kShape,
                   PeerAllReduceParams{.group = group_,
                                       .partial = partial + done,
                                       .sum = sum + done,
                                       .count = static_cast<int64_t>(n)});
  }
}

void PeerTransport::AllGather(const void* local, size_t bytes, void* all) {
  if (options_.size == 1) {
    device_.Copy(all, local, bytes);
    return;
  }
  for (size_t done = 0; done < bytes; done += options_.message_bytes) {
    const size_t n = std::min(options_.message_bytes, bytes - done);
    device_.Launch(all_gather_, kShape,
                   PeerAllGatherParams{.group = group_,
                                       .local = static_cast<const uint8_t*>(local) + done,
                                       .all = static_cast<uint8_t*>(all) + done,
                                       .bytes = static_cast<int64_t>(n),
                                       .stride = static_cast<int64_t>(bytes)});
  }
}

void PeerTransport::Barrier() {
  if (options_.size == 1) return;
  device_.Launch(barrier_, kShape, PeerBarrierParams{.group = group_});
}

absl::Status PeerTransport::Check() const {
  PeerSignals& signals = *group_.signals;
  const uint32_t error = std::atomic_ref(signals.error).load(std::memory_order_acquire);
  if (error == 0) return absl::OkStatus();
  return absl::DeadlineExceededError(absl::StrCat(
      "rank ", error - 1, " did not send its part of call ", signals.error_call, " within ",
      absl::FormatDuration(options_.wait_timeout), " of rank ", options_.rank));
}

void PeerTransport::Abort() {
  std::atomic_ref(group_.signals->abort).store(1, std::memory_order_release);
}

}  // namespace quartet::cuda
