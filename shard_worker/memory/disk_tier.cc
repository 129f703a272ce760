#include "shard_worker/memory/disk_tier.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "shard_worker/memory/checksum.h"

namespace quartet {

DiskTier::File::~File() {
  if (descriptor_ >= 0) close(descriptor_);
}

absl::Status DiskTier::File::Open(const std::string& path, int64_t bytes) {
  path_ = path;
  const auto failed = [&](const char* what) {
    return absl::UnavailableError(absl::StrCat(what, " ", path, ": ", std::strerror(errno)));
  };
  descriptor_ = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (descriptor_ < 0) return failed("cannot open");
  if (flock(descriptor_, LOCK_EX | LOCK_NB) != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, " is in use by another process; each engine needs a folder of its own"));
  }
  if (ftruncate(descriptor_, bytes) != 0) return failed("cannot set the size of");
  return absl::OkStatus();
}

absl::Status DiskTier::File::WriteAt(std::span<const std::byte> bytes, int64_t at) const {
  while (!bytes.empty()) {
    const ssize_t count = pwrite(descriptor_, bytes.data(), bytes.size(), at);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) {
      return absl::UnavailableError(
          absl::StrCat("cannot write ", path_, ": ", std::strerror(errno)));
    }
    bytes = bytes.subspan(count);
    at += count;
  }
  return absl::OkStatus();
}

absl::Status DiskTier::File::ReadAt(std::span<std::byte> bytes, int64_t at) const {
  while (!bytes.empty()) {
    const ssize_t count = pread(descriptor_, bytes.data(), bytes.size(), at);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) {
      return absl::UnavailableError(absl::StrCat(
          "cannot read ", path_, ": ", count == 0 ? "it ends too early" : std::strerror(errno)));
    }
    bytes = bytes.subspan(count);
    at += count;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<DiskTier>> DiskTier::Open(const DiskTierOptions& options) {
  auto tier = std::unique_ptr<DiskTier>(new DiskTier(options));
  if (absl::Status s = tier->OpenFiles(); !s.ok()) return s;
  tier->Scan(CacheObject::kPage);
  tier->Scan(CacheObject::kSnapshot);
  tier->writer_ = std::thread([raw = tier.get()] { raw->WriteLoop(); });
  return tier;
}

DiskTier::~DiskTier() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (writer_.joinable()) writer_.join();
}

absl::Status DiskTier::OpenFiles() {
  std::error_code error;
  std::filesystem::create_directories(options_.folder, error);
  if (error) {
    return absl::UnavailableError(
        absl::StrCat("cannot make the folder ", options_.folder, ": ", error.message()));
  }
  const std::string path = absl::StrCat(options_.folder, "/", options_.name);
  if (absl::Status s =
          pages_.Open(path + ".pages", options_.pages * RecordBytes(CacheObject::kPage));
      !s.ok()) {
    return s;
  }
  return snapshots_.Open(path + ".snapshots",
                         options_.snapshots * RecordBytes(CacheObject::kSnapshot));
}

int64_t DiskTier::RecordBytes(CacheObject object) const {
  constexpr int64_t kHeader = kDiskHeaderBytes;
  return kHeader + (object_bytes(object) + kHeader - 1) / kHeader * kHeader;
}

void DiskTier::Scan(CacheObject object) {
  std::array<std::byte, kDiskHeaderBytes> bytes;
  const std::array<std::byte, kDiskHeaderBytes> nothing = {};
  for (int place = 0; place < places(object); ++place) {
    const int64_t at = place * RecordBytes(object);
    absl::Status read = FileOf(object).ReadAt(bytes, at);
    absl::StatusOr<DiskHeader> header = read.ok() ? ParseDiskHeader(bytes) : read;
    if (absl::IsNotFound(header.status())) continue;
    if (header.ok() && header->object == object && header->fingerprint == options_.fingerprint &&
        header->bytes == static_cast<uint64_t>(object_bytes(object))) {
      entries_.push_back({place, *std::move(header)});
      continue;
    }
    ++stats_.broken;
    // What cannot be cleared is found broken again.
    FileOf(object).WriteAt(nothing, at).IgnoreError();
  }
}

bool DiskTier::Store(CacheObject object, int place, const UnitName& name, const UnitOrigin& origin,
                     std::span<const std::byte> bytes, uint64_t checksum) {
  const auto size = static_cast<int64_t>(bytes.size());
  {
    std::lock_guard lock(mutex_);
    if (queued_bytes_ + size > options_.queue_bytes) {
      ++stats_.dropped;
      return false;
    }
    queued_bytes_ += size;
  }
  Write write = {.object = object,
                 .place = place,
                 .header = {.object = object,
                            .fingerprint = options_.fingerprint,
                            .name = name,
                            .origin = origin,
                            .bytes = bytes.size(),
                            .checksum = checksum},
                 .bytes = {bytes.begin(), bytes.end()}};
  {
    std::lock_guard lock(mutex_);
    queue_.push_back(std::move(write));
  }
  changed_.notify_all();
  return true;
}

CopyOutcome DiskTier::Load(CacheObject object, int place, const UnitName& name,
                           std::span<std::byte> bytes, uint64_t& checksum) {
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] {
      return std::ranges::none_of(queue_, [&](const Write& write) {
        return write.object == object && write.place == place;
      });
    });
  }
  std::array<std::byte, kDiskHeaderBytes> head;
  const int64_t at = place * RecordBytes(object);
  if (!FileOf(object).ReadAt(head, at).ok()) return CopyOutcome::kMissing;
  const absl::StatusOr<DiskHeader> header = ParseDiskHeader(head);
  if (!header.ok()) {
    return absl::IsNotFound(header.status()) ? CopyOutcome::kMissing : CopyOutcome::kChecksum;
  }
  if (header->object != object || header->name != name ||
      header->fingerprint != options_.fingerprint || header->bytes != bytes.size() ||
      !FileOf(object).ReadAt(bytes, at + static_cast<int64_t>(kDiskHeaderBytes)).ok()) {
    return CopyOutcome::kMissing;
  }
  checksum = header->checksum;
  return Checksum64(bytes) == checksum ? CopyOutcome::kDone : CopyOutcome::kChecksum;
}

DiskTier::Stats DiskTier::stats() const {
  std::lock_guard lock(mutex_);
  return stats_;
}

void DiskTier::WriteLoop() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
    if (queue_.empty()) return;
    // Stays at the front, where Load sees it. Only this thread takes away from the front, and what
    // comes at the end leaves it where it is.
    const Write& write = queue_.front();
    lock.unlock();
    absl::Status status = WriteRecord(write);
    lock.lock();
    if (!status.ok()) {
      ++stats_.failed;
      if (stats_.first_failure.empty()) stats_.first_failure = std::string(status.message());
    }
    queued_bytes_ -= static_cast<int64_t>(queue_.front().bytes.size());
    queue_.pop_front();
    changed_.notify_all();
  }
}

// The header goes first and comes last: what was there before is never taken for the new bytes.
absl::Status DiskTier::WriteRecord(const Write& write) const {
  const File& file = FileOf(write.object);
  const int64_t at = write.place * RecordBytes(write.object);
  const std::array<std::byte, kDiskHeaderBytes> nothing = {};
  if (absl::Status s = file.WriteAt(nothing, at); !s.ok()) return s;
  if (absl::Status s = file.WriteAt(write.bytes, at + static_cast<int64_t>(kDiskHeaderBytes));
      !s.ok()) {
    return s;
  }
  return file.WriteAt(FormatDiskHeader(write.header), at);
}

}  // namespace quartet
