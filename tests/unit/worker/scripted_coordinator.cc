#include "tests/unit/worker/scripted_coordinator.h"

#include <grpcpp/grpcpp.h>

#include <condition_variable>
#include <deque>
#include <mutex>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "proto/quartet/v1/worker.grpc.pb.h"

namespace quartet {
namespace {

using ServerStream = grpc::ServerReaderWriter<v1::ToWorker, v1::FromWorker>;

class GrpcWorkerStream final : public WorkerStream {
 public:
  GrpcWorkerStream(grpc::ServerContext* context, ServerStream* stream)
      : context_(context), stream_(stream) {}

  void Send(const v1::ToWorker& message) override {
    std::lock_guard lock(mutex_);
    if (!over_) stream_->Write(message);
  }

  std::optional<v1::FromWorker> Next(absl::Duration timeout) override {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, absl::ToChronoMilliseconds(timeout),
                      [this] { return over_ || !queue_.empty(); });
    if (queue_.empty()) return std::nullopt;
    v1::FromWorker message = std::move(queue_.front());
    queue_.pop_front();
    return message;
  }

  void Cut() override {
    std::lock_guard lock(mutex_);
    if (!over_) context_->TryCancel();
  }

  // On the server's thread, until the worker is gone.
  void Read() {
    v1::FromWorker message;
    while (stream_->Read(&message)) {
      std::lock_guard lock(mutex_);
      queue_.push_back(message);
      changed_.notify_all();
    }
    std::lock_guard lock(mutex_);
    over_ = true;
    changed_.notify_all();
  }

 private:
  grpc::ServerContext* const context_;
  ServerStream* const stream_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<v1::FromWorker> queue_;  // guarded by mutex_
  bool over_ = false;                 // guarded by mutex_
};

class GrpcCoordinator final : public ScriptedCoordinator, public v1::WorkerHub::Service {
 public:
  GrpcCoordinator() {
    int port = 0;
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
    address_ = absl::StrCat("127.0.0.1:", port);
  }

  ~GrpcCoordinator() override {
    for (WorkerStream* stream : Streams()) stream->Cut();
    server_->Shutdown(std::chrono::system_clock::now());
  }

  std::string address() const override { return address_; }

  WorkerStream* AwaitWorker(absl::Duration timeout) override {
    std::unique_lock lock(mutex_);
    if (!arrived_.wait_for(lock, absl::ToChronoMilliseconds(timeout),
                           [this] { return streams_.size() > taken_; })) {
      return nullptr;
    }
    return streams_[taken_++].get();
  }

  grpc::Status Attach(grpc::ServerContext* context, ServerStream* stream) override {
    GrpcWorkerStream* worker = nullptr;
    {
      std::lock_guard lock(mutex_);
      streams_.push_back(std::make_unique<GrpcWorkerStream>(context, stream));
      worker = streams_.back().get();
      arrived_.notify_all();
    }
    worker->Read();
    return grpc::Status::OK;
  }

 private:
  std::vector<WorkerStream*> Streams() {
    std::lock_guard lock(mutex_);
    std::vector<WorkerStream*> out;
    for (const auto& stream : streams_) out.push_back(stream.get());
    return out;
  }

  std::string address_;
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::vector<std::unique_ptr<GrpcWorkerStream>> streams_;  // guarded by mutex_
  size_t taken_ = 0;                                        // guarded by mutex_
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace

std::unique_ptr<ScriptedCoordinator> ScriptedCoordinator::Start() {
  return std::make_unique<GrpcCoordinator>();
}

}  // namespace quartet
