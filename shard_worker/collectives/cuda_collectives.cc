#include "shard_worker/collectives/cuda_collectives.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "shard_worker/collectives/cuda_start.h"

namespace quartet {
namespace {

constexpr absl::Duration kWatchPeriod = absl::Milliseconds(100);
constexpr size_t kShortBytes = 16 * 1024;  // one row of the model
constexpr size_t kLongBytes = 128 * 1024;
constexpr size_t kBandwidthBytes = 16 << 20;

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
    one_shot_bytes_ = links_.peer != nullptr ? options_.one_shot_bytes : 0;
    watcher_ = std::thread([this] { Watch(); });
    if (absl::Status s = CheckSums(); !s.ok()) return s;
    return Choose();
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

  // Each way gives the sums that are known, and has opened its connections then.
  absl::Status CheckSums() {
    for (const size_t bytes : {size_t{4}, kShortBytes, options_.one_shot_bytes + kShortBytes}) {
      const size_t count = bytes / sizeof(float);
      if (links_.peer != nullptr) {
        if (absl::Status s = CheckKnownSum(device_, *processes_, count, PeerSum()); !s.ok()) {
          return s;
        }
      }
      if (links_.nccl != nullptr) {
        if (absl::Status s = CheckKnownSum(device_, *processes_, count, NcclSum()); !s.ok()) {
          return s;
        }
      }
    }
    return absl::OkStatus();
  }

  // Microseconds of both ways for the messages that one-shot is meant for. 0: no such way.
  struct Times {
    size_t bytes;
    double peer_us = 0;
    double nccl_us = 0;
  };

  absl::StatusOr<std::vector<Times>> Measure() {
    const int calls = links_.one_gpu ? 4 : 100;
    std::vector<Times> all;
    for (size_t bytes = kShortBytes; bytes <= std::max(kLongBytes, options_.one_shot_bytes);
         bytes *= 2) {
      Times times = {.bytes = bytes};
      if (links_.peer != nullptr) {
        const auto us = MeasureAllReduce(device_, *processes_, bytes, calls, PeerSum());
        if (!us.ok()) return us.status();
        times.peer_us = *us;
      }
      if (links_.nccl != nullptr) {
        const auto us = MeasureAllReduce(device_, *processes_, bytes, calls, NcclSum());
        if (!us.ok()) return us.status();
        times.nccl_us = *us;
      }
      all.push_back(times);
    }
    return all;
  }

  // Measures, decides and describes. All ranks have the same times.
  absl::Status Choose() {
    description_ = absl::StrFormat("collectives of %d GPUs, epoch %d: ", size(),
                                   static_cast<int64_t>(options_.rendezvous.epoch));
    if (size() == 1 && links_.nccl == nullptr) {
      absl::StrAppend(&description_, "nothing to do");
      return absl::OkStatus();
    }
    const absl::StatusOr<std::vector<Times>> measured = Measure();
    if (!measured.ok()) return measured.status();
    if (links_.peer != nullptr && links_.nccl != nullptr) {
      one_shot_bytes_ = 0;
      for (const Times& times : *measured) {
        if (times.peer_us > times.nccl_us) break;
        one_shot_bytes_ = std::min(times.bytes, options_.one_shot_bytes);
      }
    }
    const auto describe = [&](double Times::*us) {
      std::string text = "all-reduce of";
      for (const Times& times : *measured) {
        absl::StrAppendFormat(&text, "%s %d KiB in %.1f us", text.back() == 'f' ? "" : ",",
                              times.bytes / 1024, times.*us);
      }
      return text;
    };
    if (links_.peer != nullptr) {
      absl::StrAppend(&description_, "peer memory (", links_.peer_form,
                      links_.one_gpu ? ", ranks take turns on one GPU" : "", ") ",
                      describe(&Times::peer_us));
      if (links_.nccl != nullptr) {
        absl::StrAppend(&description_, ", used up to ", one_shot_bytes_ / 1024, " KiB");
      }
    } else {
      absl::StrAppend(&description_, "no peer memory (", Reason(links_.peer_form), ")");
    }
    if (links_.nccl == nullptr) {
      absl::StrAppend(&description_, "; no NCCL (", Reason(links_.nccl_form), ")");
      return absl::OkStatus();
    }
    const absl::StatusOr<double> gbs = NcclGbs();
    if (!gbs.ok()) return gbs.status();
    absl::StrAppend(&description_, "; ", links_.nccl_form, " ", describe(&Times::nccl_us),
                    absl::StrFormat(", 16 MiB at %.0f GB/s a link", *gbs));
    return absl::OkStatus();
  }

  static std::string Reason(const std::string& form) {
    return form.empty() ? "not asked for" : form;
  }

  // Each link of a ring of n carries 2 (n - 1) / n times the message.
  absl::StatusOr<double> NcclGbs() {
    const absl::StatusOr<double> us =
        MeasureAllReduce(device_, *processes_, kBandwidthBytes, 4, NcclSum());
    if (!us.ok()) return us.status();
    const double gbs = 2.0 * (size() - 1) / size() * kBandwidthBytes / *us / 1e3;
    if (size() > 1 && gbs < options_.nccl_gbs_min) {
      return absl::FailedPreconditionError(absl::StrFormat(
          "NCCL moves %.2f GB/s between GPUs of this machine, as over sockets; expected %.2f or "
          "more (is /dev/shm too small, or a NCCL_* variable set?)",
          gbs, options_.nccl_gbs_min));
    }
    return gbs;
  }

  struct PeerSumFunction {
    CudaGroup& group;
    absl::Status operator()(float* data, size_t count) const {
      group.links_.peer->AllReduceSum(data, data, count);
      return group.Check();
    }
  };
  PeerSumFunction PeerSum() { return {*this}; }
  struct NcclSumFunction {
    CudaGroup& group;
    absl::Status operator()(float* data, size_t count) const {
      return group.ByNccl([&] { return group.links_.nccl->AllReduceSum(data, count); });
    }
  };
  NcclSumFunction NcclSum() { return {*this}; }

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

absl::StatusOr<std::unique_ptr<CudaCollectives>> OpenCudaCollectives(
    cuda::Device& device, const CudaCollectivesOptions& options) {
  absl::StatusOr<std::unique_ptr<Collectives>> processes = OpenSharedMemory(options.rendezvous);
  if (!processes.ok()) return processes.status();
  auto group = std::make_unique<CudaGroup>(device, options, *std::move(processes));
  if (absl::Status s = group->Start(); !s.ok()) return s;
  return group;
}

}  // namespace quartet
