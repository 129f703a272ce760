#ifndef QUARTET_KERNELS_CUDA_PEER_MEMORY_H_
#define QUARTET_KERNELS_CUDA_PEER_MEMORY_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace quartet::cuda {

// How memory of one process comes to another.
enum class ShareForm {
  kDescriptor,  // a POSIX file descriptor, which travels over a Unix socket; the memory lives as
                // long as anybody has it open
  kIpc,         // a CUDA IPC handle: plain bytes; gone with the process that made it
};

// CUDA IPC's name of an allocation.
using IpcHandle = std::array<char, 64>;

// Device memory that is shared between processes: the own, or another's as this GPU sees it. For
// the thread that has opened a Device; gone before that device. Movable.
class PeerMemory {
 public:
  // Own memory, contents undefined. UNIMPLEMENTED where the GPU cannot share in this form.
  static absl::StatusOr<PeerMemory> Allocate(ShareForm form, size_t bytes);

  // Of own memory in form kDescriptor; the caller closes it.
  absl::StatusOr<int> Descriptor() const;
  // Of own memory in form kIpc.
  absl::StatusOr<IpcHandle> Handle() const;

  // Memory of `bytes` bytes of another process, on this GPU or one that this GPU can reach.
  // Leaves the descriptor open.
  static absl::StatusOr<PeerMemory> Open(int descriptor, size_t bytes);
  static absl::StatusOr<PeerMemory> Open(const IpcHandle& handle);

  PeerMemory() = default;
  ~PeerMemory();
  PeerMemory(PeerMemory&& other) noexcept { *this = std::move(other); }
  PeerMemory& operator=(PeerMemory&& other) noexcept {
    std::swap(kind_, other.kind_);
    std::swap(address_, other.address_);
    std::swap(bytes_, other.bytes_);
    std::swap(allocation_, other.allocation_);
    return *this;
  }

  void* data() const { return reinterpret_cast<void*>(address_); }

 private:
  enum class Kind { kNone, kMapped, kAllocated, kIpcOpened };

  // Makes `allocation_` visible at an address of its own.
  absl::Status Map();

  Kind kind_ = Kind::kNone;
  uint64_t address_ = 0;
  size_t bytes_ = 0;         // mapped
  uint64_t allocation_ = 0;  // kMapped
};

}  // namespace quartet::cuda

#endif  // QUARTET_KERNELS_CUDA_PEER_MEMORY_H_
