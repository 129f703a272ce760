#ifndef QUARTET_SHARD_WORKER_MEMORY_DISK_TIER_H_
#define QUARTET_SHARD_WORKER_MEMORY_DISK_TIER_H_

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "shard_worker/memory/disk_record.h"
#include "shard_worker/memory/host_tier.h"

namespace quartet {

struct DiskTierOptions {
  std::string folder;  // is made if it is not there
  std::string name;    // of this rank's files in it
  DiskFingerprint fingerprint;
  int pages = 0;
  int snapshots = 0;
  int64_t page_bytes = 0;
  int64_t snapshot_bytes = 0;
  int64_t queue_bytes = int64_t{256} << 20;  // that wait to be written
};

// A record that was there at the start.
struct DiskEntry {
  int place = 0;
  DiskHeader header;
};

// Pages and snapshots of this rank on disk, for the time after a restart: two files of equal
// places, each a record (disk_record.h). A thread of its own writes; what it cannot write in time
// or at all is dropped and counted. Nothing is synced: a record that a crash has cut short, or that
// has gone bad since, is found by its checksum when it is read. Which place belongs to whom is not
// known here. All calls on the compute thread.
class DiskTier {
 public:
  // Reads the header of every place. Records that are broken or not this rank's are cleared.
  // FAILED_PRECONDITION: another process has the files.
  static absl::StatusOr<std::unique_ptr<DiskTier>> Open(const DiskTierOptions& options);
  // Writes what is waiting.
  ~DiskTier();
  DiskTier(const DiskTier&) = delete;
  DiskTier& operator=(const DiskTier&) = delete;

  // What was there at the start; gives it away.
  std::vector<DiskEntry> TakeEntries() { return std::move(entries_); }

  // Queues a copy of the bytes for a place; false if the queue is full. `checksum` is theirs.
  bool Store(CacheObject object, int place, const UnitName& name, const UnitOrigin& origin,
             std::span<const std::byte> bytes, uint64_t checksum);
  // Reads a place, after what is queued for it. `checksum` is that of the bytes if the outcome is
  // kDone; else `bytes` holds anything.
  CopyOutcome Load(CacheObject object, int place, const UnitName& name, std::span<std::byte> bytes,
                   uint64_t& checksum);

  int places(CacheObject object) const {
    return object == CacheObject::kPage ? options_.pages : options_.snapshots;
  }

  struct Stats {
    uint64_t dropped = 0;       // the queue was full
    uint64_t failed = 0;        // could not be written
    uint64_t broken = 0;        // records cleared at the start
    std::string first_failure;  // why
  };
  Stats stats() const;

 private:
  struct Write {
    CacheObject object = CacheObject::kPage;
    int place = 0;
    DiskHeader header;
    std::vector<std::byte> bytes;
  };
  class File {
   public:
    File() = default;
    ~File();
    File(const File&) = delete;
    File& operator=(const File&) = delete;
    absl::Status Open(const std::string& path, int64_t bytes);
    absl::Status WriteAt(std::span<const std::byte> bytes, int64_t at) const;
    absl::Status ReadAt(std::span<std::byte> bytes, int64_t at) const;

   private:
    std::string path_;
    int descriptor_ = -1;
  };

  explicit DiskTier(const DiskTierOptions& options) : options_(options) {}
  absl::Status OpenFiles();
  void Scan(CacheObject object);
  void WriteLoop();
  absl::Status WriteRecord(const Write& write) const;
  int64_t object_bytes(CacheObject object) const {
    return object == CacheObject::kPage ? options_.page_bytes : options_.snapshot_bytes;
  }
  int64_t RecordBytes(CacheObject object) const;
  const File& FileOf(CacheObject object) const {
    return object == CacheObject::kPage ? pages_ : snapshots_;
  }

  const DiskTierOptions options_;
  File pages_;
  File snapshots_;
  std::vector<DiskEntry> entries_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;  // of everything below, guarded by mutex_
  std::deque<Write> queue_;          // the front one is being written
  int64_t queued_bytes_ = 0;
  bool stopping_ = false;
  Stats stats_;
  std::thread writer_;
};

}  // namespace quartet

#endif  // QUARTET_SHARD_WORKER_MEMORY_DISK_TIER_H_
