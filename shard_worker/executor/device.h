#ifndef QUARTET_SHARD_WORKER_EXECUTOR_DEVICE_H_
#define QUARTET_SHARD_WORKER_EXECUTOR_DEVICE_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/ops/backend.h"

namespace quartet {

struct DeviceOptions {
  std::string device = "cpu";  // cpu or cuda
  int gpu = 0;                 // which worker of this host; GPU number `gpu` modulo their count
  std::string gpu_image = "native";  // or sm_70: those kernels on any card, for tests
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
  virtual absl::StatusOr<std::unique_ptr<ops::Backend>> MakeBackend(
      const BackendLimits& limits) = 0;
};

// INVALID_ARGUMENT names the flag; UNAVAILABLE where there is no such device.
absl::StatusOr<std::unique_ptr<WorkerDevice>> OpenWorkerDevice(const DeviceOptions& options);

}  // namespace quartet

#endif  // QUARTET_SHARD_WORKER_EXECUTOR_DEVICE_H_
