#ifndef QUARTET_KERNELS_CUDA_DEVICE_H_
#define QUARTET_KERNELS_CUDA_DEVICE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace quartet::cuda {

struct DeviceInfo {
  std::string name;
  std::string uuid;
  std::string image;  // which form of the kernels was loaded, such as "sm_90"
  int multiprocessors = 0;
  size_t shared_bytes_per_block = 0;  // what a kernel may opt in to
  size_t l2_bytes = 0;
  size_t memory_bytes = 0;  // all of the card
};

// One kernel of the loaded image. Owned by the device; stays valid as long as it.
class Kernel {
 public:
  virtual ~Kernel() = default;
  virtual size_t param_bytes() const = 0;
};

struct LaunchShape {
  unsigned grid_x = 1;
  unsigned grid_y = 1;
  unsigned grid_z = 1;
  unsigned threads = 1;       // of a block, one dimension
  unsigned shared_bytes = 0;  // dynamic
};

// Work that was recorded once and can be put on the stream again as one piece.
class Graph {
 public:
  virtual ~Graph() = default;
};

// A place on the stream that the host can wait for.
class Fence {
 public:
  virtual ~Fence() = default;
};

class Device;

// Beside the stream, but not equal to it: whose blocks get a place first where both could have it.
enum class Side {
  kAhead,   // the forked work, for what others wait for
  kBehind,  // the stream, for work that fills the gaps
};

// Device memory, given back at the end. Movable.
class Buffer {
 public:
  Buffer() = default;
  Buffer(Device* device, void* data, size_t bytes) : device_(device), data_(data), bytes_(bytes) {}
  ~Buffer();
  Buffer(Buffer&& other) noexcept { *this = std::move(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  void* data() const { return data_; }
  template <class T>
  T* as() const {
    return static_cast<T*>(data_);
  }
  size_t bytes() const { return bytes_; }

 private:
  Device* device_ = nullptr;
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

// One GPU and its stream, on which everything happens in the order of the calls, except what is
// forked. Launch, Copy and Fill do not wait and have no result: the first thing that goes wrong is
// kept and comes back from Synchronize and from the copies that wait. Belongs to one thread.
class Device {
 public:
  virtual ~Device() = default;

  virtual const DeviceInfo& info() const = 0;

  // 256-byte aligned, contents undefined. RESOURCE_EXHAUSTED names `what`.
  virtual absl::StatusOr<Buffer> Allocate(size_t bytes, std::string_view what) = 0;

  // The kernel of this name, which may use up to `max_shared_bytes` of dynamic shared memory.
  // Kernels are found when ops are prepared, never during a step.
  virtual absl::StatusOr<const Kernel*> Find(const char* name, size_t max_shared_bytes = 0) = 0;

  // Every kernel takes one struct by value, the same on both sides (see *_params.h). Where the card
  // can, a kernel that follows a kernel becomes resident before that one has ended, and waits for
  // it itself (device/launch.cuh).
  template <class Params>
  void Launch(const Kernel* kernel, const LaunchShape& shape, const Params& params) {
    static_assert(std::is_trivially_copyable_v<Params>);
    LaunchBytes(kernel, shape, &params, sizeof(Params));
  }

  // Device to device.
  virtual void Copy(void* to, const void* from, size_t bytes) = 0;
  virtual void Fill(void* to, uint8_t value, size_t bytes) = 0;

  // What `work` launches, copies and fills happens on a side stream: after everything that is on
  // the stream now, in its own order, and beside what is put on the stream from here to Join.
  // Between the two neither may write what the other touches, scratch memory included. A second
  // Fork to the same side before Join goes on behind the first. `work` neither forks, joins, waits
  // nor captures, and uses no library or transport that has the stream as its own (NativeStream).
  virtual void Fork(Side side, absl::FunctionRef<void()> work) = 0;
  // What follows on the stream comes after all that was forked. Costs nothing where nothing was.
  // Whatever waits for the stream, or records or replays it, joins first.
  virtual void Join() = 0;

  // Host to device; `from` may be reused when it returns. For loading and tests: it may wait.
  virtual absl::Status CopyIn(void* to, const void* from, size_t bytes) = 0;
  // Device to host; waits until everything before it is done.
  virtual absl::Status CopyOut(void* to, const void* from, size_t bytes) = 0;

  // Host memory that the device reads while the host goes on. Freed with the device.
  virtual absl::StatusOr<void*> AllocatePinned(size_t bytes, std::string_view what) = 0;
  // From pinned memory, which must stay as it is until the copy was done: a fence tells.
  virtual void CopyInAsync(void* to, const void* pinned, size_t bytes) = 0;

  virtual absl::StatusOr<std::unique_ptr<Fence>> MakeFence() = 0;
  // Moves the fence behind everything that is on the stream now.
  virtual void Place(Fence& fence) = 0;
  // Waits until the stream has passed the fence; not at all if it was never placed.
  virtual absl::Status Await(Fence& fence) = 0;

  virtual absl::Status Synchronize() = 0;

  // The stream as the driver knows it (CUstream), for libraries that work on it; null where there
  // is no driver. To be asked for each time before a library puts work there.
  virtual void* NativeStream() { return nullptr; }

  // Records what `work` puts on the stream instead of doing it. Nothing that waits or allocates may
  // be called meanwhile.
  virtual absl::StatusOr<std::unique_ptr<Graph>> Capture(absl::FunctionRef<void()> work) = 0;
  virtual void Replay(const Graph& graph) = 0;
  // How long the stream took for what `work` put on it. Waits.
  virtual absl::StatusOr<double> Milliseconds(absl::FunctionRef<void()> work) = 0;

 protected:
  friend class Buffer;
  virtual void Free(void* data) = 0;
  virtual void LaunchBytes(const Kernel* kernel, const LaunchShape& shape, const void* params,
                           size_t bytes) = 0;
};

inline Buffer::~Buffer() {
  if (data_ != nullptr) device_->Free(data_);
}

}  // namespace quartet::cuda

#endif  // QUARTET_KERNELS_CUDA_DEVICE_H_
