#include "services/gateway/grpc/grpc_server.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>

#include <deque>
#include <mutex>
#include <optional>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "proto/quartet/v1/inference.grpc.pb.h"
#include "services/common/log.h"
#include "services/common/process.h"
#include "services/gateway/exchange/exchange.h"
#include "services/gateway/grpc/convert.h"

namespace quartet::gateway {
namespace {

constexpr size_t kPauseAtBytes = 256 << 10;
constexpr size_t kResumeAtBytes = 64 << 10;
constexpr int kMessageBytesMax = 64 << 20;
constexpr absl::Duration kDeadlineMax = absl::Hours(24 * 365);

grpc::StatusCode CodeOf(int http_status) {
  switch (http_status) {
    case 400:
      return grpc::StatusCode::INVALID_ARGUMENT;
    case 401:
      return grpc::StatusCode::UNAUTHENTICATED;
    case 404:
      return grpc::StatusCode::NOT_FOUND;
    case 429:
      return grpc::StatusCode::RESOURCE_EXHAUSTED;
    case 503:
      return grpc::StatusCode::UNAVAILABLE;
    case 504:
      return grpc::StatusCode::DEADLINE_EXCEEDED;
    default:
      return grpc::StatusCode::INTERNAL;
  }
}

// A status has no place for the field, so the message begins with it.
grpc::Status ToGrpc(const ApiError& error) {
  const bool named = error.param.empty() || error.message.starts_with(error.param);
  return {CodeOf(error.status),
          named ? error.message : absl::StrCat(error.param, ": ", error.message)};
}

std::string Authorization(const grpc::CallbackServerContext& context) {
  const auto entry = context.client_metadata().find("authorization");
  if (entry == context.client_metadata().end()) return "";
  return {entry->second.data(), entry->second.size()};
}

// Whether the call's metadata hold a key that is let through; a lease on success, null if no key is
// asked for.
std::variant<std::shared_ptr<KeyLease>, ApiError> Admit(KeyGate* keys,
                                                        const std::string& authorization,
                                                        bool counted) {
  if (keys == nullptr) return std::shared_ptr<KeyLease>();
  auto result = keys->Admit(authorization, counted);
  if (auto* lease = std::get_if<std::shared_ptr<KeyLease>>(&result)) return std::move(*lease);
  ApiError error = FromKeyRefusal(std::get<KeyRefusal>(result));
  if (error.status == 401) error.message += " (metadata authorization: Bearer KEY)";
  return error;
}

// One Generate call. Kept alive by gRPC until OnDone, and by the pool's job and the generation
// while they need it.
class GenerateCall final : public grpc::ServerWriteReactor<v1::GenerateResponse>,
                           public GenerationObserver,
                           public std::enable_shared_from_this<GenerateCall> {
 public:
  // `request` lives as long as the call does, but only until OnDone: it is copied.
  GenerateCall(GatewayCore* core, grpc::CallbackServerContext* context,
               const v1::GenerateRequest& request)
      : core_(core),
        context_(context),
        request_(request),
        authorization_(Authorization(*context)),
        deadline_(absl::FromChrono(context->deadline())) {}

  void Begin() {
    self_ = shared_from_this();
    auto admitted = Admit(core_->options().keys, authorization_, true);
    if (auto* error = std::get_if<ApiError>(&admitted)) {
      Fail(*error);
      return;
    }
    {
      std::lock_guard lock(mutex_);
      lease_ = std::get<std::shared_ptr<KeyLease>>(std::move(admitted));
    }
    if (!core_->NotReadyReason().empty()) {
      Fail(NotReadyError());
      return;
    }
    if (!core_->pool()->Post(request_.ByteSizeLong(),
                             [self = shared_from_this()] { self->Prepare(); })) {
      Fail({.status = 429,
            .message = "too many requests are waiting; try again",
            .retry_after_s = 1});
    }
  }

  void OnAdmitted(uint32_t choice, const ChoiceUsage&) override {
    std::lock_guard lock(mutex_);
    if (end_ || choice >= prompt_ids_.size()) return;
    Queue(PromptIds(choice, prompt_ids_[choice]));
    Pump();
  }

  bool OnUpdate(ChoiceUpdate update) override {
    std::lock_guard lock(mutex_);
    if (end_) return true;
    for (v1::GenerateResponse& response : ToResponses(update, style_)) Queue(std::move(response));
    Pump();
    if (queued_bytes_ < kPauseAtBytes) return true;
    paused_ = true;
    return false;
  }

  void OnFinished() override { End(grpc::Status::OK); }

  void OnError(const absl::Status& status, bool admitted) override {
    LogWarning(absl::StrCat("a gRPC request failed: ", status.ToString()));
    Fail(FromEngineStatus(status, admitted));
  }

  void OnWriteDone(bool ok) override {
    std::shared_ptr<Generation> resume;
    {
      std::lock_guard lock(mutex_);
      writing_ = false;
      if (ok) {
        queued_bytes_ -= queue_.front().ByteSizeLong();
        queue_.pop_front();
      } else {
        Drop();
      }
      if (paused_ && queued_bytes_ < kResumeAtBytes) {
        paused_ = false;
        resume = generation_;
        resume_early_ = !resume;
      }
      Pump();
    }
    if (resume) resume->SetPaused(false);
  }

  // The client cancelled, its deadline passed or its connection broke.
  void OnCancel() override {
    std::shared_ptr<Generation> generation;
    {
      std::lock_guard lock(mutex_);
      cancelled_ = true;
      generation = generation_;
      Drop();
      end_ = grpc::Status::CANCELLED;
      Pump();
    }
    if (generation) generation->Cancel();
  }

  void OnDone() override { self_.reset(); }

 private:
  void Prepare() {
    {
      std::lock_guard lock(mutex_);
      if (cancelled_) return;
    }
    const auto model = core_->model();
    auto result = PrepareGenerate(
        request_, MakePrepareContext(*core_, model.get(), authorization_, TimeLeft()));
    if (auto* error = std::get_if<ApiError>(&result)) {
      Fail(*error);
      return;
    }
    Prepared& prepared = std::get<Prepared>(result);
    style_ = prepared.style;
    prompt_ids_ = std::move(prepared.prompt_ids);
    if (prepared.plan.request_id.empty()) prepared.plan.request_id = RandomId("req_");
    if (const auto refusal = core_->HoldTokens(&prepared.plan)) {
      Fail(FromKeyRefusal(*refusal));
      return;
    }
    auto generation = core_->Start(std::move(prepared.plan), shared_from_this(), "grpc");
    bool cancelled = false;
    bool resume = false;
    {
      std::lock_guard lock(mutex_);
      generation_ = generation;
      cancelled = cancelled_;
      resume = resume_early_;
    }
    if (resume) generation->SetPaused(false);
    if (cancelled) generation->Cancel();
  }

  // Zero if the client set no deadline, which gRPC shows as one that is ages away.
  absl::Duration TimeLeft() const {
    const absl::Duration left = deadline_ - absl::Now();
    return left > kDeadlineMax ? absl::ZeroDuration() : left;
  }

  void Fail(const ApiError& error) {
    std::lock_guard lock(mutex_);
    if (end_) return;
    end_ = ToGrpc(error);
    // As long as the call is not finished its context is there.
    if (!finished_) {
      if (error.retry_after_s > 0) {
        context_->AddTrailingMetadata("retry-after", absl::StrCat(error.retry_after_s));
      }
      if (!error.code.empty()) context_->AddTrailingMetadata("error-code", error.code);
    }
    Pump();
  }

  void End(grpc::Status status) {
    std::lock_guard lock(mutex_);
    if (!end_) end_ = std::move(status);
    Pump();
  }

  // With mutex_ held.
  void Queue(v1::GenerateResponse response) {
    queued_bytes_ += response.ByteSizeLong();
    queue_.push_back(std::move(response));
  }

  // With mutex_ held. What is being written stays until its write is done.
  void Drop() {
    queue_.resize(writing_ ? 1 : 0);
    queued_bytes_ = writing_ ? queue_.front().ByteSizeLong() : 0;
  }

  // With mutex_ held.
  void Pump() {
    if (writing_ || finished_) return;
    if (!queue_.empty()) {
      writing_ = true;
      StartWrite(&queue_.front());
    } else if (end_) {
      finished_ = true;
      lease_.reset();  // before the client learns of the end, so that it may ask again at once
      Finish(*end_);
    }
  }

  GatewayCore* const core_;
  grpc::CallbackServerContext* const context_;
  const v1::GenerateRequest request_;
  const std::string authorization_;
  const absl::Time deadline_;
  // Set before the generation starts.
  AnswerStyle style_;
  std::vector<std::vector<int32_t>> prompt_ids_;  // of each choice, where they are asked for
  std::shared_ptr<GenerateCall> self_;

  std::mutex mutex_;
  std::shared_ptr<KeyLease> lease_;  // null after the end, and where no key is asked for
  std::deque<v1::GenerateResponse> queue_;
  size_t queued_bytes_ = 0;
  std::optional<grpc::Status> end_;
  std::shared_ptr<Generation> generation_;
  bool writing_ = false;
  bool finished_ = false;
  bool cancelled_ = false;
  bool paused_ = false;
  bool resume_early_ = false;  // drained before generation_ was set
};

class Service final : public v1::Inference::CallbackService {
 public:
  explicit Service(GatewayCore* core) : core_(core) {}

  grpc::ServerWriteReactor<v1::GenerateResponse>* Generate(
      grpc::CallbackServerContext* context, const v1::GenerateRequest* request) override {
    auto call = std::make_shared<GenerateCall>(core_, context, *request);
    call->Begin();
    return call.get();
  }

  grpc::ServerUnaryReactor* GetModel(grpc::CallbackServerContext* context,
                                     const v1::GetModelRequest*,
                                     v1::GetModelResponse* response) override {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    const auto admitted = Admit(core_->options().keys, Authorization(*context), false);
    if (const auto* error = std::get_if<ApiError>(&admitted)) {
      reactor->Finish(ToGrpc(*error));
      return reactor;
    }
    const EngineState engine = core_->engine()->state();
    response->set_id(core_->options().served_model_name);
    response->set_max_model_len(engine.max_model_len);
    const auto model = core_->model();
    response->set_vocab_size(model ? static_cast<uint32_t>(model->defaults.end.vocab_size)
                                   : engine.vocab_size);
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }

 private:
  GatewayCore* const core_;
};

class Server final : public GrpcServer {
 public:
  explicit Server(GatewayCore* core) : service_(core) {}
  ~Server() override { Shutdown(absl::ZeroDuration()); }

  absl::Status Start(const std::string& listen) {
    auto parts = ParseHostPort(listen);
    if (!parts.ok()) return parts.status();
    // These switch on for servers built afterwards in this process; saying it twice is harmless.
    grpc::EnableDefaultHealthCheckService(true);
    grpc::reflection::InitProtoReflectionServerBuilderPlugin();
    int port = 0;
    grpc::ServerBuilder builder;
    builder.AddListeningPort(listen, grpc::InsecureServerCredentials(), &port);
    builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
    builder.SetMaxReceiveMessageSize(kMessageBytesMax);
    builder.RegisterService(&service_);
    server_ = builder.BuildAndStart();
    if (!server_ || port == 0) {
      return absl::UnavailableError(
          absl::StrCat("cannot listen on ", listen, ": the address is in use or not ours"));
    }
    const bool v6 = parts->host.find(':') != std::string::npos;
    address_ = absl::StrCat(v6 ? "[" : "", parts->host, v6 ? "]" : "", ":", port);
    SetServing(false);
    return absl::OkStatus();
  }

  std::string address() const override { return address_; }

  void SetServing(bool serving) override {
    if (auto* health = server_->GetHealthCheckService()) {
      health->SetServingStatus(serving);
      health->SetServingStatus("quartet.v1.Inference", serving);
    }
  }

  void Shutdown(absl::Duration grace) override {
    if (!server_) return;
    server_->Shutdown(absl::ToChronoTime(absl::Now() + grace));
    server_->Wait();
    server_.reset();
  }

 private:
  Service service_;
  std::unique_ptr<grpc::Server> server_;
  std::string address_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<GrpcServer>> StartGrpcServer(const std::string& listen,
                                                            GatewayCore* core) {
  auto server = std::make_unique<Server>(core);
  if (absl::Status status = server->Start(listen); !status.ok()) return status;
  return server;
}

}  // namespace quartet::gateway
