#include "shard_worker/memory/arena.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_format.h"

namespace quartet {

absl::StatusOr<Arena> Arena::Allocate(size_t bytes, std::string_view what) {
  Arena arena;
  arena.bytes_ = bytes == 0 ? kArenaAlignment : AlignUp(bytes);
  void* data =
      mmap(nullptr, arena.bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) {
    const int error = errno;
    arena.bytes_ = 0;
    return absl::ResourceExhaustedError(absl::StrFormat(
        "cannot take %.1f MiB for the %s: %s; lower --memory-gib, --max-model-len or "
        "--max-num-seqs",
        static_cast<double>(bytes) / (1 << 20), what, std::strerror(error)));
  }
  arena.data_ = static_cast<std::byte*>(data);
  return arena;
}

Arena::~Arena() {
  if (data_ != nullptr) munmap(data_, bytes_);
}

Arena::Arena(Arena&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

Arena& Arena::operator=(Arena&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

}  // namespace quartet
