#ifndef QUARTET_SHARD_WORKER_EXECUTOR_DEVICE_H_
#define QUARTET_SHARD_WORKER_EXECUTOR_DEVICE_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/ops/backend.h"
#include "shard_worker/checkpoint/memory_plan.h"
#include "shard_worker/checkpoint/safetensors.h"
#include "shard_worker/checkpoint/weights.h"
#include "shard_worker/collectives/collectives.h"

namespace quartet {

struct DeviceOptions {
  std::string device = "cpu";  // cpu or cuda
  int gpu = 0;                 // which worker of this host; GPU number `gpu` modulo their count
  std::string gpu_image = "native";  // or sm_70: those kernels on any card, for tests
  std::string collectives = "auto";  // between GPUs; or peer, nccl: that form only, for tests
  // See ops::Backend. A CPU always is; between GPUs it takes sums by peer memory.
  bool batch_invariant = false;
};

// What a step holds at most: sizes what the backend keeps on its device.
struct BackendLimits {
  int threads = 1;  // cpu
  int max_rows = 0;
  int max_segments = 0;
  int max_pages = 0;  // page table entries of one step
};

// What a worker computes on. Outlives the backends that it makes.
class WorkerDevice {
 public:
  virtual ~WorkerDevice() = default;
  virtual std::string uuid() const = 0;         // unique on this host and among hosts
  virtual std::string description() const = 0;  // for the log
  // What all workers that share this device may use together.
  virtual int64_t memory_bytes() const = 0;
  // How many of `workers` workers of this host share one such device.
  virtual int sharers(int workers) const = 0;
  // What a rank's weights take in the form that the backend keeps.
  virtual int64_t WeightBytes(const Checkpoint& checkpoint, const ModelWeights& weights) const = 0;
  // What a token of a step takes besides, for steps of usual size.
  virtual int64_t ActivationBytesPerToken(const ModelConfig& config, int tp, int64_t weight_bytes,
                                          KvDtype kv_dtype) const = 0;
  // Joins the group over which this device's memory is summed, when all ranks are known to be
  // there. On the thread that uses the backend.
  virtual absl::StatusOr<std::unique_ptr<Collectives>> OpenGroup(
      const SharedMemoryOptions& options) = 0;
  virtual absl::StatusOr<std::unique_ptr<ops::Backend>> MakeBackend(
      const BackendLimits& limits) = 0;
};

// INVALID_ARGUMENT names the flag; UNAVAILABLE where there is no such device.
absl::StatusOr<std::unique_ptr<WorkerDevice>> OpenWorkerDevice(const DeviceOptions& options);

}  // namespace quartet

#endif  // QUARTET_SHARD_WORKER_EXECUTOR_DEVICE_H_
