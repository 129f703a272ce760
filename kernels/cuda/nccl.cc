#include "kernels/cuda/nccl.h"

#include <dlfcn.h>
#include <nccl.h>

#include <cstring>
#include <mutex>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace quartet::cuda {
namespace {

#define QUARTET_NCCL_FUNCTIONS(F) \
  F(ncclGetVersion)               \
  F(ncclGetUniqueId)              \
  F(ncclCommInitRankConfig)       \
  F(ncclCommGetAsyncError)        \
  F(ncclCommAbort) F(ncclAllReduce) F(ncclAllGather) F(ncclGetErrorString) F(ncclGetLastError)

struct NcclApi {
#define QUARTET_DECLARE(name) decltype(&::name) name = nullptr;
  QUARTET_NCCL_FUNCTIONS(QUARTET_DECLARE)
#undef QUARTET_DECLARE

  // In progress is no error.
  absl::Status Check(ncclResult_t result, const char* what, ncclComm_t comm = nullptr) const {
    if (result == ncclSuccess || result == ncclInProgress) return absl::OkStatus();
    return absl::InternalError(
        absl::StrCat(what, ": ", ncclGetErrorString(result), ": ", ncclGetLastError(comm)));
  }
};

// The first with configurations that later headers only extend.
constexpr int kOldest = NCCL_VERSION(2, 18, 0);

absl::StatusOr<NcclApi> Load() {
  void* library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return absl::UnavailableError(absl::StrCat("no NCCL: ", dlerror()));
  NcclApi api;
#define QUARTET_LOAD(name)                                                \
  api.name = reinterpret_cast<decltype(api.name)>(dlsym(library, #name)); \
  if (api.name == nullptr) return absl::UnavailableError("NCCL is too old: no " #name);
  QUARTET_NCCL_FUNCTIONS(QUARTET_LOAD)
#undef QUARTET_LOAD
  int version = 0;
  if (absl::Status s = api.Check(api.ncclGetVersion(&version), "the version of NCCL"); !s.ok()) {
    return s;
  }
  if (version < kOldest) {
    return absl::UnavailableError(
        absl::StrCat("NCCL ", version, ", expected ", kOldest, " or later"));
  }
  return api;
}

absl::StatusOr<const NcclApi*> Api() {
  static const absl::StatusOr<NcclApi> api = Load();
  if (!api.ok()) return api.status();
  return &*api;
}

constexpr absl::Duration kPoll = absl::Microseconds(20);
constexpr absl::Duration kEnqueueTimeout = absl::Seconds(30);

// Nothing of NCCL blocks here: a call that is not done when it returns is polled, so that a peer
// that never comes costs a deadline and not the process.
class Communicator final : public NcclCommunicator {
 public:
  Communicator(const NcclApi& api, Device& device) : api_(api), device_(device) {}

  // Not destroyed but aborted: the orderly way waits for peers that may be gone.
  ~Communicator() override { Abort(); }

  absl::Status Init(const NcclId& id, int rank, int size, absl::Duration timeout) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    ncclUniqueId nccl_id;
    static_assert(sizeof(nccl_id) == sizeof(id));
    std::memcpy(&nccl_id, id.data(), sizeof(nccl_id));
    const std::lock_guard lock(mutex_);
    const ncclResult_t result = api_.ncclCommInitRankConfig(&comm_, size, nccl_id, rank, &config);
    return Await(result, "making the NCCL communicator", timeout);
  }

  absl::Status AllReduceSum(float* data, size_t count) override {
    const std::lock_guard lock(mutex_);
    if (comm_ == nullptr) return Aborted();
    return Await(api_.ncclAllReduce(data, data, count, ncclFloat32, ncclSum, comm_, Stream()),
                 "NCCL's all-reduce", kEnqueueTimeout);
  }

  absl::Status AllGather(const void* local, size_t bytes, void* all) override {
    const std::lock_guard lock(mutex_);
    if (comm_ == nullptr) return Aborted();
    return Await(api_.ncclAllGather(local, all, bytes, ncclInt8, comm_, Stream()),
                 "NCCL's all-gather", kEnqueueTimeout);
  }

  absl::Status Check() override {
    const std::lock_guard lock(mutex_);
    if (comm_ == nullptr) return Aborted();
    ncclResult_t state = ncclSuccess;
    if (absl::Status s = api_.Check(api_.ncclCommGetAsyncError(comm_, &state), "NCCL", comm_);
        !s.ok()) {
      return s;
    }
    return api_.Check(state, "NCCL", comm_);
  }

  void Abort() override {
    const std::lock_guard lock(mutex_);
    if (comm_ != nullptr) api_.ncclCommAbort(comm_);
    comm_ = nullptr;
  }

 private:
  cudaStream_t Stream() { return static_cast<cudaStream_t>(device_.NativeStream()); }

  static absl::Status Aborted() { return absl::AbortedError("the NCCL communicator was aborted"); }

  absl::Status Await(ncclResult_t result, const char* what, absl::Duration timeout) {
    const absl::Time deadline = absl::Now() + timeout;
    while (result == ncclInProgress) {
      const ncclResult_t asked = api_.ncclCommGetAsyncError(comm_, &result);
      if (asked != ncclSuccess) result = asked;
      if (result != ncclInProgress) break;
      if (absl::Now() >= deadline) {
        return absl::DeadlineExceededError(
            absl::StrCat(what, " takes longer than ", absl::FormatDuration(timeout)));
      }
      absl::SleepFor(kPoll);
    }
    return api_.Check(result, what, comm_);
  }

  const NcclApi& api_;
  Device& device_;
  std::mutex mutex_;
  ncclComm_t comm_ = nullptr;  // guarded by mutex_
};

}  // namespace

absl::StatusOr<NcclId> MakeNcclId() {
  const absl::StatusOr<const NcclApi*> api = Api();
  if (!api.ok()) return api.status();
  ncclUniqueId id;
  if (absl::Status s = (*api)->Check((*api)->ncclGetUniqueId(&id), "making an NCCL id"); !s.ok()) {
    return s;
  }
  NcclId bytes;
  std::memcpy(bytes.data(), &id, sizeof(id));
  return bytes;
}

absl::StatusOr<std::string> NcclVersion() {
  const absl::StatusOr<const NcclApi*> api = Api();
  if (!api.ok()) return api.status();
  int version = 0;
  (*api)->ncclGetVersion(&version);
  return absl::StrCat("NCCL ", version / 10000, ".", version / 100 % 100, ".", version % 100);
}

absl::StatusOr<std::unique_ptr<NcclCommunicator>> NcclCommunicator::Join(Device& device,
                                                                         const NcclId& id, int rank,
                                                                         int size,
                                                                         absl::Duration timeout) {
  const absl::StatusOr<const NcclApi*> api = Api();
  if (!api.ok()) return api.status();
  auto communicator = std::make_unique<Communicator>(**api, device);
  if (absl::Status s = communicator->Init(id, rank, size, timeout); !s.ok()) return s;
  return communicator;
}

}  // namespace quartet::cuda
