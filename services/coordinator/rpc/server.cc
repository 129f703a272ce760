#include "services/coordinator/rpc/server.h"

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <chrono>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "proto/quartet/v1/engine.grpc.pb.h"
#include "proto/quartet/v1/worker.grpc.pb.h"
#include "services/common/log.h"
#include "services/coordinator/rpc/bidi_stream.h"
#include "services/coordinator/rpc/links.h"

namespace quartet::coordinator {
namespace {

constexpr int kMaxMessageBytes = 16 * 1024 * 1024;
// A peer that does not answer pings for this long is gone, also when its host is.
constexpr int kKeepaliveMs = 20000;

// One Generate call: submit first, then at most one truncate, and pauses; the end of the client's
// half cancels.
class GenerateStream final : public BidiStream<v1::EngineRequest, v1::EngineEvent>,
                             public ClientStream,
                             public std::enable_shared_from_this<GenerateStream> {
 public:
  GenerateStream(uint64_t id, Engine* engine, std::shared_ptr<StreamCount> count)
      : BidiStream(std::move(count)), id_(id), engine_(engine) {}

  void Begin() {
    KeepAlive(shared_from_this());
    ReadInto(&request_);
  }

  uint64_t id() const override { return id_; }
  void Send(v1::EngineEvent event) override { Enqueue(std::move(event)); }
  void End(const absl::Status& status) override { EndWith(ToGrpc(status), false); }
  void EndAfter(v1::EngineEvent last, const absl::Status& status) override {
    EndBehind(std::move(last), ToGrpc(status));
  }
  size_t buffered_bytes() const override { return queued_bytes(); }
  bool TakePaused() override {
    pause_queued_ = false;
    return paused_;
  }

  void OnReadDone(bool ok) override {
    if (!ok) {
      Gone(submitted_ ? "the client closed its half of the call, which cancels it"
                      : "the call ended without a submit");
      return;
    }
    switch (request_.message_case()) {
      case v1::EngineRequest::kSubmit:
        if (submitted_) return Refuse("a second submit in one call");
        if (!PushSubmit()) return End(absl::UnavailableError("the coordinator is shutting down"));
        submitted_ = true;
        if (gone_) Gone("");  // meanwhile, and the engine was not told
        break;
      case v1::EngineRequest::kTruncate:
        if (!submitted_) return Refuse("truncate before submit");
        if (truncated_) return Refuse("a second truncate in one call");
        truncated_ = true;
        engine_->events().Push(TruncateEvent{shared_from_this(), request_.truncate().n_tokens()});
        break;
      case v1::EngineRequest::kPause:
        if (!submitted_) return Refuse("pause before submit");
        paused_ = request_.pause().paused();
        if (!pause_queued_.exchange(true)) {
          engine_->events().Push(PauseEvent{shared_from_this()});
        }
        break;
      case v1::EngineRequest::MESSAGE_NOT_SET:
        return Refuse("a request without submit, truncate or pause");
    }
    ReadInto(&request_);
  }

  void OnCancel() override { Gone("the call was cancelled"); }

 protected:
  bool Merge(v1::EngineEvent& last, const v1::EngineEvent& next) override {
    if (!last.has_tokens() || !next.has_tokens()) return false;
    last.mutable_tokens()->MergeFrom(next.tokens());
    return true;
  }

 private:
  bool PushSubmit() {
    SubmitEvent event{shared_from_this(), std::move(*request_.mutable_submit()), std::nullopt};
    // Here and not on the engine's thread, whose steps would wait for it.
    if (!event.submit.grammar().empty()) event.constraint = engine_->Constrain(event.submit);
    return engine_->events().Push(std::move(event));
  }

  void Refuse(const std::string& message) {
    const auto self = shared_from_this();  // the end may let go of this stream at once
    // The end first: once the engine knows that the client is gone, it ends the call in its own
    // way.
    EndWith(grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, message), true);
    // What is already submitted ends with the call.
    Gone("");
  }

  // Tells the engine once; a call that ended in order is not in its table any more. With a message,
  // ends the call too.
  void Gone(const std::string& message) {
    gone_ = true;
    if (submitted_ && !told_gone_.exchange(true)) {
      engine_->events().Push(ClientGoneEvent{shared_from_this()});
    }
    if (!message.empty()) {
      EndWith(grpc::Status(
                  submitted_ ? grpc::StatusCode::CANCELLED : grpc::StatusCode::INVALID_ARGUMENT,
                  message),
              false);
    }
  }

  const uint64_t id_;
  Engine* const engine_;
  v1::EngineRequest request_;
  std::atomic<bool> submitted_{false};  // the engine has it
  std::atomic<bool> gone_{false};
  bool truncated_ = false;
  std::atomic<bool> paused_{false};
  std::atomic<bool> pause_queued_{false};
  std::atomic<bool> told_gone_{false};
};

class AttachStream final : public BidiStream<v1::FromWorker, v1::ToWorker>,
                           public WorkerStream,
                           public std::enable_shared_from_this<AttachStream> {
 public:
  AttachStream(uint64_t id, Engine* engine, std::shared_ptr<StreamCount> count)
      : BidiStream(std::move(count)), id_(id), engine_(engine) {}

  void Begin() {
    KeepAlive(shared_from_this());
    ReadInto(&message_);
  }

  uint64_t id() const override { return id_; }
  void Send(v1::ToWorker message) override { Enqueue(std::move(message)); }
  void End(const absl::Status& status) override { EndWith(ToGrpc(status), false); }
  void EndAfter(v1::ToWorker last, const absl::Status& status) override {
    EndBehind(std::move(last), ToGrpc(status));
  }
  void ReadNext() override { ReadInto(&message_); }

  void OnReadDone(bool ok) override {
    if (!ok) return Gone("its process ended or its connection broke");
    if (!engine_->events().Push(WorkerMessageEvent{shared_from_this(), std::move(message_)})) {
      End(absl::UnavailableError("the coordinator is shutting down"));
    }
  }
  void OnCancel() override { Gone("its process ended or its connection broke"); }

 private:
  void Gone(const std::string& why) {
    if (!told_gone_.exchange(true))
      engine_->events().Push(WorkerGoneEvent{shared_from_this(), why});
    EndWith(grpc::Status(grpc::StatusCode::CANCELLED, why), true);
  }

  const uint64_t id_;
  Engine* const engine_;
  v1::FromWorker message_;
  std::atomic<bool> told_gone_{false};
};

// Ends a stream that was never let in.
template <typename In, typename Out>
class RefusedStream final : public grpc::ServerBidiReactor<In, Out> {
 public:
  explicit RefusedStream(const grpc::Status& status) { this->Finish(status); }
  void OnDone() override { delete this; }
};

template <typename In, typename Out>
grpc::ServerBidiReactor<In, Out>* RefuseStream(const std::string& message) {
  // gRPC owns a reactor until OnDone.
  return std::make_unique<RefusedStream<In, Out>>(
             grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, message))
      .release();
}

class EngineService final : public v1::Engine::CallbackService {
 public:
  EngineService(Engine* engine, std::shared_ptr<StreamCount> count,
                std::function<std::string()> expose_metrics)
      : engine_(engine), count_(std::move(count)), expose_metrics_(std::move(expose_metrics)) {}

  grpc::ServerBidiReactor<v1::EngineRequest, v1::EngineEvent>* Generate(
      grpc::CallbackServerContext* context) override {
    if (!count_->TryAdd()) {
      engine_->CountRefused("streams");
      return RefuseStream<v1::EngineRequest, v1::EngineEvent>(
          absl::StrCat("the queue is full: ", count_->limit(), " calls are open"));
    }
    auto stream = std::make_shared<GenerateStream>(++next_id_, engine_, count_);
    stream->Begin();
    return stream.get();
  }

  grpc::ServerUnaryReactor* GetInfo(grpc::CallbackServerContext* context,
                                    const v1::GetInfoRequest* request,
                                    v1::EngineInfo* info) override {
    const EngineSnapshot snapshot = engine_->Snapshot();
    info->set_ready(snapshot.not_ready_reason.empty());
    info->set_not_ready_reason(snapshot.not_ready_reason);
    info->set_max_model_len(snapshot.max_model_len);
    info->set_max_num_seqs(engine_->options().max_num_seqs);
    info->set_vocab_size(snapshot.vocab_size);
    info->set_epoch(engine_->options().epoch);
    info->set_checkpoint_digest(snapshot.checkpoint_digest);
    info->set_vocabulary_digest(snapshot.vocabulary_digest);
    return Answer(context);
  }

  grpc::ServerUnaryReactor* PutVocabulary(grpc::CallbackServerContext* context,
                                          const v1::PutVocabularyRequest* request,
                                          v1::PutVocabularyResponse* response) override {
    const absl::StatusOr<std::string> digest = engine_->PutVocabulary(request->vocabulary());
    if (digest.ok()) response->set_digest(*digest);
    return Answer(context, ToGrpc(digest.status()));
  }

  grpc::ServerUnaryReactor* GetMetrics(grpc::CallbackServerContext* context,
                                       const v1::GetMetricsRequest* request,
                                       v1::MetricsText* metrics) override {
    metrics->set_text(expose_metrics_());
    return Answer(context);
  }

 private:
  static grpc::ServerUnaryReactor* Answer(grpc::CallbackServerContext* context,
                                          const grpc::Status& status = grpc::Status::OK) {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(status);
    return reactor;
  }

  Engine* const engine_;
  const std::shared_ptr<StreamCount> count_;
  const std::function<std::string()> expose_metrics_;
  std::atomic<uint64_t> next_id_{0};
};

class WorkerHubService final : public v1::WorkerHub::CallbackService {
 public:
  WorkerHubService(Engine* engine, std::shared_ptr<StreamCount> count)
      : engine_(engine), count_(std::move(count)) {}

  grpc::ServerBidiReactor<v1::FromWorker, v1::ToWorker>* Attach(
      grpc::CallbackServerContext* context) override {
    if (!count_->TryAdd()) {
      return RefuseStream<v1::FromWorker, v1::ToWorker>(
          absl::StrCat(count_->limit(), " workers are attached already"));
    }
    auto stream = std::make_shared<AttachStream>(++next_id_, engine_, count_);
    stream->Begin();
    return stream.get();
  }

 private:
  Engine* const engine_;
  const std::shared_ptr<StreamCount> count_;
  std::atomic<uint64_t> next_id_{0};
};

class GrpcServer final : public Server {
 public:
  GrpcServer(Engine* engine, std::function<std::string()> expose_metrics)
      : clients_(std::make_shared<StreamCount>(engine->options().max_client_streams())),
        workers_(std::make_shared<StreamCount>(engine->options().max_workers)),
        engine_service_(engine, clients_, std::move(expose_metrics)),
        hub_service_(engine, workers_) {}

  ~GrpcServer() override { Shutdown(absl::ZeroDuration()); }

  absl::Status Start(const std::vector<std::string>& listen) {
    grpc::ServerBuilder builder;
    builder.RegisterService(&engine_service_);
    builder.RegisterService(&hub_service_);
    builder.SetMaxReceiveMessageSize(kMaxMessageBytes);
    builder.SetMaxSendMessageSize(kMaxMessageBytes);
    // Two coordinators on one port would each get half of the workers.
    builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMs);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveMs);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 5000);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
    std::vector<int> ports(listen.size(), 0);
    for (size_t i = 0; i < listen.size(); ++i) {
      builder.AddListeningPort(listen[i], grpc::InsecureServerCredentials(), &ports[i]);
    }
    server_ = builder.BuildAndStart();
    for (size_t i = 0; i < listen.size(); ++i) {
      if (server_ == nullptr || ports[i] == 0) {
        return absl::UnavailableError(absl::StrCat(
            "cannot listen on ", listen[i],
            ": the address is in use or not of this machine (--listen takes host:port or "
            "unix:/path)"));
      }
      std::string address = listen[i];
      if (!absl::StartsWith(address, "unix:")) {
        address = absl::StrCat(address.substr(0, address.rfind(':')), ":", ports[i]);
      }
      addresses_.push_back(std::move(address));
    }
    return absl::OkStatus();
  }

  const std::vector<std::string>& addresses() const override { return addresses_; }

  bool AwaitAnswered(absl::Duration limit) override {
    const absl::Time deadline = absl::Now() + limit;
    return clients_->AwaitNone(limit) && workers_->AwaitNone(deadline - absl::Now());
  }

  void Shutdown(absl::Duration grace) override {
    if (server_ == nullptr) return;
    server_->Shutdown(std::chrono::system_clock::now() + absl::ToChronoMilliseconds(grace));
    server_->Wait();
    server_.reset();
  }

 private:
  std::shared_ptr<StreamCount> clients_;
  std::shared_ptr<StreamCount> workers_;
  EngineService engine_service_;
  WorkerHubService hub_service_;
  std::unique_ptr<grpc::Server> server_;
  std::vector<std::string> addresses_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Server>> StartServer(const std::vector<std::string>& listen,
                                                    Engine* engine,
                                                    std::function<std::string()> expose_metrics) {
  auto server = std::make_unique<GrpcServer>(engine, std::move(expose_metrics));
  if (absl::Status status = server->Start(listen); !status.ok()) return status;
  return server;
}

}  // namespace quartet::coordinator
