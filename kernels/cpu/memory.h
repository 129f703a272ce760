#ifndef QUARTET_KERNELS_CPU_MEMORY_H_
#define QUARTET_KERNELS_CPU_MEMORY_H_

#include <cassert>
#include <cstddef>
#include <cstdlib>
#include <memory>
#include <new>

#include "kernels/ops/batch.h"

namespace quartet::cpu {

inline constexpr size_t kAlignment = 64;  // bytes: one cache line, one widest vector

struct FreeDeleter {
  void operator()(float* p) const { std::free(p); }
};
using AlignedFloats = std::unique_ptr<float[], FreeDeleter>;

// `count` floats, aligned to 64 bytes, not initialised.
inline AlignedFloats AllocateFloats(size_t count) {
  const size_t bytes = (count * sizeof(float) + kAlignment - 1) / kAlignment * kAlignment;
  void* p = std::aligned_alloc(kAlignment, bytes == 0 ? kAlignment : bytes);
  if (p == nullptr) throw std::bad_alloc();
  return AlignedFloats(static_cast<float*>(p));
}

// Cuts an op's workspace into buffers. The same code that takes the buffers also says how many
// bytes it needs: run on an empty workspace it only counts, and the pointers mean nothing.
class Arena {
 public:
  Arena() = default;  // counts only
  explicit Arena(const ops::Workspace& workspace)
      : base_(workspace.data), limit_(workspace.bytes), counting_(false) {
    assert(reinterpret_cast<uintptr_t>(base_) % kAlignment == 0);
  }

  float* Floats(size_t count) { return static_cast<float*>(Take(count * sizeof(float))); }
  int32_t* Ints(size_t count) { return static_cast<int32_t*>(Take(count * sizeof(int32_t))); }

  size_t used() const { return used_; }

 private:
  void* Take(size_t bytes) {
    const size_t at = used_;
    used_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
    if (counting_) return nullptr;
    assert(used_ <= limit_);
    return base_ + at;
  }

  std::byte* base_ = nullptr;
  size_t limit_ = 0;
  size_t used_ = 0;
  bool counting_ = true;
};

}  // namespace quartet::cpu

#endif  // QUARTET_KERNELS_CPU_MEMORY_H_
