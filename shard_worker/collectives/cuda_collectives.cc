#include "shard_worker/collectives/cuda_collectives.h"

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "shard_worker/collectives/cuda_start.h"

namespace quartet {
namespace {

constexpr absl::Duration kWatchPeriod = absl::Milliseconds(100);

// Operations of NCCL that the stream has reached and left. In pinned memory, counted by the device.
struct StreamMarks {
  uint32_t started;
  uint32_t finished;
};

class CudaGroup final : public CudaCollectives {
 public:
  CudaGroup(cuda::Device& device, const CudaCollectivesOptions& options,
            std::unique_ptr<Collectives> processes)
      : device_(device), options_(options), processes_(std::move(processes)) {}

  ~CudaGroup() override {
    if (watcher_.joinable()) {
      {
        const std::lock_guard lock(mutex_);
        ending_ = true;
      }
      wake_.notify_all();
      watcher_.join();
    }
    // What still waits on the device would wait for ever: nobody looks after it any more.
    if (links_.peer != nullptr) links_.peer->Abort();
    if (links_.nccl != nullptr) links_.nccl->Abort();
    device_.Synchronize().IgnoreError();
  }

  absl::Status Start() {
    if (absl::Status s = PrepareMarks(); !s.ok()) return s;
    absl::StatusOr<GpuLinks> links = ConnectGpus(device_, *processes_, options_);
    if (!links.ok()) return links.status();
    links_ = *std::move(links);
    watcher_ = std::thread([this] { Watch(); });
    const auto by_peers = [&](float* data, size_t count) {
      links_.peer->AllReduceSum(data, data, count);
      return Check();
    };
    const auto by_nccl = [&](float* data, size_t count) {
      return ByNccl([&] { return links_.nccl->AllReduceSum(data, count); });
    };
    const GpuWays ways = {by_peers, by_nccl};
    if (absl::Status s = CheckSums(device_, *processes_, links_, options_, ways); !s.ok()) return s;
    absl::StatusOr<GpuChoice> choice = Choose(device_, *processes_, links_, options_, ways);
    if (!choice.ok()) return choice.status();
    one_shot_bytes_ = choice->one_shot_bytes;
    description_ = choice->description;
    return absl::OkStatus();
  }

  int rank() const override { return options_.rendezvous.rank; }
  int size() const override { return options_.rendezvous.size; }
  const std::string& description() const override { return description_; }
  cuda::PeerTransport* peer() override { return links_.peer.get(); }

  absl::Status AllReduceSum(float* data, size_t count) override {
    return AllReduceSum(data, data, count);
  }

  absl::Status AllReduceSum(const float* partial, float* sum, size_t count) override {
    if (failed_) return Check();
    if (count == 0) return absl::OkStatus();
    if (UsesPeers(count * sizeof(float))) {
      links_.peer->AllReduceSum(partial, sum, count);
      return absl::OkStatus();
    }
    if (partial != sum) device_.Copy(sum, partial, count * sizeof(float));
    return ByNccl([&] { return links_.nccl->AllReduceSum(sum, count); });
  }

  absl::Status AllGather(const void* local, size_t bytes, void* all) override {
    if (failed_) return Check();
    if (bytes == 0) return absl::OkStatus();
    if (UsesPeers(bytes)) {
      links_.peer->AllGather(local, bytes, all);
      return absl::OkStatus();
    }
    return ByNccl([&] { return links_.nccl->AllGather(local, bytes, all); });
  }

  absl::Status Barrier() override {
    if (failed_) return Check();
    if (links_.peer != nullptr) {
      links_.peer->Barrier();
      return absl::OkStatus();
    }
    return ByNccl([&] { return links_.nccl->AllReduceSum(scratch_.as<float>(), 1); });
  }

  absl::Status Check() override {
    {
      const std::lock_guard lock(mutex_);
      if (!status_.ok()) return status_;
    }
    const absl::Status problem = FindProblem();
    return problem.ok() ? problem : Fail(problem);
  }

  void Abort(const std::string& reason) override { Fail(absl::AbortedError(reason)).IgnoreError(); }

 private:
  absl::Status PrepareMarks() {
    absl::StatusOr<const cuda::Kernel*> mark = device_.Find("collective_mark");
    if (!mark.ok()) return mark.status();
    mark_ = *mark;
    absl::StatusOr<void*> marks = device_.AllocatePinned(sizeof(StreamMarks), "collectives");
    if (!marks.ok()) return marks.status();
    marks_ = new (*marks) StreamMarks();
    absl::StatusOr<cuda::Buffer> scratch = device_.Allocate(sizeof(float), "collectives");
    if (!scratch.ok()) return scratch.status();
    scratch_ = *std::move(scratch);
    device_.Fill(scratch_.data(), 0, sizeof(float));
    // The first launch, while no rank waits for this one.
    Mark(marks_->started);
    Mark(marks_->finished);
    return device_.Synchronize();
  }

  void Mark(uint32_t& counter) {
    device_.Launch(mark_, {.threads = 32}, cuda::CollectiveMarkParams{&counter});
  }

  bool UsesPeers(size_t bytes) const {
    return links_.nccl == nullptr || (links_.peer != nullptr && bytes <= one_shot_bytes_);
  }

  template <class Work>
  absl::Status ByNccl(Work work) {
    Mark(marks_->started);
    if (absl::Status s = work(); !s.ok()) return Fail(s);
    Mark(marks_->finished);
    return absl::OkStatus();
  }

  void Watch() {
    std::unique_lock lock(mutex_);
    while (
        !wake_.wait_for(lock, absl::ToChronoMilliseconds(kWatchPeriod), [&] { return ending_; })) {
      lock.unlock();
      if (!failed_) Check().IgnoreError();
      lock.lock();
    }
  }

  absl::Status FindProblem() {
    if (absl::Status s = processes_->Check(); !s.ok()) return s;
    if (links_.peer != nullptr) {
      if (absl::Status s = links_.peer->Check(); !s.ok()) return s;
    }
    if (links_.nccl != nullptr) {
      if (absl::Status s = links_.nccl->Check(); !s.ok()) return s;
      if (absl::Status s = CheckMarks(); !s.ok()) return s;
    }
    return absl::OkStatus();
  }

  // NCCL itself waits without a limit for a rank that is gone.
  absl::Status CheckMarks() {
    const uint32_t started = std::atomic_ref(marks_->started).load();
    const uint32_t finished = std::atomic_ref(marks_->finished).load();
    const std::lock_guard lock(mutex_);
    if (started == finished || finished != last_finished_) {
      last_finished_ = finished;
      waiting_since_ = absl::InfiniteFuture();
      return absl::OkStatus();
    }
    const absl::Time now = absl::Now();
    if (waiting_since_ == absl::InfiniteFuture()) waiting_since_ = now;
    if (now - waiting_since_ < options_.wait_timeout) return absl::OkStatus();
    return absl::DeadlineExceededError(absl::StrCat("operation ", started, " of NCCL on rank ",
                                                    rank(), " takes longer than ",
                                                    absl::FormatDuration(options_.wait_timeout)));
  }

  // Makes the group unusable, unless it is already, and ends what waits on the device. Returns why
  // it is unusable.
  absl::Status Fail(const absl::Status& why) {
    {
      const std::lock_guard lock(mutex_);
      if (!status_.ok()) return status_;
      status_ = why;
      failed_ = true;
    }
    processes_->Abort(std::string(why.message()));
    if (links_.peer != nullptr) links_.peer->Abort();
    if (links_.nccl != nullptr) links_.nccl->Abort();
    return why;
  }

  cuda::Device& device_;
  const CudaCollectivesOptions options_;
  const std::unique_ptr<Collectives> processes_;
  GpuLinks links_;
  size_t one_shot_bytes_ = 0;
  std::string description_;

  const cuda::Kernel* mark_ = nullptr;
  StreamMarks* marks_ = nullptr;
  cuda::Buffer scratch_;

  std::thread watcher_;
  std::atomic<bool> failed_ = false;
  std::mutex mutex_;
  std::condition_variable wake_;
  absl::Status status_;                                // guarded by mutex_
  bool ending_ = false;                                // guarded by mutex_
  uint32_t last_finished_ = 0;                         // guarded by mutex_
  absl::Time waiting_since_ = absl::InfiniteFuture();  // guarded by mutex_
};

}  // namespace

absl::StatusOr<CollectiveForm> ParseCollectiveForm(std::string_view name) {
  if (name == "auto") return CollectiveForm::kAuto;
  if (name == "peer") return CollectiveForm::kPeer;
  if (name == "nccl") return CollectiveForm::kNccl;
  return absl::InvalidArgumentError(absl::StrCat("the collectives are ", std::string(name),
                                                 "; right would be auto, peer or nccl"));
}

absl::StatusOr<std::unique_ptr<CudaCollectives>> OpenCudaCollectives(
    cuda::Device& device, const CudaCollectivesOptions& options) {
  absl::StatusOr<std::unique_ptr<Collectives>> processes = OpenSharedMemory(options.rendezvous);
  if (!processes.ok()) return processes.status();
  auto group = std::make_unique<CudaGroup>(device, options, *std::move(processes));
  if (absl::Status s = group->Start(); !s.ok()) return s;
  return group;
}

}  // namespace quartet
