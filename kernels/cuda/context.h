#ifndef QUARTET_KERNELS_CUDA_CONTEXT_H_
#define QUARTET_KERNELS_CUDA_CONTEXT_H_

#include <array>
#include <cstdint>
#include <memory>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/step_params.h"
#include "kernels/ops/batch.h"

namespace quartet::cuda {

class Cublas;
struct SaturationCounters;

struct StepLimits {
  int max_rows = 512;
  int max_segments = 64;
  int max_pages = 4096;  // entries of all page tables of a step together
};

// The meaning of a step's rows in device memory, at addresses that never change. The host writes
// into a ring of pinned buffers, so that it can run kRing steps ahead of the device before it
// waits.
class StepState {
 public:
  static absl::StatusOr<std::unique_ptr<StepState>> Create(Device& device,
                                                           const StepLimits& limits);

  // What follows on the stream sees these tokens and segments; ids may be empty. INVALID_ARGUMENT
  // beyond the limits.
  absl::Status Set(std::span<const int32_t> ids, std::span<const ops::Segment> segments);

  const StepView& view() const { return view_; }
  const StepLimits& limits() const { return limits_; }

 private:
  explicit StepState(Device& device, const StepLimits& limits) : device_(device), limits_(limits) {}

  // The host's image of what lies in memory_, in one piece.
  struct Layout {
    int32_t* ids;
    int32_t* positions;
    int32_t* row_segments;
    StepSegment* segments;
    int32_t* pages;
  };
  Layout Cut(std::byte* data) const;

  struct Staging {
    std::byte* data = nullptr;
    std::unique_ptr<Fence> copied;
  };

  static constexpr int kRing = 4;

  Device& device_;
  const StepLimits limits_;
  Buffer memory_;
  StepView view_;
  std::array<Staging, kRing> ring_;
  int next_ = 0;
};

// What every op of the backend shares. Outlives the ops.
struct Context {
  Device* device = nullptr;
  const StepState* step = nullptr;
  SaturationCounters* saturation = nullptr;  // in device memory
  const Cublas* cublas = nullptr;            // null where there is none
  // Ops whose kernels or cuts depend on how many rows there are take one row at a time.
  bool batch_invariant = false;

  // Of `rows` rows, how many such an op takes at once.
  int RowsAtOnce(int rows) const { return batch_invariant ? 1 : rows; }
};

// Steps of up to so many rows fork what is independent (Device::Fork). The kernels of more rows
// fill the card by themselves.
constexpr int kForkRows = 8;

constexpr unsigned CeilDiv(int64_t a, int64_t b) {
  return static_cast<unsigned>((a + b - 1) / b);
}

// Cuts a workspace into pieces aligned to 256 bytes. Used twice, as ArenaCutter is: without memory
// to measure, with it to cut.
class WorkspaceCutter {
 public:
  explicit WorkspaceCutter(std::byte* data = nullptr) : data_(data) {}
  template <class T>
  T* Take(int64_t count) {
    const size_t at = used_;
    used_ += (static_cast<size_t>(count) * sizeof(T) + 255) / 256 * 256;
    return data_ == nullptr ? nullptr : reinterpret_cast<T*>(data_ + at);
  }
  // The rest, for an op that is called by this one.
  std::byte* rest() const { return data_ == nullptr ? nullptr : data_ + used_; }
  size_t used() const { return used_; }

 private:
  std::byte* data_;
  size_t used_ = 0;
};

}  // namespace quartet::cuda

#endif  // QUARTET_KERNELS_CUDA_CONTEXT_H_
