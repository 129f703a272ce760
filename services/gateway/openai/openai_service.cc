#include "services/gateway/openai/openai_service.h"

#include <mutex>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "services/common/log.h"
#include "services/gateway/http/sse.h"
#include "services/gateway/openai/answer.h"
#include "services/gateway/openai/api_error.h"
#include "services/gateway/openai/prepare.h"
#include "services/gateway/text/json.h"

namespace quartet::gateway {
namespace {

// One request from its body to the end of its answer. Kept alive by the call's callbacks, the
// pool's job and the generation; all of them let go at the end.
class Exchange final : public GenerationObserver, public std::enable_shared_from_this<Exchange> {
 public:
  Exchange(GatewayCore* core, bool chat, std::shared_ptr<HttpCall> call)
      : core_(core), chat_(chat), call_(std::move(call)) {}

  void Begin() {
    if (!core_->NotReadyReason().empty()) {
      call_->Reply(ApiErrorReply(NotReadyError()));
      return;
    }
    if (auto error = ReadDeadline()) {
      call_->Reply(ApiErrorReply(*error));
      return;
    }
    auto self = shared_from_this();
    call_->Watch([self] { self->Closed(); }, [self] { self->Drained(); });
    auto body = std::make_shared<std::string>(call_->TakeBody());
    const size_t bytes = body->size();
    if (!core_->pool()->Post(bytes, [self, body] { self->Prepare(*body); })) {
      call_->Reply(ApiErrorReply({.status = 429,
                                  .message = "too many requests are waiting; try again",
                                  .retry_after_s = 1}));
    }
  }

  void OnAdmitted(uint32_t choice, const ChoiceUsage& usage) override {
    writer_->NoteUsage(choice, usage);
    if (!style_.stream) return;
    if (!streaming_) {
      streaming_ = true;
      HttpStreamHead head = SseHead();
      head.headers.emplace_back("X-Request-Id", request_id_);
      call_->StartStream(std::move(head));
    }
    if (writer_->NeedsFirstChunk()) {
      call_->Write(SseData(
          writer_->FirstChunk(choice, choice < echo_texts_.size() ? &echo_texts_[choice] : nullptr,
                              choice < prompt_ids_.size() ? &prompt_ids_[choice] : nullptr)));
    }
  }

  bool OnUpdate(ChoiceUpdate update) override {
    if (!style_.stream) {
      writer_->Collect(update);
      return true;
    }
    std::string events;
    for (const std::string& chunk : writer_->Chunks(update)) events += SseData(chunk);
    return events.empty() || call_->Write(events);
  }

  void OnFinished() override {
    NoteUsage();
    if (!style_.stream) {
      HttpReply reply;
      reply.headers.emplace_back("X-Request-Id", request_id_);
      reply.body = writer_->Whole(echo_texts_, prompt_ids_);
      call_->Reply(std::move(reply));
      return;
    }
    std::string events;
    if (style_.include_usage) events += SseData(writer_->UsageChunk());
    events += kSseDone;
    call_->Write(events);
    call_->EndStream();
  }

  void OnError(const absl::Status& status, bool admitted) override {
    const ApiError error = FromEngineStatus(status, admitted);
    LogWarning(absl::StrCat("request ", request_id_, " failed: ", status.ToString()));
    NoteUsage();
    if (!streaming_) {
      call_->Reply(ApiErrorReply(error));
      return;
    }
    call_->Note("stream_error", absl::StrCat(error.status));
    call_->Write(absl::StrCat(SseData(ApiErrorJson(error)), std::string(kSseDone)));
    call_->EndStream();
  }

 private:
  std::optional<ApiError> ReadDeadline() {
    const std::string& header = call_->request().deadline_ms;
    if (header.empty()) return std::nullopt;
    uint32_t ms = 0;
    if (!absl::SimpleAtoi(header, &ms) || ms == 0) {
      return ApiError{.message = absl::StrCat("X-Request-Deadline-Ms is '", header.substr(0, 40),
                                              "'; it must be a whole number of milliseconds, at "
                                              "least 1")};
    }
    deadline_ = absl::Now() + absl::Milliseconds(ms);
    return std::nullopt;
  }

  // On the text pool.
  void Prepare(const std::string& body) {
    {
      std::lock_guard lock(mutex_);
      if (closed_) return;
    }
    const auto model = core_->model();
    const EngineState engine = core_->engine()->state();
    const PrepareContext context{
        .model = model.get(),
        .served_model_name = core_->options().served_model_name,
        .max_model_len = engine.max_model_len,
        .trust_content_tokens = core_->options().trust_content_tokens,
        .share_cache_between_keys = core_->options().share_cache_between_keys,
        .authorization = call_->request().authorization,
        .total_deadline =
            deadline_ == absl::InfiniteFuture() ? absl::ZeroDuration() : deadline_ - absl::Now()};
    auto result = chat_ ? PrepareChat(body, context) : PrepareCompletion(body, context);
    if (auto* error = std::get_if<ApiError>(&result)) {
      call_->Reply(ApiErrorReply(*error));
      return;
    }
    Prepared& prepared = std::get<Prepared>(result);
    style_ = prepared.style;
    echo_texts_ = std::move(prepared.echo_texts);
    prompt_ids_ = std::move(prepared.prompt_ids);
    request_id_ = !prepared.plan.request_id.empty()             ? prepared.plan.request_id
                  : !call_->request().client_request_id.empty() ? call_->request().client_request_id
                                                                : RandomId("req_");
    // The client's own name for a request may hold anything; headers and logs take only what is
    // plain.
    for (char& c : request_id_) {
      if (!absl::ascii_isalnum(static_cast<unsigned char>(c)) && c != '-' && c != '_' && c != '.' &&
          c != ':')
        c = '_';
    }
    prepared.plan.request_id = request_id_;
    call_->Note("request", request_id_);
    writer_.emplace(AnswerHead{.id = RandomId(chat_ ? "chatcmpl-" : "cmpl-"),
                               .created_unix_s = absl::ToUnixSeconds(absl::Now()),
                               .model = core_->options().served_model_name,
                               .system_fingerprint = absl::StrCat(
                                   "quartet-", engine.checkpoint_digest.substr(0, 12))},
                    style_, prepared.plan.choices.size());
    auto generation =
        core_->Start(std::move(prepared.plan), shared_from_this(), chat_ ? "chat" : "completions");
    bool closed = false;
    bool drained = false;
    {
      std::lock_guard lock(mutex_);
      generation_ = generation;
      closed = closed_;
      drained = drained_early_;
    }
    if (drained) generation->SetPaused(false);
    if (closed) generation->Cancel();
  }

  void Closed() {
    std::shared_ptr<Generation> generation;
    {
      std::lock_guard lock(mutex_);
      closed_ = true;
      generation = generation_;
    }
    if (generation) generation->Cancel();
  }

  void Drained() {
    std::shared_ptr<Generation> generation;
    {
      std::lock_guard lock(mutex_);
      generation = generation_;
      if (!generation) drained_early_ = true;
    }
    if (generation) generation->SetPaused(false);
  }

  void NoteUsage() {
    const ChoiceUsage usage = writer_->TotalUsage();
    call_->Note("prompt_tokens", absl::StrCat(usage.prompt_tokens));
    call_->Note("completion_tokens", absl::StrCat(usage.completion_tokens));
  }

  GatewayCore* const core_;
  const bool chat_;
  const std::shared_ptr<HttpCall> call_;
  absl::Time deadline_ = absl::InfiniteFuture();  // set by Begin

  std::mutex mutex_;
  std::shared_ptr<Generation> generation_;
  bool closed_ = false;
  bool drained_early_ = false;  // output was read before generation_ was set

  // Set by Prepare before the generation starts, then used by the observer's calls only.
  AnswerStyle style_;
  std::vector<std::string> echo_texts_;
  std::vector<std::vector<int32_t>> prompt_ids_;
  std::string request_id_;
  std::optional<AnswerWriter> writer_;
  bool streaming_ = false;
};

std::string ModelJson(const GatewayCore& core) {
  std::string out = "{\"id\":";
  text::AppendJsonString(core.options().served_model_name, &out);
  absl::StrAppend(&out, ",\"object\":\"model\",\"created\":", core.created_unix_s(),
                  ",\"owned_by\":\"quartet\",\"max_model_len\":");
  const uint32_t length = core.engine()->state().max_model_len;
  if (length > 0) {
    absl::StrAppend(&out, length, "}");
  } else {
    out += "null}";
  }
  return out;
}

void ReplyModels(GatewayCore* core, HttpCall& call) {
  call.Reply({.body = absl::StrCat("{\"object\":\"list\",\"data\":[", ModelJson(*core), "]}")});
}

void ReplyModel(GatewayCore* core, HttpCall& call) {
  const std::string id = call.request().path.substr(std::string_view("/v1/models/").size());
  if (id == core->options().served_model_name) {
    call.Reply({.body = ModelJson(*core)});
    return;
  }
  call.Reply(
      ApiErrorReply({.status = 404,
                     .message = absl::StrCat("the model '", id.substr(0, 200), "' does not exist"),
                     .param = "model",
                     .code = "model_not_found"}));
}

void ReplyReady(GatewayCore* core, HttpCall& call) {
  const std::string reason = core->NotReadyReason();
  if (reason.empty()) {
    call.Reply({.body = "{\"status\":\"ok\"}"});
    return;
  }
  HttpReply reply{.status = 503,
                  .headers = {{"Retry-After", "2"}},
                  .body = "{\"status\":\"not ready\",\"reason\":"};
  text::AppendJsonString(reason, &reply.body);
  reply.body += '}';
  call.Reply(std::move(reply));
}

constexpr std::string_view kMetricsType = "text/plain; version=0.0.4; charset=utf-8";

void ReplyMetrics(GatewayCore* core, std::shared_ptr<HttpCall> call) {
  core->engine()->FetchMetrics([core, call](std::string engine) {
    call->Reply({.content_type = std::string(kMetricsType), .body = core->OwnMetrics() + engine});
  });
}

}  // namespace

std::vector<HttpRoute> OpenAiRoutes(GatewayCore* core) {
  auto exchange = [core](bool chat) {
    return [core, chat](std::shared_ptr<HttpCall> call) {
      std::make_shared<Exchange>(core, chat, std::move(call))->Begin();
    };
  };
  return {
      {.method = "POST",
       .path = "/v1/chat/completions",
       .handler = exchange(true),
       .json_body = true},
      {.method = "POST", .path = "/v1/completions", .handler = exchange(false), .json_body = true},
      {.method = "GET",
       .path = "/v1/models",
       .handler = [core](auto call) { ReplyModels(core, *call); }},
      {.method = "GET",
       .path = "/v1/models/",
       .handler = [core](auto call) { ReplyModel(core, *call); }},
      {.method = "GET",
       .path = "/livez",
       .handler = [](auto call) { call->Reply({.body = "{\"status\":\"ok\"}"}); }},
      {.method = "GET",
       .path = "/readyz",
       .handler = [core](auto call) { ReplyReady(core, *call); }},
      {.method = "GET",
       .path = "/health",
       .handler = [core](auto call) { ReplyReady(core, *call); }},
      {.method = "GET",
       .path = "/metrics",
       .handler = [core](auto call) { ReplyMetrics(core, call); }},
  };
}

void SetHttpHooks(GatewayCore* core, HttpServerOptions* options) {
  options->error_body = [](int status, const std::string& message) {
    return ApiErrorJson({.status = status, .message = message});
  };
  options->on_access = [core](const HttpAccess& access) {
    core->metrics()
        ->GetCounter("quartet_gateway_http_requests_total",
                     "HTTP requests; status 499: the client went away first.",
                     {{"path", access.route}, {"status", absl::StrCat(access.status)}})
        .Add();
    core->metrics()
        ->GetHistogram("quartet_gateway_http_request_seconds",
                       "From the first byte of a request to the last of its answer.",
                       LatencyBuckets(), {{"path", access.route}})
        .Observe(access.seconds);
    // Probes come every few seconds and say nothing that the metrics do not say.
    const bool probe =
        access.method == "GET" && access.status == 200 && access.route != "/v1/models";
    const std::string line = absl::StrFormat(
        "access method=%s path=%s status=%d in=%d out=%d ms=%.1f remote=%s%s", access.method,
        access.path.substr(0, 100), access.status, access.request_bytes, access.response_bytes,
        access.seconds * 1000, access.remote, access.notes);
    if (probe) {
      LogDebug(line);
    } else {
      LogInfo(line);
    }
  };
}

std::string GatewayMetricsText(const GatewayCore& core) {
  return core.OwnMetrics() + core.engine()->CachedMetrics();
}

}  // namespace quartet::gateway
