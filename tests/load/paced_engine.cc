#include "tests/load/paced_engine.h"

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <limits>
#include <mutex>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "proto/quartet/v1/engine.grpc.pb.h"
#include "services/coordinator/rpc/bidi_stream.h"

namespace quartet::load {
namespace {

using coordinator::BidiStream;
using coordinator::StreamCount;

class Engine;

// One Generate call.
class Call final : public BidiStream<v1::EngineRequest, v1::EngineEvent>,
                   public std::enable_shared_from_this<Call> {
 public:
  Call(Engine* engine, std::shared_ptr<StreamCount> count)
      : BidiStream(std::move(count)), engine_(engine) {}

  void Begin() {
    KeepAlive(shared_from_this());
    ReadInto(&request_);
  }
  void Send(v1::EngineEvent event) { Enqueue(std::move(event)); }
  void EndAfter(v1::EngineEvent last) { EndBehind(std::move(last), grpc::Status::OK); }

  void OnReadDone(bool ok) override;
  void OnCancel() override { Gone("the call was cancelled"); }

 protected:
  bool Merge(v1::EngineEvent& last, const v1::EngineEvent& next) override {
    if (!last.has_tokens() || !next.has_tokens()) return false;
    last.mutable_tokens()->MergeFrom(next.tokens());
    return true;
  }

 private:
  void Gone(const std::string& why);

  Engine* const engine_;
  v1::EngineRequest request_;
  // Set by the first read; cancellation may come at any time.
  std::atomic<bool> submitted_{false};
  size_t stream_ = 0;
};

class Engine final : public PacedEngine, public v1::Engine::CallbackService {
 public:
  explicit Engine(TokenFeed* feed) : feed_(feed), streams_(feed->streams()) {}

  ~Engine() override {
    if (!server_) return;
    server_->Shutdown(std::chrono::system_clock::now());
    server_->Wait();
    server_.reset();
  }

  absl::Status Listen() {
    int port = 0;
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
    if (!server_ || port == 0) return absl::UnavailableError("cannot listen on 127.0.0.1:0");
    address_ = absl::StrCat("127.0.0.1:", port);
    return absl::OkStatus();
  }

  std::string address() const override { return address_; }

  size_t submitted() const override {
    std::lock_guard lock(mutex_);
    return submitted_;
  }

  SeenStream seen(size_t stream) const override {
    std::lock_guard lock(mutex_);
    return streams_[stream].seen;
  }

  bool over(size_t stream) const override {
    std::lock_guard lock(mutex_);
    const SeenStream& seen = streams_[stream].seen;
    return seen.cancelled_at || seen.said == feed_->tokens(stream);
  }

  bool Say(size_t stream) override {
    std::lock_guard lock(mutex_);
    Stream& it = streams_[stream];
    if (!it.call || it.seen.paused_since) return false;
    const uint32_t index = it.seen.said++;
    v1::EngineEvent event;
    v1::Tokens* tokens = event.mutable_tokens();
    const int32_t id = feed_->word(stream, index).id;
    tokens->add_ids(id);
    if (it.logprobs) tokens->add_logprobs(-1);
    for (uint32_t i = 0; i < it.top_logprobs; ++i) {
      tokens->mutable_top()->add_ids(feed_->word(stream, index + i).id);
      tokens->mutable_top()->add_logprobs(-1.5f - 0.25f * static_cast<float>(i));
    }
    feed_->NoteSaid(stream, index, Clock::now());
    it.call->Send(std::move(event));
    if (it.seen.said < feed_->tokens(stream)) return true;
    v1::EngineEvent last;
    v1::Finished* finished = last.mutable_finished();
    finished->set_reason(v1::Finished::REASON_LENGTH);
    finished->set_prompt_tokens(it.prompt_tokens);
    finished->set_completion_tokens(it.seen.said);
    it.call->EndAfter(std::move(last));
    it.call.reset();
    return true;
  }

  // Nothing if the submit is none that this engine can answer.
  std::optional<size_t> Submitted(const v1::Submit& submit, std::shared_ptr<Call> call) {
    const std::optional<size_t> stream = StreamOfName(submit.request_id());
    if (!stream || *stream >= streams_.size()) return std::nullopt;
    std::lock_guard lock(mutex_);
    Stream& it = streams_[*stream];
    if (it.seen.submitted) {
      it.seen.fault = "it was submitted twice";
      return std::nullopt;
    }
    if (submit.max_tokens() != feed_->tokens(*stream)) {
      it.seen.fault = absl::StrCat("max_tokens is ", submit.max_tokens(), "; the client asked for ",
                                   feed_->tokens(*stream));
    }
    it.seen.submitted = true;
    it.logprobs = submit.logprobs();
    it.top_logprobs = submit.top_logprobs();
    it.prompt_tokens = static_cast<uint32_t>(submit.prompt_ids_size());
    v1::EngineEvent admitted;
    admitted.mutable_admitted();
    call->Send(std::move(admitted));
    it.call = std::move(call);
    ++submitted_;
    return stream;
  }

  void Paused(size_t stream, bool paused) {
    std::lock_guard lock(mutex_);
    SeenStream& seen = streams_[stream].seen;
    if (paused && !seen.paused_since) {
      seen.paused_since = Clock::now();
      ++seen.pauses;
    }
    if (!paused) seen.paused_since.reset();
  }

  void Gone(size_t stream) {
    std::lock_guard lock(mutex_);
    Stream& it = streams_[stream];
    if (!it.call) return;
    it.call.reset();
    it.seen.cancelled_at = Clock::now();
    if (it.seen.paused_since) {
      it.seen.paused_for_at_cancel = *it.seen.cancelled_at - *it.seen.paused_since;
    }
  }

 private:
  struct Stream {
    SeenStream seen;
    std::shared_ptr<Call> call;  // while there is something to say
    bool logprobs = false;
    uint32_t top_logprobs = 0;
    uint32_t prompt_tokens = 0;
  };

  grpc::ServerBidiReactor<v1::EngineRequest, v1::EngineEvent>* Generate(
      grpc::CallbackServerContext*) override {
    count_->TryAdd();
    auto call = std::make_shared<Call>(this, count_);
    call->Begin();
    return call.get();
  }

  grpc::ServerUnaryReactor* GetInfo(grpc::CallbackServerContext* context, const v1::GetInfoRequest*,
                                    v1::EngineInfo* info) override {
    info->set_ready(true);
    info->set_max_model_len(1 << 20);
    info->set_max_num_seqs(static_cast<uint32_t>(streams_.size()));
    info->set_vocab_size(2048);
    info->set_epoch(1);
    info->set_checkpoint_digest("0123456789abcdef");
    info->set_vocabulary_digest("put");
    return Done(context);
  }
  grpc::ServerUnaryReactor* PutVocabulary(grpc::CallbackServerContext* context,
                                          const v1::PutVocabularyRequest*,
                                          v1::PutVocabularyResponse* response) override {
    response->set_digest("put");
    return Done(context);
  }
  grpc::ServerUnaryReactor* GetMetrics(grpc::CallbackServerContext* context,
                                       const v1::GetMetricsRequest*, v1::MetricsText*) override {
    return Done(context);
  }
  static grpc::ServerUnaryReactor* Done(grpc::CallbackServerContext* context) {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }

  TokenFeed* const feed_;
  // A gateway that asks for more calls than there are streams is refused by name, not by number.
  const std::shared_ptr<StreamCount> count_ =
      std::make_shared<StreamCount>(std::numeric_limits<uint32_t>::max());
  std::unique_ptr<grpc::Server> server_;
  std::string address_;
  mutable std::mutex mutex_;
  std::vector<Stream> streams_;
  size_t submitted_ = 0;
};

void Call::OnReadDone(bool ok) {
  if (!ok) return Gone("the client closed its half of the call");
  if (!submitted_ && request_.has_submit()) {
    const std::optional<size_t> stream = engine_->Submitted(request_.submit(), shared_from_this());
    if (!stream) {
      return EndWith(
          {grpc::StatusCode::INVALID_ARGUMENT,
           "request_id must be stream-N, each once, as the load test names its requests"},
          true);
    }
    stream_ = *stream;
    submitted_ = true;
  } else if (submitted_ && request_.has_pause()) {
    engine_->Paused(stream_, request_.pause().paused());
  }
  ReadInto(&request_);
}

void Call::Gone(const std::string& why) {
  if (submitted_) engine_->Gone(stream_);
  EndWith({grpc::StatusCode::CANCELLED, why}, true);
}

}  // namespace

absl::StatusOr<std::unique_ptr<PacedEngine>> PacedEngine::Start(TokenFeed* feed) {
  auto engine = std::make_unique<Engine>(feed);
  if (absl::Status status = engine->Listen(); !status.ok()) return status;
  return engine;
}

}  // namespace quartet::load
