#include "shard_worker/checkpoint/read_ahead.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <map>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "shard_worker/checkpoint/message.h"

namespace quartet {
namespace {

constexpr int64_t kPageBytes = 4096;

// Where a large read goes when only the page cache matters: over and over into one small buffer
// that stays in the processor's cache, so that the copy costs little.
class Discard {
 public:
  iovec* vectors() { return vectors_.data(); }
  // Lets the vectors take `bytes`, or as many as they can; returns how many vectors that needs.
  int Cover(int64_t bytes) {
    size_t count = 0;
    for (; count < vectors_.size() && bytes > 0; ++count) {
      const auto size = std::min(bytes, static_cast<int64_t>(buffer_.size()));
      vectors_[count] = {buffer_.data(), static_cast<size_t>(size)};
      bytes -= size;
    }
    return static_cast<int>(count);
  }

 private:
  std::array<std::byte, 64 << 10> buffer_;
  std::array<iovec, 256> vectors_;
};

class FileSource : public ReadSource {
 public:
  ~FileSource() override {
    for (const auto& [file, fd] : fds_) close(fd);
  }

  absl::Status Read(std::string_view file, int64_t offset, int64_t bytes) override {
    const absl::StatusOr<int> fd = Open(file);
    if (!fd.ok()) return fd.status();
    Discard discard;
    const int64_t end = offset + bytes;
    while (offset < end) {
      const ssize_t got = preadv(*fd, discard.vectors(), discard.Cover(end - offset), offset);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) {
        return absl::UnavailableError(Cat(file, ": reading ", end - offset, " bytes at ", offset,
                                          ": ", std::strerror(errno)));
      }
      if (got == 0) {
        return absl::DataLossError(Cat(file, ": ends at byte ", offset,
                                       " or before, expected at least ", end,
                                       " bytes: it was cut short after its header was read"));
      }
      offset += got;
    }
    return absl::OkStatus();
  }

  void Drop(const ReadRun& run) override {
    // Pages that are mapped stay in the cache, so they leave the mapping first. Whole pages only:
    // what shares a page with this run may still be needed.
    const auto first = reinterpret_cast<uintptr_t>(run.mapped);
    const uintptr_t begin = (first + kPageBytes - 1) / kPageBytes * kPageBytes;
    const uintptr_t end = (first + static_cast<uintptr_t>(run.bytes)) / kPageBytes * kPageBytes;
    if (run.mapped != nullptr && begin < end) {
      madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
    }
    const absl::StatusOr<int> fd = Open(run.file);
    if (fd.ok()) posix_fadvise(*fd, run.offset, run.bytes, POSIX_FADV_DONTNEED);
  }

 private:
  absl::StatusOr<int> Open(std::string_view file) {
    std::lock_guard lock(mutex_);
    const auto known = fds_.find(file);
    if (known != fds_.end()) return known->second;
    const std::string path(file);
    const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) return absl::UnavailableError(Cat(file, ": ", std::strerror(errno)));
    // Requests come in order and are large; the kernel's own guesses would only read twice.
    posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM);
    fds_.emplace(path, fd);
    return fd;
  }

  std::mutex mutex_;
  std::map<std::string, int, std::less<>> fds_;
};

}  // namespace

std::unique_ptr<ReadSource> MakeFileSource() {
  return std::make_unique<FileSource>();
}

ReadAhead::ReadAhead(std::vector<ReadPart> parts, const ReadAheadOptions& options,
                     std::unique_ptr<ReadSource> source)
    : parts_(std::move(parts)),
      options_(options),
      source_(std::move(source)),
      start_(std::chrono::steady_clock::now()) {
  CutRequests();
  for (int i = 0; i < options_.threads; ++i) threads_.emplace_back([this] { ReadLoop(); });
}

ReadAhead::~ReadAhead() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  may_start_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void ReadAhead::CutRequests() {
  pending_.assign(parts_.size(), 0);
  int64_t position = 0;
  for (size_t part = 0; part < parts_.size(); ++part) {
    for (const ReadRun& run : parts_[part]) {
      for (int64_t at = run.offset / kPageBytes * kPageBytes; at < run.end();) {
        const int64_t bytes = std::min(options_.request_bytes, run.end() - at);
        position += bytes;
        requests_.push_back({run.file, at, bytes, part, position});
        ++pending_[part];
        at += bytes;
      }
    }
    part_ends_.push_back(position);
  }
}

bool ReadAhead::MayStart(const Request& request) const {
  return request.end_position <=
         std::max(finished_position_ + options_.window_bytes, awaited_position_);
}

void ReadAhead::ReadLoop() {
  std::unique_lock lock(mutex_);
  while (true) {
    may_start_.wait(
        lock, [&] { return stop_ || next_ == requests_.size() || MayStart(requests_[next_]); });
    if (stop_ || next_ == requests_.size()) return;
    const Request request = requests_[next_++];
    lock.unlock();
    const absl::Status status = source_->Read(request.file, request.offset, request.bytes);
    lock.lock();
    if (!status.ok()) {
      if (error_.ok()) error_ = status;
      stop_ = true;
      may_start_.notify_all();
      part_read_.notify_all();
      return;
    }
    stats_.bytes += request.bytes;
    stats_.seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
    if (--pending_[request.part] == 0) part_read_.notify_all();
  }
}

absl::Status ReadAhead::Finished(size_t parts_done) {
  std::unique_lock lock(mutex_);
  if (parts_done > 0) finished_position_ = part_ends_[parts_done - 1];
  if (parts_done < parts_.size()) awaited_position_ = part_ends_[parts_done];
  may_start_.notify_all();
  part_read_.wait(lock, [&] {
    return stop_ || parts_done == parts_.size() ||
           std::all_of(pending_.begin(),
                       pending_.begin() + static_cast<std::ptrdiff_t>(parts_done) + 1,
                       [](int64_t pending) { return pending == 0; });
  });
  if (!error_.ok()) return error_;
  lock.unlock();
  if (options_.drop_behind) DropFinished();
  return absl::OkStatus();
}

void ReadAhead::DropFinished() {
  while (dropped_parts_ < parts_.size() &&
         part_ends_[dropped_parts_] + options_.window_bytes <= finished_position_) {
    for (const ReadRun& run : parts_[dropped_parts_]) source_->Drop(run);
    ++dropped_parts_;
  }
}

ReadAhead::Stats ReadAhead::stats() const {
  std::lock_guard lock(mutex_);
  return stats_;
}

}  // namespace quartet
