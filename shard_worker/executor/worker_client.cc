#include <grpcpp/grpcpp.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "proto/quartet/v1/worker.grpc.pb.h"
#include "shard_worker/executor/coordinator_link.h"

namespace quartet {
namespace {

constexpr int kMaxMessageBytes = 64 << 20;
// Plans are at most a few ahead; more than this in the queue means that the other side is out of
// its mind.
constexpr size_t kMaxQueued = 4096;

class GrpcLink final : public CoordinatorLink {
 public:
  GrpcLink(std::shared_ptr<grpc::Channel> channel, std::function<void(const std::string&)> on_end)
      : stub_(v1::WorkerHub::NewStub(channel)), on_end_(std::move(on_end)) {
    stream_ = stub_->Attach(&context_);
    reader_ = std::thread([this] { Read(); });
  }

  ~GrpcLink() override {
    context_.TryCancel();
    reader_.join();
  }

  bool Send(const v1::FromWorker& message) override {
    std::lock_guard lock(write_mutex_);
    return !writes_done_ && stream_->Write(message);
  }

  std::optional<v1::ToWorker> Next() override {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return over_ || !queue_.empty(); });
    if (queue_.empty()) return std::nullopt;
    v1::ToWorker message = std::move(queue_.front());
    queue_.pop_front();
    return message;
  }

  std::string end_reason() const override {
    std::lock_guard lock(mutex_);
    return end_reason_;
  }

  void Close(absl::Duration grace) override {
    {
      std::lock_guard lock(write_mutex_);
      if (!writes_done_) stream_->WritesDone();
      writes_done_ = true;
    }
    {
      std::unique_lock lock(mutex_);
      changed_.wait_for(lock, absl::ToChronoMilliseconds(grace), [this] { return over_; });
    }
    context_.TryCancel();
  }

 private:
  void Read() {
    v1::ToWorker message;
    while (stream_->Read(&message)) {
      if (message.has_ping()) {
        v1::FromWorker pong;
        pong.mutable_pong()->set_nonce(message.ping().nonce());
        Send(pong);
        continue;
      }
      if (message.has_abort()) {
        SetReason(absl::StrCat("the coordinator aborted epoch ", message.abort().epoch(), ": ",
                               message.abort().reason()));
        on_end_(end_reason());
        // Whoever works in the aborted epoch sees it through Next.
      }
      std::lock_guard lock(mutex_);
      if (queue_.size() >= kMaxQueued) {
        if (end_reason_.empty()) {
          end_reason_ = absl::StrCat("the coordinator is more than ", kMaxQueued,
                                     " messages ahead of this worker");
        }
        break;
      }
      queue_.push_back(std::move(message));
      changed_.notify_all();
      message.Clear();
    }
    context_.TryCancel();
    grpc::Status status;
    {
      // No write may be in flight when the call is finished.
      std::lock_guard lock(write_mutex_);
      writes_done_ = true;
      status = stream_->Finish();
    }
    SetReason(status.ok()
                  ? std::string("the coordinator closed the stream")
                  : absl::StrCat("the stream to the coordinator broke: ", status.error_message()));
    on_end_(end_reason());
    std::lock_guard lock(mutex_);
    over_ = true;
    changed_.notify_all();
  }

  void SetReason(std::string reason) {
    std::lock_guard lock(mutex_);
    if (end_reason_.empty()) end_reason_ = std::move(reason);
  }

  std::unique_ptr<v1::WorkerHub::Stub> stub_;
  const std::function<void(const std::string&)> on_end_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::FromWorker, v1::ToWorker>> stream_;

  std::mutex write_mutex_;
  bool writes_done_ = false;  // guarded by write_mutex_

  mutable std::mutex mutex_;
  std::condition_variable changed_;  // queue_ or over_
  std::deque<v1::ToWorker> queue_;   // guarded by mutex_
  std::string end_reason_;           // guarded by mutex_
  bool over_ = false;                // guarded by mutex_

  std::thread reader_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<CoordinatorLink>> DialCoordinator(const DialOptions& options) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(kMaxMessageBytes);
  arguments.SetMaxSendMessageSize(kMaxMessageBytes);
  // A proxy for the world outside is none for the coordinator.
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 1000);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 2000);
  std::shared_ptr<grpc::Channel> channel =
      grpc::CreateCustomChannel(options.address, grpc::InsecureChannelCredentials(), arguments);
  const absl::Time deadline = absl::Now() + options.patience;
  while (!channel->WaitForConnected(std::chrono::system_clock::now() +
                                    std::chrono::milliseconds(100))) {
    if (options.stop && options.stop()) return absl::CancelledError("asked to stop");
    if (absl::Now() >= deadline) {
      return absl::UnavailableError(absl::StrCat(
          "--coordinator ", options.address, ": nobody answers after ",
          absl::FormatDuration(options.patience), "; is quartet-coordinator running there?"));
    }
  }
  return std::make_unique<GrpcLink>(std::move(channel), options.on_end);
}

}  // namespace quartet
