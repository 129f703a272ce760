#include "tests/support/scripted_engine.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "proto/quartet/v1/engine.grpc.pb.h"

namespace quartet::testing {
namespace {

bool Holds(const std::vector<int32_t>& ids, int32_t id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

grpc::Status ToGrpc(const absl::Status& status) {
  return {static_cast<grpc::StatusCode>(status.code()), std::string(status.message())};
}

class Engine final : public ScriptedEngine, public v1::Engine::CallbackService {
 public:
  explicit Engine(Script script) : script_(std::move(script)) {}

  ~Engine() override {
    {
      std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_all();
    if (!server_) return;
    server_->Shutdown(std::chrono::system_clock::now());
    server_->Wait();
    for (std::thread& player : players_) player.join();
  }

  void Listen(int port) {
    // The lock makes the constructor's work known to gRPC's threads in a way that ThreadSanitizer
    // sees.
    std::lock_guard lock(mutex_);
    grpc::ServerBuilder builder;
    builder.AddListeningPort(absl::StrCat("127.0.0.1:", port), grpc::InsecureServerCredentials(),
                             &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  bool listening() const { return server_ != nullptr && port_ != 0; }

  std::string address() const override { return absl::StrCat("127.0.0.1:", port_); }

  void SetReady(bool ready, const std::string& reason) override {
    std::lock_guard lock(mutex_);
    info_.set_ready(ready);
    info_.set_not_ready_reason(reason);
  }
  void SetMaxModelLen(uint32_t tokens) override {
    std::lock_guard lock(mutex_);
    info_.set_max_model_len(tokens);
  }
  void SetMetrics(const std::string& text) override {
    std::lock_guard lock(mutex_);
    metrics_ = text;
  }
  std::string vocabulary() const override {
    std::lock_guard lock(mutex_);
    return vocabulary_;
  }
  void Release() override {
    {
      std::lock_guard lock(mutex_);
      released_ = true;
    }
    changed_.notify_all();
  }
  std::vector<SeenSequence> seen() const override {
    std::lock_guard lock(mutex_);
    return {seen_.begin(), seen_.end()};
  }
  bool WaitFor(const std::function<bool(const std::vector<SeenSequence>&)>& done,
               absl::Duration timeout) override {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, absl::ToChronoNanoseconds(timeout), [&] {
      return done(std::vector<SeenSequence>(seen_.begin(), seen_.end()));
    });
  }

 private:
  // One call. Reads what the gateway says on gRPC's threads; a thread of its own plays the script
  // with Write.
  class Stream final : public grpc::ServerBidiReactor<v1::EngineRequest, v1::EngineEvent> {
   public:
    explicit Stream(Engine* engine) : engine_(engine) { StartRead(&request_); }

    void OnReadDone(bool ok) override {
      if (ok && !seen_ && request_.has_submit()) {
        seen_ = engine_->Note(request_.submit());
        engine_->PlayInThread(this, seen_);
      } else if (ok && seen_ && request_.has_pause()) {
        engine_->Paused(seen_, request_.pause().paused());
      } else if (ok && seen_) {
        engine_->Truncated(seen_, request_.truncate().n_tokens());
      } else if (seen_) {
        engine_->Cancelled(seen_);
        return;
      } else {
        Finish({grpc::StatusCode::INVALID_ARGUMENT, "the first message must be submit"});
        return;
      }
      StartRead(&request_);
    }
    // May overtake the first read; then the read after it reports the end.
    void OnCancel() override {
      if (seen_) engine_->Cancelled(seen_);
    }
    void OnWriteDone(bool ok) override {
      std::lock_guard lock(mutex_);
      written_ = true;
      ok_ = ok;
      done_.notify_all();
    }
    void OnDone() override { delete this; }

    bool Write(const v1::EngineEvent& event) {
      std::unique_lock lock(mutex_);
      written_ = false;
      StartWrite(&event);
      done_.wait(lock, [this] { return written_; });
      return ok_;
    }

   private:
    Engine* const engine_;
    v1::EngineRequest request_;
    // Set by the first read; cancellation may come at any time.
    std::atomic<SeenSequence*> seen_{nullptr};
    std::mutex mutex_;
    std::condition_variable done_;
    bool written_ = false;
    bool ok_ = false;
  };

  grpc::ServerUnaryReactor* GetInfo(grpc::CallbackServerContext* context, const v1::GetInfoRequest*,
                                    v1::EngineInfo* info) override {
    {
      std::lock_guard lock(mutex_);
      *info = info_;
    }
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }

  grpc::ServerUnaryReactor* PutVocabulary(grpc::CallbackServerContext* context,
                                          const v1::PutVocabularyRequest* request,
                                          v1::PutVocabularyResponse* response) override {
    {
      std::lock_guard lock(mutex_);
      info_.set_vocabulary_digest("put");
      vocabulary_ = request->vocabulary();
    }
    response->set_digest("put");
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }

  grpc::ServerUnaryReactor* GetMetrics(grpc::CallbackServerContext* context,
                                       const v1::GetMetricsRequest*,
                                       v1::MetricsText* text) override {
    {
      std::lock_guard lock(mutex_);
      text->set_text(metrics_);
    }
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }

  grpc::ServerBidiReactor<v1::EngineRequest, v1::EngineEvent>* Generate(
      grpc::CallbackServerContext*) override {
    return new Stream(this);  // deletes itself, as gRPC's callback interface wants it
  }

  void PlayInThread(Stream* stream, SeenSequence* seen) {
    std::lock_guard lock(mutex_);
    players_.emplace_back([this, stream, seen] {
      SeenSequence copy;
      {
        std::lock_guard inner(mutex_);
        copy = *seen;
      }
      stream->Finish(Play(script_(copy), stream, seen));
    });
  }

  void Truncated(SeenSequence* seen, uint32_t n_tokens) {
    std::lock_guard lock(mutex_);
    seen->truncated = n_tokens;
    changed_.notify_all();
  }

  void Paused(SeenSequence* seen, bool paused) {
    std::lock_guard lock(mutex_);
    seen->paused = paused;
    seen->resumes += !paused;
    changed_.notify_all();
  }

  void Cancelled(SeenSequence* seen) {
    std::lock_guard lock(mutex_);
    if (!seen->ended) seen->cancelled = true;
    changed_.notify_all();
  }

  SeenSequence* Note(const v1::Submit& submit) {
    SeenSequence seen;
    seen.request_id = submit.request_id();
    seen.prompt_ids.assign(submit.prompt_ids().begin(), submit.prompt_ids().end());
    seen.end_ids.assign(submit.end_ids().begin(), submit.end_ids().end());
    seen.stop_ids.assign(submit.stop_ids().begin(), submit.stop_ids().end());
    seen.first_padding_id = submit.first_padding_id();
    seen.max_tokens = submit.max_tokens();
    seen.ignore_eos = submit.ignore_eos();
    seen.temperature = submit.sampling().temperature();
    seen.top_p = submit.sampling().top_p();
    seen.min_p = submit.sampling().min_p();
    seen.top_k = submit.sampling().top_k();
    seen.seed = submit.sampling().seed();
    seen.choice = submit.sampling().choice();
    seen.presence_penalty = submit.sampling().presence_penalty();
    seen.frequency_penalty = submit.sampling().frequency_penalty();
    seen.repetition_penalty = submit.sampling().repetition_penalty();
    seen.min_tokens = submit.sampling().min_tokens();
    seen.logit_bias = {submit.sampling().logit_bias().begin(),
                       submit.sampling().logit_bias().end()};
    seen.banned_ids = {submit.sampling().banned_ids().begin(),
                       submit.sampling().banned_ids().end()};
    seen.logprobs = submit.logprobs();
    seen.top_logprobs = submit.top_logprobs();
    seen.prompt_logprobs = submit.prompt_logprobs();
    seen.prompt_top_logprobs = submit.prompt_top_logprobs();
    if (submit.has_thinking()) {
      seen.thinking_tokens = submit.thinking().max_tokens();
      seen.thinking_open = submit.thinking().open();
      seen.thinking_end_ids = {submit.thinking().end_ids().begin(),
                               submit.thinking().end_ids().end()};
    }
    seen.grammar = submit.grammar();
    seen.cache_salt = submit.cache_salt();
    seen.cache_read_only = submit.cache_read_only();
    seen.fair_key = submit.fair_key();
    seen.batch = submit.request_class() == v1::Submit::REQUEST_CLASS_BATCH;
    seen.first_token_deadline_ms = submit.first_token_deadline_ms();
    seen.total_deadline_ms = submit.total_deadline_ms();
    std::lock_guard lock(mutex_);
    seen_.push_back(std::move(seen));
    changed_.notify_all();
    return &seen_.back();  // a deque does not move its elements
  }

  // False if the sequence is over before it was released.
  bool Hold(SeenSequence* seen) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock,
                  [&] { return released_ || stopping_ || seen->cancelled || seen->truncated; });
    return released_ && !stopping_ && !seen->cancelled;
  }

  bool Over(const SeenSequence* seen) {
    std::lock_guard lock(mutex_);
    return stopping_ || seen->cancelled || seen->truncated;
  }

  grpc::Status Play(const SequenceScript& script, Stream* stream, SeenSequence* seen) {
    if (script.retry_after_ms > 0) {
      v1::EngineEvent rejected;
      rejected.mutable_rejected()->set_retry_after_ms(script.retry_after_ms);
      if (!stream->Write(rejected)) return Gone();
    }
    if (!script.refusal.ok()) return End(seen, script.refusal);
    if (script.hold_admission && !Hold(seen)) return Gone();
    v1::EngineEvent admitted;
    admitted.mutable_admitted()->set_cached_tokens(script.cached_tokens);
    if (!stream->Write(admitted)) return Gone();

    if (seen->prompt_logprobs && !TellPrompt(*seen, stream)) return Gone();
    uint32_t sent = 0;
    v1::Finished finished;
    finished.set_reason(v1::Finished::REASON_END_TOKEN);
    v1::EngineEvent event;
    for (size_t i = 0; !Over(seen) && !script.ids.empty(); ++i) {
      if (i >= script.ids.size() && !script.repeat) break;
      if (script.hold_at == i) {
        if (!Flush(stream, &event, seen)) return Gone();
        Hold(seen);
        if (Over(seen)) break;
      }
      if (script.fail_at == i) {
        if (!Flush(stream, &event, seen)) return Gone();
        return End(seen, script.failure);
      }
      const int32_t id = script.ids[i % script.ids.size()];
      event.mutable_tokens()->add_ids(id);
      if (seen->logprobs) {
        event.mutable_tokens()->add_logprobs(ScriptedLogprob(i));
        AddTop(id, seen->top_logprobs, ScriptedLogprob(i), event.mutable_tokens()->mutable_top());
      }
      ++sent;
      const bool ends = !seen->ignore_eos && Holds(seen->end_ids, id);
      const bool stops = Holds(seen->stop_ids, id);
      const bool full = sent >= seen->max_tokens;
      if (event.tokens().ids_size() >= static_cast<int>(script.ids_per_event) || ends || stops ||
          full) {
        if (!Flush(stream, &event, seen)) return Gone();
      }
      if (ends) break;
      if (stops) {
        finished.set_reason(v1::Finished::REASON_STOP_ID);
        finished.set_stop_id(id);
        break;
      }
      if (full) {
        finished.set_reason(v1::Finished::REASON_LENGTH);
        break;
      }
    }
    if (!Flush(stream, &event, seen)) return Gone();
    {
      std::lock_guard lock(mutex_);
      if (seen->cancelled || stopping_) return Gone();
      if (seen->truncated) {
        finished.set_reason(v1::Finished::REASON_TRUNCATED);
        sent = *seen->truncated;
      }
      seen->ended = true;
      changed_.notify_all();
    }
    finished.set_prompt_tokens(static_cast<uint32_t>(seen->prompt_ids.size()));
    finished.set_completion_tokens(sent);
    finished.set_cached_tokens(script.cached_tokens);
    v1::EngineEvent last;
    *last.mutable_finished() = finished;
    stream->Write(last);
    return grpc::Status::OK;
  }

  static void AddTop(int32_t id, uint32_t count, float logprob, v1::TopLogprobs* to) {
    for (uint32_t i = 1; i <= count; ++i) {
      to->add_ids(id + static_cast<int32_t>(i));
      to->add_logprobs(logprob - 0.5f * static_cast<float>(i));
    }
  }

  // In two pieces.
  static bool TellPrompt(const SeenSequence& seen, Stream* stream) {
    v1::EngineEvent pieces[2];
    for (size_t i = 1; i < seen.prompt_ids.size(); ++i) {
      v1::Tokens* tokens = pieces[2 * i < seen.prompt_ids.size() ? 0 : 1].mutable_tokens();
      tokens->add_prompt_logprobs(ScriptedLogprob(i));
      AddTop(seen.prompt_ids[i], seen.prompt_top_logprobs, ScriptedLogprob(i),
             tokens->mutable_prompt_top());
    }
    for (const v1::EngineEvent& piece : pieces) {
      if (piece.has_tokens() && !stream->Write(piece)) return false;
    }
    return true;
  }

  bool Flush(Stream* stream, v1::EngineEvent* event, SeenSequence* seen) {
    const int count = event->tokens().ids_size();
    if (count == 0) return true;
    const bool ok = stream->Write(*event);
    event->Clear();
    std::lock_guard lock(mutex_);
    seen->tokens_sent += static_cast<size_t>(count);
    if (!ok) seen->cancelled = true;
    changed_.notify_all();
    return ok;
  }

  grpc::Status End(SeenSequence* seen, const absl::Status& status) {
    std::lock_guard lock(mutex_);
    seen->ended = true;
    changed_.notify_all();
    return ToGrpc(status);
  }

  static grpc::Status Gone() { return {grpc::StatusCode::CANCELLED, "the gateway cancelled"}; }

  const Script script_;
  std::unique_ptr<grpc::Server> server_;
  int port_ = 0;
  std::vector<std::thread> players_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<SeenSequence> seen_;
  v1::EngineInfo info_ = [] {
    v1::EngineInfo info;
    info.set_ready(true);
    info.set_max_model_len(4096);
    info.set_max_num_seqs(4);
    info.set_vocab_size(2048);
    info.set_epoch(1);
    info.set_checkpoint_digest("0123456789abcdef");
    return info;
  }();
  std::string metrics_ = "# HELP quartet_steps_total Steps\nquartet_steps_total 7\n";
  std::string vocabulary_;
  bool released_ = false;
  bool stopping_ = false;
};

}  // namespace

std::unique_ptr<ScriptedEngine> ScriptedEngine::Start(Script script, int port) {
  auto engine = std::make_unique<Engine>(std::move(script));
  engine->Listen(port);
  if (!engine->listening()) return nullptr;
  return engine;
}

}  // namespace quartet::testing
