#ifndef QUARTET_SHARD_WORKER_COLLECTIVES_FILE_DESCRIPTOR_H_
#define QUARTET_SHARD_WORKER_COLLECTIVES_FILE_DESCRIPTOR_H_

#include <unistd.h>

#include <utility>

namespace quartet {

// Closes what it holds. Negative: holds nothing. Movable.
class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int fd) : fd_(fd) {}
  ~FileDescriptor() {
    if (fd_ >= 0) close(fd_);
  }
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  int get() const { return fd_; }

 private:
  int fd_ = -1;
};

}  // namespace quartet

#endif  // QUARTET_SHARD_WORKER_COLLECTIVES_FILE_DESCRIPTOR_H_
