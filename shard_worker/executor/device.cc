#include "shard_worker/executor/device.h"

#include <unistd.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "kernels/cpu/cpu_backend.h"
#include "services/common/log.h"
#include "shard_worker/checkpoint/gpu_plan.h"
#include "shard_worker/executor/host_memory.h"
#ifdef QUARTET_WITH_CUDA
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/driver_device.h"
#include "shard_worker/collectives/cuda_collectives.h"
#endif

namespace quartet {
namespace {

std::string HostName() {
  char name[256] = {};
  return gethostname(name, sizeof(name) - 1) == 0 ? std::string(name) : std::string("unknown");
}

class CpuDevice final : public WorkerDevice {
 public:
  std::string uuid() const override { return absl::StrCat("cpu-", HostName(), "-", getpid()); }
  std::string description() const override { return "CPU"; }
  int64_t memory_bytes() const override { return static_cast<int64_t>(HostMemoryBytes()) / 2; }
  int sharers(int workers) const override { return workers; }
  absl::StatusOr<std::unique_ptr<ops::Backend>> MakeBackend(const BackendLimits& limits) override {
    return cpu::MakeCpuBackend({.threads = limits.threads});
  }
  int64_t WeightBytes(const Checkpoint&, const ModelWeights& weights) const override {
    return WidenedWeightBytes(weights);
  }
  int64_t ActivationBytesPerToken(const ModelConfig& config, int tp, int64_t weight_bytes,
                                  KvDtype kv_dtype) const override {
    MemoryPlanOptions options;
    options.budget_bytes = int64_t{1} << 60;
    options.max_model_len = std::min<int64_t>(131072, config.max_position_embeddings);
    options.kv_dtype = kv_dtype;
    const absl::StatusOr<MemoryPlan> plan = PlanMemory(config, tp, weight_bytes, options);
    return plan.ok() ? plan->activation_bytes / options.max_num_batched_tokens : 0;
  }
  absl::StatusOr<std::unique_ptr<Collectives>> OpenGroup(
      const SharedMemoryOptions& options) override {
    return OpenSharedMemory(options);
  }
};

#ifdef QUARTET_WITH_CUDA

// Of the card's memory: the rest is for the context, modules and whoever else uses the card.
constexpr double kUsableShare = 0.92;

class CudaDevice final : public WorkerDevice {
 public:
  CudaDevice(std::unique_ptr<cuda::Device> device, int ordinal, int count, CollectiveForm form,
             bool batch_invariant)
      : device_(std::move(device)),
        ordinal_(ordinal),
        count_(count),
        form_(form),
        batch_invariant_(batch_invariant) {}

  std::string uuid() const override { return absl::StrCat(device_->info().uuid, "-", getpid()); }
  std::string description() const override {
    return absl::StrCat("GPU ", ordinal_, " (", device_->info().name, ", ", device_->info().image,
                        " kernels)");
  }
  int64_t memory_bytes() const override {
    return static_cast<int64_t>(static_cast<double>(device_->info().memory_bytes) * kUsableShare);
  }
  int sharers(int workers) const override { return (workers + count_ - 1) / count_; }
  absl::StatusOr<std::unique_ptr<ops::Backend>> MakeBackend(const BackendLimits& limits) override {
    return cuda::MakeCudaBackend(*device_,
                                 {.max_rows = limits.max_rows,
                                  .max_segments = limits.max_segments,
                                  .max_pages = limits.max_pages},
                                 {.batch_invariant = batch_invariant_});
  }

  int64_t WeightBytes(const Checkpoint& checkpoint, const ModelWeights& weights) const override {
    const GpuWeightBytes bytes = CountGpuWeights(checkpoint, weights);
    return bytes.total() - bytes.vision;  // the tower is not loaded
  }
  int64_t ActivationBytesPerToken(const ModelConfig& config, int tp, int64_t,
                                  KvDtype kv_dtype) const override {
    GpuPlanOptions options;
    options.max_model_len = std::min<int64_t>(131072, config.max_position_embeddings);
    options.max_num_batched_tokens = 512;
    options.kv_dtype = kv_dtype;
    return GpuActivationBytes(config, tp, options) / options.max_num_batched_tokens;
  }
  absl::StatusOr<std::unique_ptr<Collectives>> OpenGroup(
      const SharedMemoryOptions& options) override {
    CudaCollectivesOptions cuda_options;
    cuda_options.rendezvous = options;
    cuda_options.form = form_;
    absl::StatusOr<std::unique_ptr<CudaCollectives>> group =
        OpenCudaCollectives(*device_, cuda_options);
    if (!group.ok()) return group.status();
    LogInfo((*group)->description());
    return *std::move(group);
  }

 private:
  const std::unique_ptr<cuda::Device> device_;
  const int ordinal_;
  const int count_;
  const CollectiveForm form_;
  const bool batch_invariant_;
};

// How NCCL adds up depends on how much there is to add.
absl::StatusOr<CollectiveForm> FormOf(const DeviceOptions& options) {
  if (options.batch_invariant && options.collectives == "nccl") {
    return absl::InvalidArgumentError(
        "--batch-invariant and --collectives nccl exclude each other: NCCL's order of sums depends "
        "on their size; right would be --collectives peer or auto");
  }
  if (options.batch_invariant) return CollectiveForm::kPeer;
  return ParseCollectiveForm(options.collectives);
}

absl::StatusOr<std::unique_ptr<WorkerDevice>> OpenCuda(const DeviceOptions& options) {
  const absl::StatusOr<CollectiveForm> form = FormOf(options);
  if (!form.ok()) return form.status();
  absl::StatusOr<int> count = cuda::CountDevices();
  if (!count.ok()) return count.status();
  if (*count == 0) return absl::UnavailableError("--device is cuda, but there is no GPU");
  const int ordinal = options.gpu % *count;
  absl::StatusOr<std::unique_ptr<cuda::Device>> device =
      cuda::OpenDevice({.ordinal = ordinal, .image = options.gpu_image});
  if (!device.ok()) return device.status();
  return std::make_unique<CudaDevice>(*std::move(device), ordinal, *count, *form,
                                      options.batch_invariant);
}

#else

absl::StatusOr<std::unique_ptr<WorkerDevice>> OpenCuda(const DeviceOptions&) {
  return absl::UnavailableError(
      "--device is cuda, but this program was built without CUDA (cmake --preset cuda)");
}

#endif

}  // namespace

absl::StatusOr<std::unique_ptr<WorkerDevice>> OpenWorkerDevice(const DeviceOptions& options) {
  if (options.device == "cpu") return std::make_unique<CpuDevice>();
  if (options.device == "cuda") return OpenCuda(options);
  return absl::InvalidArgumentError(
      absl::StrCat("--device is ", options.device, ", expected cpu or cuda"));
}

}  // namespace quartet
