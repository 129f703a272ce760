#ifndef QUARTET_SERVICES_COORDINATOR_RPC_ENGINE_WORKERS_H_
#define QUARTET_SERVICES_COORDINATOR_RPC_ENGINE_WORKERS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "proto/quartet/v1/worker.pb.h"
#include "services/coordinator/rpc/links.h"

namespace quartet::coordinator {

// The streams of the workers that are attached, and how far each has loaded its weights. What is
// said to a worker that is not attached any more is dropped. Belongs to the engine's thread.
class EngineWorkers {
 public:
  struct Load {
    uint64_t done_bytes = 0;
    uint64_t total_bytes = 0;
  };

  bool Has(uint64_t worker) const { return attached_.contains(worker); }
  void Add(std::shared_ptr<WorkerStream> stream);
  // False if it was not attached.
  bool Remove(uint64_t worker);

  void Send(uint64_t worker, v1::ToWorker message);
  // The stream's last words; false if the worker is not attached. It is until Remove.
  bool End(uint64_t worker, const absl::Status& status);
  bool EndAfter(uint64_t worker, v1::ToWorker last, const absl::Status& status);
  // Tells all of them why, ends their streams and removes them.
  void AbortAll(uint64_t epoch, const std::string& reason);

  // Of all workers together, with this one's news.
  Load OnProgress(uint64_t worker, const v1::LoadProgress& progress);

 private:
  struct Attached {
    std::shared_ptr<WorkerStream> stream;
    Load load;
  };

  std::map<uint64_t, Attached> attached_;  // by the stream's id
};

}  // namespace quartet::coordinator

#endif  // QUARTET_SERVICES_COORDINATOR_RPC_ENGINE_WORKERS_H_
