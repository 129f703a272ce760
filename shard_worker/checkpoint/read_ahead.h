#ifndef QUARTET_SHARD_WORKER_CHECKPOINT_READ_AHEAD_H_
#define QUARTET_SHARD_WORKER_CHECKPOINT_READ_AHEAD_H_

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "shard_worker/checkpoint/read_runs.h"

namespace quartet {

// Where the bytes come from. Used by several threads at the same time.
class ReadSource {
 public:
  virtual ~ReadSource() = default;
  // Brings bytes [offset, offset + bytes) of a file into the page cache, and returns when they are
  // there. Errors name the file.
  virtual absl::Status Read(std::string_view file, int64_t offset, int64_t bytes) = 0;
  // The bytes will not be needed again by this process, neither in the page cache nor mapped.
  virtual void Drop(const ReadRun& run) = 0;
};

// Files by pread through the page cache. A file that ends too early is DATA_LOSS.
std::unique_ptr<ReadSource> MakeFileSource();

struct ReadAheadOptions {
  // Several requests keep a disk busy that one at a time does not; more and larger ones than these
  // gain nothing.
  int threads = 4;
  int64_t request_bytes = int64_t{4} << 20;
  // How far reading may be ahead of what is finished. Two of the model's layers fit, whole as they
  // are in the file.
  int64_t window_bytes = int64_t{4} << 30;
  // Give finished bytes back, one window behind (other ranks of the host may be that much slower),
  // for hosts whose memory is smaller than the checkpoint.
  bool drop_behind = false;
};

// Reads a checkpoint into the page cache in large requests from several threads, ahead of a
// consumer that reads the mapped files. The consumer waits before each part until it is there, and
// so takes no page fault that goes to the disk and meets a file cut short as an error, not as a
// signal.
class ReadAhead {
 public:
  // Starts the threads. The files' names and mappings in `parts` must outlive the object.
  ReadAhead(std::vector<ReadPart> parts, const ReadAheadOptions& options,
            std::unique_ptr<ReadSource> source);
  // Stops early if need be; waits for the requests in flight.
  ~ReadAhead();
  ReadAhead(const ReadAhead&) = delete;
  ReadAhead& operator=(const ReadAhead&) = delete;

  // The consumer has finished the first `parts_done` parts and turns to the next one, if there is
  // one: waits until that has been read. Returns the first error of reading, if any. One thread.
  absl::Status Finished(size_t parts_done);

  struct Stats {
    int64_t bytes = 0;   // read so far, gaps included
    double seconds = 0;  // from the start to the last read
  };
  Stats stats() const;

 private:
  struct Request {
    std::string_view file;
    int64_t offset = 0;
    int64_t bytes = 0;
    size_t part = 0;
    int64_t end_position = 0;  // bytes of all requests up to and with this one
  };

  void CutRequests();
  void ReadLoop();
  bool MayStart(const Request& request) const;
  void DropFinished();

  const std::vector<ReadPart> parts_;
  const ReadAheadOptions options_;
  const std::unique_ptr<ReadSource> source_;
  const std::chrono::steady_clock::time_point start_;
  std::vector<Request> requests_;   // in order
  std::vector<int64_t> part_ends_;  // position after each part
  size_t dropped_parts_ = 0;        // of the consumer

  mutable std::mutex mutex_;
  std::condition_variable may_start_;
  std::condition_variable part_read_;
  // The rest is guarded by mutex_.
  bool stop_ = false;
  absl::Status error_;
  size_t next_ = 0;                // request
  std::vector<int64_t> pending_;   // requests of each part that are not done
  int64_t finished_position_ = 0;  // of the consumer
  int64_t awaited_position_ = 0;   // what it waits for, whatever the window
  Stats stats_;

  std::vector<std::thread> threads_;
};

}  // namespace quartet

#endif  // QUARTET_SHARD_WORKER_CHECKPOINT_READ_AHEAD_H_
