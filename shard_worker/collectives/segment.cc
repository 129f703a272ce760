#include "shard_worker/collectives/segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "shard_worker/collectives/file_descriptor.h"

namespace quartet {
namespace {

constexpr size_t kPage = 4096;
constexpr size_t kSlotsOffset = kPage;

size_t RoundUp(size_t value, size_t unit) {
  return (value + unit - 1) / unit * unit;
}
size_t AreasOffset(int size) {
  return kSlotsOffset + RoundUp(size * sizeof(RankSlot), kPage);
}

static_assert(sizeof(SegmentHeader) <= kPage);

absl::Status SystemError(const std::string& path, const char* what, int error) {
  const std::string message = absl::StrCat(path, ": ", what, ": ", std::strerror(error));
  return error == ENOSPC ? absl::ResourceExhaustedError(message) : absl::UnavailableError(message);
}

// Makes a complete file under a name of its own and links it to `path`, so that nobody ever sees
// half a header. OK also when somebody else was first.
absl::Status Create(const SharedMemoryOptions& options, const std::string& path, size_t bytes) {
  std::string temporary = absl::StrCat(path, ".XXXXXX");
  const FileDescriptor fd(mkostemp(temporary.data(), O_CLOEXEC));
  if (fd.get() < 0) return SystemError(temporary, "cannot create", errno);
  const auto finish = [&]() -> absl::Status {
    // Reserved, not only sized: a full file system is an error here instead of a SIGBUS later.
    if (const int error = posix_fallocate(fd.get(), 0, static_cast<off_t>(bytes)); error != 0) {
      return SystemError(path, "cannot reserve the segment", error);
    }
    SegmentHeader header = {};
    header.magic = kSegmentMagic;
    header.version = kSegmentVersion;
    header.size = static_cast<uint32_t>(options.size);
    header.epoch = options.epoch;
    header.chunk_bytes = options.chunk_bytes;
    // The atomics behind chunk_bytes are zero in a new file already.
    if (pwrite(fd.get(), &header, offsetof(SegmentHeader, arrived), 0) !=
        static_cast<ssize_t>(offsetof(SegmentHeader, arrived))) {
      return SystemError(path, "cannot write the header", errno);
    }
    if (link(temporary.c_str(), path.c_str()) != 0 && errno != EEXIST) {
      return SystemError(path, "cannot link", errno);
    }
    return absl::OkStatus();
  };
  const absl::Status status = finish();
  unlink(temporary.c_str());
  return status;
}

}  // namespace

absl::StatusOr<Segment> Segment::CreateOrOpen(const SharedMemoryOptions& options) {
  Segment segment;
  segment.path_ = absl::StrCat(options.folder, "/", options.name);
  segment.area_bytes_ = RoundUp(options.chunk_bytes, kPage);
  segment.bytes_ = AreasOffset(options.size) + 2 * options.size * segment.area_bytes_;
  // Twice: the file may vanish between a lost race to create it and opening it, when its group
  // gives up in that moment.
  for (int attempt = 0; attempt < 2; ++attempt) {
    int fd = open(segment.path_.c_str(), O_RDWR | O_CLOEXEC);
    if (fd < 0 && errno == ENOENT) {
      if (absl::Status status = Create(options, segment.path_, segment.bytes_); !status.ok()) {
        return status;
      }
      fd = open(segment.path_.c_str(), O_RDWR | O_CLOEXEC);
      if (fd < 0 && errno == ENOENT) continue;
    }
    const FileDescriptor file(fd);
    if (fd < 0) return SystemError(segment.path_, "cannot open", errno);
    struct stat info = {};
    if (fstat(fd, &info) != 0) return SystemError(segment.path_, "cannot stat", errno);
    segment.inode_ = info.st_ino;

    SegmentHeader found = {};
    const ssize_t got = pread(fd, &found, offsetof(SegmentHeader, arrived), 0);
    const auto refuse = [&](absl::string_view field, uint64_t is, uint64_t expected) {
      return absl::FailedPreconditionError(absl::StrCat(segment.path_, ": ", field, " is ", is,
                                                        ", expected ", expected,
                                                        "; the segment is of another group"));
    };
    if (got != static_cast<ssize_t>(offsetof(SegmentHeader, arrived)) ||
        found.magic != kSegmentMagic) {
      return absl::FailedPreconditionError(
          absl::StrCat(segment.path_, ": not a segment of the collectives"));
    }
    if (found.version != kSegmentVersion) return refuse("version", found.version, kSegmentVersion);
    if (found.epoch != options.epoch) return refuse("epoch", found.epoch, options.epoch);
    if (found.size != static_cast<uint32_t>(options.size)) {
      return refuse("number of ranks", found.size, options.size);
    }
    if (found.chunk_bytes != options.chunk_bytes) {
      return refuse("chunk_bytes", found.chunk_bytes, options.chunk_bytes);
    }
    if (static_cast<size_t>(info.st_size) != segment.bytes_) {
      return refuse("file size", info.st_size, segment.bytes_);
    }
    void* map = mmap(nullptr, segment.bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED) return SystemError(segment.path_, "cannot map", errno);
    segment.map_ = static_cast<std::byte*>(map);
    return segment;
  }
  return absl::UnavailableError(absl::StrCat(segment.path_, ": vanished while it was opened"));
}

Segment::Segment(Segment&& other) noexcept
    : path_(std::move(other.path_)),
      map_(std::exchange(other.map_, nullptr)),
      bytes_(other.bytes_),
      area_bytes_(other.area_bytes_),
      inode_(other.inode_) {}

Segment::~Segment() {
  if (map_ != nullptr) munmap(map_, bytes_);
}

RankSlot& Segment::slot(int rank) const {
  return *reinterpret_cast<RankSlot*>(map_ + kSlotsOffset + rank * sizeof(RankSlot));
}

std::byte* Segment::area(int rank, uint32_t parity) const {
  const size_t index = 2 * static_cast<size_t>(rank) + parity;
  return map_ + AreasOffset(static_cast<int>(header().size)) + index * area_bytes_;
}

void Segment::Unlink() const {
  struct stat info = {};
  if (stat(path_.c_str(), &info) == 0 && info.st_ino == inode_) unlink(path_.c_str());
}

}  // namespace quartet
