#ifndef QUARTET_SHARD_WORKER_MEMORY_ARENA_H_
#define QUARTET_SHARD_WORKER_MEMORY_ARENA_H_

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "absl/status/statusor.h"

namespace quartet {

// Every piece of an arena begins at a multiple of this.
inline constexpr size_t kArenaAlignment = 64;

constexpr size_t AlignUp(size_t bytes) {
  return (bytes + kArenaAlignment - 1) / kArenaAlignment * kArenaAlignment;
}

// One zero-filled block of memory for the life of the process: the address space is taken at once,
// pages become resident when they are first touched. Movable, not copyable.
class Arena {
 public:
  Arena() = default;
  // `what` names the arena in the error (RESOURCE_EXHAUSTED).
  static absl::StatusOr<Arena> Allocate(size_t bytes, std::string_view what);
  ~Arena();
  Arena(Arena&& other) noexcept;
  Arena& operator=(Arena&& other) noexcept;
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
};

// Cuts an arena into aligned pieces. The same sequence of Take calls is made twice: with no arena
// to learn how many bytes are needed (pieces are null), then with one of that size.
class ArenaCutter {
 public:
  explicit ArenaCutter(const Arena* arena = nullptr) : arena_(arena) {}

  template <typename T>
  T* Take(size_t count) {
    const size_t at = used_;
    used_ += AlignUp(count * sizeof(T));
    return arena_ == nullptr ? nullptr : reinterpret_cast<T*>(arena_->data() + at);
  }
  size_t used() const { return used_; }

 private:
  const Arena* arena_;
  size_t used_ = 0;
};

}  // namespace quartet

#endif  // QUARTET_SHARD_WORKER_MEMORY_ARENA_H_
