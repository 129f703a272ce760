#ifndef QUARTET_KERNELS_OPS_MEMORY_H_
#define QUARTET_KERNELS_OPS_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

namespace quartet::ops {

// Every piece of memory that ops work on begins at a multiple of this.
inline constexpr size_t kMemoryAlignment = 64;

constexpr size_t AlignUp(size_t bytes) {
  return (bytes + kMemoryAlignment - 1) / kMemoryAlignment * kMemoryAlignment;
}

// One block of a backend's memory, zero-filled at first, given back at the end. Movable, not
// copyable. On a GPU the host cannot look into it.
class Memory {
 public:
  Memory() = default;
  Memory(std::byte* data, size_t bytes, std::shared_ptr<void> owner)
      : data_(data), bytes_(bytes), owner_(std::move(owner)) {}
  Memory(Memory&&) = default;
  Memory& operator=(Memory&&) = default;

  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
  std::shared_ptr<void> owner_;  // frees it
};

// Cuts a block into aligned pieces. The same sequence of Take calls is made twice: with no memory
// to learn how many bytes are needed (pieces are null), then with a block of that size.
class MemoryCutter {
 public:
  explicit MemoryCutter(std::byte* data = nullptr) : data_(data) {}

  template <typename T>
  T* Take(size_t count) {
    const size_t at = used_;
    used_ += AlignUp(count * sizeof(T));
    return data_ == nullptr ? nullptr : reinterpret_cast<T*>(data_ + at);
  }
  size_t used() const { return used_; }

 private:
  std::byte* data_;
  size_t used_ = 0;
};

}  // namespace quartet::ops

#endif  // QUARTET_KERNELS_OPS_MEMORY_H_
