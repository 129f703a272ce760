#include "services/gateway/exchange/exchange.h"

#include <mutex>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "services/common/log.h"

namespace quartet::gateway {
namespace {

// The client's own name for a request may hold anything; headers and logs take only what is plain.
std::string Plain(std::string id) {
  for (char& c : id) {
    if (!absl::ascii_isalnum(static_cast<unsigned char>(c)) && c != '-' && c != '_' && c != '.' &&
        c != ':')
      c = '_';
  }
  return id;
}

// One request from its body to the end of its answer. Kept alive by the call's callbacks, the
// pool's job and the generation; all of them let go at the end.
class Exchange final : public GenerationObserver, public std::enable_shared_from_this<Exchange> {
 public:
  Exchange(GatewayCore* core, std::unique_ptr<ApiAnswer> answer, std::shared_ptr<HttpCall> call)
      : core_(core), call_(std::move(call)), answer_(std::move(answer)) {}

  void Begin() {
    if (!core_->NotReadyReason().empty()) {
      call_->Reply(answer_->ErrorReply(NotReadyError()));
      return;
    }
    if (auto error = ReadDeadline()) {
      call_->Reply(answer_->ErrorReply(*error));
      return;
    }
    auto self = shared_from_this();
    call_->Watch([self] { self->Closed(); }, [self] { self->Drained(); });
    auto body = std::make_shared<std::string>(call_->TakeBody());
    const size_t bytes = body->size();
    if (!core_->pool()->Post(bytes, [self, body] { self->Prepare(*body); })) {
      call_->Reply(answer_->ErrorReply({.status = 429,
                                        .message = "too many requests are waiting; try again",
                                        .retry_after_s = 1}));
    }
  }

  void OnAdmitted(uint32_t choice, const ChoiceUsage& usage) override {
    const std::string events = answer_->Admit(choice, usage);
    if (!answer_->streams()) return;
    if (!streaming_) {
      streaming_ = true;
      HttpStreamHead head = answer_->StreamHead();
      head.headers.push_back(IdHeader());
      call_->StartStream(std::move(head));
    }
    if (!events.empty()) call_->Write(events);
  }

  bool OnUpdate(ChoiceUpdate update) override {
    const std::string events = answer_->Take(update);
    return events.empty() || call_->Write(events);
  }

  void OnFinished() override {
    NoteUsage();
    std::string last = answer_->Finish();
    if (answer_->streams()) {
      if (!last.empty()) call_->Write(last);
      call_->EndStream();
    } else {
      call_->Reply({.headers = {IdHeader()}, .body = std::move(last)});
    }
  }

  void OnError(const absl::Status& status, bool admitted) override {
    const ApiError error = FromEngineStatus(status, admitted);
    LogWarning(absl::StrCat("request ", request_id_, " failed: ", status.ToString()));
    NoteUsage();
    if (!streaming_) {
      call_->Reply(answer_->ErrorReply(error));
      return;
    }
    call_->Note("stream_error", absl::StrCat(error.status));
    call_->Write(answer_->ErrorEvents(error));
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
    auto result = answer_->Prepare(
        body, MakePrepareContext(*core_, model.get(), call_->request().authorization,
                                 deadline_ == absl::InfiniteFuture() ? absl::ZeroDuration()
                                                                     : deadline_ - absl::Now()));
    if (auto* error = std::get_if<ApiError>(&result)) {
      call_->Reply(answer_->ErrorReply(*error));
      return;
    }
    auto* plan = std::get_if<GenerationPlan>(&result);
    request_id_ =
        plan && !plan->request_id.empty() ? Plain(plan->request_id) : call_->request().request_id;
    if (!plan) {
      HttpReply reply = std::get<HttpReply>(std::move(result));
      reply.headers.push_back(IdHeader());
      call_->Reply(std::move(reply));
      return;
    }
    plan->request_id = request_id_;
    if (const auto refusal = core_->HoldTokens(plan)) {
      call_->Reply(answer_->ErrorReply(FromKeyRefusal(*refusal)));
      return;
    }
    Start(std::move(*plan));
  }

  void Start(GenerationPlan plan) {
    auto generation = core_->Start(std::move(plan), shared_from_this(), answer_->endpoint());
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

  HttpHeaders::value_type IdHeader() const {
    return {std::string(answer_->request_id_header()), request_id_};
  }

  void NoteUsage() {
    const ChoiceUsage usage = answer_->usage();
    call_->Note("prompt_tokens", absl::StrCat(usage.prompt_tokens));
    call_->Note("completion_tokens", absl::StrCat(usage.completion_tokens));
  }

  GatewayCore* const core_;
  const std::shared_ptr<HttpCall> call_;
  absl::Time deadline_ = absl::InfiniteFuture();  // set by Begin

  std::mutex mutex_;
  std::shared_ptr<Generation> generation_;
  bool closed_ = false;
  bool drained_early_ = false;  // output was read before generation_ was set

  // Used by Prepare before the generation starts, then by the observer's calls only.
  const std::unique_ptr<ApiAnswer> answer_;
  std::string request_id_;
  bool streaming_ = false;
};

}  // namespace

PrepareContext MakePrepareContext(const GatewayCore& core, const text::ModelText* model,
                                  std::string authorization, absl::Duration total_deadline) {
  const EngineState engine = core.engine()->state();
  const GatewayOptions& options = core.options();
  return {.model = model,
          .served_model_name = options.served_model_name,
          .system_fingerprint = absl::StrCat("quartet-", engine.checkpoint_digest.substr(0, 12)),
          .max_model_len = engine.max_model_len,
          .trust_content_tokens = options.trust_content_tokens,
          .share_cache_between_keys = options.share_cache_between_keys,
          .any_model = options.any_model,
          .stop_in_reasoning = options.stop_in_reasoning,
          .nonempty_content = options.nonempty_content,
          .authorization = std::move(authorization),
          .total_deadline = total_deadline};
}

HttpRoute ExchangeRoute(GatewayCore* core, std::string path,
                        std::function<std::unique_ptr<ApiAnswer>()> make) {
  return {.method = "POST",
          .path = std::move(path),
          .handler =
              [core, make = std::move(make)](std::shared_ptr<HttpCall> call) {
                std::make_shared<Exchange>(core, make(), std::move(call))->Begin();
              },
          .json_body = true};
}

}  // namespace quartet::gateway
