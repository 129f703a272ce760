#ifndef QUARTET_SHARD_WORKER_EXECUTOR_SHARD_WORKER_H_
#define QUARTET_SHARD_WORKER_EXECUTOR_SHARD_WORKER_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "shard_worker/checkpoint/memory_plan.h"
#include "shard_worker/executor/device.h"
#include "shard_worker/executor/draft_spoiler.h"

namespace quartet {

struct ShardWorkerOptions {
  std::string coordinator;  // host:port or unix:/path
  std::string model_dir;
  DeviceOptions device;
  bool synthetic_weights =
      false;        // random weights of the configured shape: no files but config.json
  int threads = 0;  // 0 = max(1, cores / TP)
  KvDtype kv_dtype = KvDtype::kFp16;
  double memory_gib = 0;       // 0 = this worker's share of what the device may use
  double host_cache_gib = 0;   // of the host's memory, for cached prefixes; 0 = none
  std::string disk_cache_dir;  // for cached prefixes that are to outlive the process
  double disk_cache_gib = 0;   // there; 0 = none
  int corrupt_copies = 0;    // for tests: damages each object of so many that move there; 0 = none
  std::string listen_admin;  // host:port; empty = no admin port
  int status_fd = -1;
  DraftSpoiler spoiler;  // for tests
};

// One rank of a cluster: checks its checkpoint, joins a coordinator, loads its slice, and executes
// plans until the coordinator or somebody here ends it. The calling thread of Run is the one
// compute thread; the stream's reader and the admin server have their own.
class ShardWorker {
 public:
  explicit ShardWorker(const ShardWorkerOptions& options);
  ~ShardWorker();

  // OK: stopped by Stop. Else the reason, which has been logged and sent to the supervisor and, if
  // the stream still stood, to the coordinator. Once.
  absl::Status Run();

  // Ends Run soon: waits are cut short, a step ends at its next collective. Any thread.
  void Stop();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace quartet

#endif  // QUARTET_SHARD_WORKER_EXECUTOR_SHARD_WORKER_H_
