#include "services/gateway/gateway.h"

#include <filesystem>
#include <mutex>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "services/common/admin_server.h"
#include "services/common/log.h"
#include "services/common/metrics.h"
#include "services/gateway/access/key_file.h"
#include "services/gateway/edge.h"
#include "services/gateway/grpc/grpc_server.h"
#include "services/gateway/openai/openai_service.h"
#include "services/gateway/routing/gateway_core.h"
#include "services/gateway/routing/text_pool.h"
#include "services/gateway/text/grammar/answer_grammar.h"
#include "services/gateway/text/model_text.h"

namespace quartet::gateway {
namespace {

std::string FolderName(const std::string& path) {
  std::error_code ignored;
  std::filesystem::path folder = std::filesystem::absolute(path, ignored).lexically_normal();
  if (!folder.has_filename()) folder = folder.parent_path();
  return folder.filename().string();
}

class Running final : public Gateway {
 public:
  Running(const GatewayConfig& config, std::unique_ptr<KeyFile> keys, const StatusChannel* status)
      : config_(config),
        keys_(std::move(keys)),
        status_(status),
        metrics_(MakeMetrics()),
        pool_(std::make_unique<TextPool>(config.text_threads)) {
    engine_ =
        ConnectEngine({.address = config_.coordinator,
                       .poll_interval = config_.poll_interval,
                       .gives_vocabulary = true,
                       .on_change = [this](const EngineState& state) { EngineChanged(state); }});
    core_ = std::make_unique<GatewayCore>(
        GatewayOptions{.served_model_name = config_.served_model_name.empty()
                                                ? FolderName(config_.model_dir)
                                                : config_.served_model_name,
                       .trust_content_tokens = config_.trust_content_tokens,
                       .share_cache_between_keys = config_.share_cache_between_keys,
                       .any_model = config_.any_model_name,
                       .stop_in_reasoning = config_.stop_in_reasoning,
                       .nonempty_content = config_.nonempty_content,
                       .otel_metrics = config_.otel_metrics,
                       .keys = keys_ ? keys_->gate() : nullptr},
        engine_.get(), pool_.get(), metrics_.get());
    if (keys_) {
      keys_->Watch(config_.key_file_interval, [](const absl::Status& status, size_t keys) {
        if (status.ok()) {
          LogInfo(absl::StrCat("the API keys have been read again: ", keys, " in force"));
        } else {
          LogError(absl::StrCat("--api-key-file: ", status.message(), "; the ", keys,
                                " keys of before stay in force"));
        }
      });
    }
  }

  ~Running() override {
    core_->StartDraining();
    // Doors first, then what works behind them: each of these waits for what it has started.
    if (http_) http_->Stop();
    core_->AbortAll(absl::UnavailableError("the server is shutting down"));
    grpc_holder_.Clear();
    admin_.reset();
    pool_.reset();
    core_->AbortAll(absl::UnavailableError("the server is shutting down"));
    engine_.reset();
  }

  absl::Status Start() {
    HttpServerOptions http = config_.http;
    SetEdgeHooks(core_.get(), &http);
    auto server = StartHttpServer(std::move(http), GatewayRoutes(core_.get()));
    if (!server.ok()) return Named("--listen-http", server.status());
    http_ = *std::move(server);
    if (!config_.listen_grpc.empty()) {
      auto grpc = StartGrpcServer(config_.listen_grpc, core_.get());
      if (!grpc.ok()) return Named("--listen-grpc", grpc.status());
      grpc_address_ = (*grpc)->address();
      grpc_holder_.Set(*std::move(grpc));
    }
    if (!config_.listen_admin.empty()) {
      auto admin = StartAdminServer(
          config_.listen_admin, {.metrics = [this] { return GatewayMetricsText(*core_); },
                                 .not_ready_reason = [this] { return core_->NotReadyReason(); }});
      if (!admin.ok()) return Named("--listen-admin", admin.status());
      admin_ = *std::move(admin);
    }
    return absl::OkStatus();
  }

  std::string http_address() const override { return http_->address(); }
  std::string grpc_address() const override { return grpc_address_; }
  std::string admin_address() const override { return admin_ ? admin_->address() : ""; }

  absl::Status LoadModel() override {
    auto model =
        text::LoadModelText(config_.model_dir, {.chat_template_file = config_.chat_template_file});
    if (!model.ok()) return model.status();
    LogInfo(absl::StrCat("model text loaded from ", config_.model_dir, ", chat template from ",
                         (*model)->chat_template_origin));
    auto vocabulary = text::GrammarVocabulary(*(*model)->tokenizer, (*model)->defaults.end);
    if (!vocabulary.ok()) return vocabulary.status();
    core_->SetModel(*std::move(model));
    engine_->SetVocabulary(vocabulary->Serialize());
    UpdateReadiness();
    return absl::OkStatus();
  }

  std::string NotReadyReason() const override { return core_->NotReadyReason(); }

  void Drain(absl::Duration patience, absl::Duration farewell) override {
    core_->StartDraining();
    UpdateReadiness();
    http_->Drain();
    if (!http_->WaitIdle(absl::ToChronoMilliseconds(patience)))
      LogWarning("open requests are ended by the shutdown");
    core_->AbortAll(absl::UnavailableError("the server is shutting down"));
    http_->WaitIdle(absl::ToChronoMilliseconds(farewell));
    grpc_holder_.Shutdown(absl::Milliseconds(500));
  }

 private:
  static absl::Status Named(const char* flag, const absl::Status& status) {
    return {status.code(), absl::StrCat(flag, ": ", status.message())};
  }

  // The engine client's thread reports changes before and after the gRPC server exists.
  class GrpcHolder {
   public:
    void Set(std::unique_ptr<GrpcServer> server) {
      std::lock_guard lock(mutex_);
      server_ = std::move(server);
      server_->SetServing(serving_);
    }
    void SetServing(bool serving) {
      std::lock_guard lock(mutex_);
      serving_ = serving;
      if (server_) server_->SetServing(serving);
    }
    void Shutdown(absl::Duration grace) {
      std::lock_guard lock(mutex_);
      if (server_) server_->Shutdown(grace);
      server_.reset();
    }
    void Clear() { Shutdown(absl::ZeroDuration()); }

   private:
    std::mutex mutex_;
    std::unique_ptr<GrpcServer> server_;
    bool serving_ = false;
  };

  void EngineChanged(const EngineState& state) {
    if (state.ready) {
      LogInfo(absl::StrCat("the coordinator is ready: context ", state.max_model_len, " tokens, ",
                           state.max_num_seqs, " sequences at once"));
    } else {
      LogWarning(absl::StrCat("not ready: ", state.not_ready_reason));
    }
    std::lock_guard lock(mutex_);
    engine_ready_ = state.ready;
    Tell();
  }

  void UpdateReadiness() {
    std::lock_guard lock(mutex_);
    model_loaded_ = core_->model() != nullptr;
    draining_ = draining_ || core_->NotReadyReason() == "the server is shutting down";
    Tell();
  }

  // With mutex_ held.
  void Tell() {
    const bool ready = engine_ready_ && model_loaded_ && !draining_;
    grpc_holder_.SetServing(ready);
    metrics_->GetGauge("quartet_gateway_ready", "1 if requests are accepted.").Set(ready ? 1 : 0);
    if (ready && !ready_told_ && status_) status_->Ready();
    ready_told_ = ready_told_ || ready;
  }

  const GatewayConfig config_;
  const std::unique_ptr<KeyFile> keys_;  // null: anybody may ask
  const StatusChannel* const status_;
  std::mutex mutex_;
  bool engine_ready_ = false;
  bool model_loaded_ = false;
  bool draining_ = false;
  bool ready_told_ = false;
  GrpcHolder grpc_holder_;
  std::string grpc_address_;
  std::unique_ptr<Metrics> metrics_;
  std::unique_ptr<TextPool> pool_;
  std::unique_ptr<EngineClient> engine_;
  std::unique_ptr<GatewayCore> core_;
  std::unique_ptr<HttpServer> http_;
  std::unique_ptr<AdminServer> admin_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Gateway>> StartGateway(const GatewayConfig& config,
                                                      const StatusChannel* status) {
  std::unique_ptr<KeyFile> keys;
  if (!config.api_key_file.empty()) {
    auto loaded = KeyFile::Open(config.api_key_file, config.key_limits);
    if (!loaded.ok()) {
      return absl::Status(loaded.status().code(),
                          absl::StrCat("--api-key-file: ", loaded.status().message()));
    }
    keys = *std::move(loaded);
  }
  auto gateway = std::make_unique<Running>(config, std::move(keys), status);
  if (absl::Status started = gateway->Start(); !started.ok()) return started;
  return gateway;
}

}  // namespace quartet::gateway
