#include "tests/unit/worker/scripted_coordinator.h"

#include <grpcpp/grpcpp.h>

#include <deque>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "proto/quartet/v1/worker.grpc.pb.h"

namespace quartet {
namespace {

using ServerStream = grpc::ServerReaderWriter<v1::ToWorker, v1::FromWorker>;

class GrpcWorkerStream final : public WorkerStream {
 public:
  GrpcWorkerStream(grpc::ServerContext* context, ServerStream* stream)
      : context_(context), stream_(stream) {}

  void Send(const v1::ToWorker& message) override {
    absl::MutexLock lock(&mutex_);
    if (!over_) stream_->Write(message);
  }

  std::optional<v1::FromWorker> Next(absl::Duration timeout) override {
    absl::MutexLock lock(&mutex_);
    const auto ready = [this] { return over_ || !queue_.empty(); };
    mutex_.AwaitWithTimeout(absl::Condition(&ready), timeout);
    if (queue_.empty()) return std::nullopt;
    v1::FromWorker message = std::move(queue_.front());
    queue_.pop_front();
    return message;
  }

  void Cut() override {
    absl::MutexLock lock(&mutex_);
    if (!over_) context_->TryCancel();
  }

  // On the server's thread, until the worker is gone.
  void Read() {
    v1::FromWorker message;
    while (stream_->Read(&message)) {
      absl::MutexLock lock(&mutex_);
      queue_.push_back(message);
    }
    absl::MutexLock lock(&mutex_);
    over_ = true;
  }

 private:
  grpc::ServerContext* const context_;
  ServerStream* const stream_;
  absl::Mutex mutex_;
  std::deque<v1::FromWorker> queue_ ABSL_GUARDED_BY(mutex_);
  bool over_ ABSL_GUARDED_BY(mutex_) = false;
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
    absl::MutexLock lock(&mutex_);
    const auto ready = [this] { return streams_.size() > taken_; };
    if (!mutex_.AwaitWithTimeout(absl::Condition(&ready), timeout)) return nullptr;
    return streams_[taken_++].get();
  }

  grpc::Status Attach(grpc::ServerContext* context, ServerStream* stream) override {
    GrpcWorkerStream* worker = nullptr;
    {
      absl::MutexLock lock(&mutex_);
      streams_.push_back(std::make_unique<GrpcWorkerStream>(context, stream));
      worker = streams_.back().get();
    }
    worker->Read();
    return grpc::Status::OK;
  }

 private:
  std::vector<WorkerStream*> Streams() {
    absl::MutexLock lock(&mutex_);
    std::vector<WorkerStream*> out;
    for (const auto& stream : streams_) out.push_back(stream.get());
    return out;
  }

  std::string address_;
  absl::Mutex mutex_;
  std::vector<std::unique_ptr<GrpcWorkerStream>> streams_ ABSL_GUARDED_BY(mutex_);
  size_t taken_ ABSL_GUARDED_BY(mutex_) = 0;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace

std::unique_ptr<ScriptedCoordinator> ScriptedCoordinator::Start() {
  return std::make_unique<GrpcCoordinator>();
}

}  // namespace quartet
