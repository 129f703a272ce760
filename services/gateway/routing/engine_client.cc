#include "services/gateway/routing/engine_client.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <limits>
#include <mutex>
#include <thread>
#include <unordered_set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "proto/quartet/v1/engine.grpc.pb.h"
#include "services/common/log.h"
#include "services/gateway/routing/retry_after.h"

namespace quartet::gateway {
namespace {

// Polls in a row that may run into their timeout before the coordinator counts as not ready.
constexpr int kLatePollsMax = 3;

constexpr int64_t kDeadlineMsMax = std::numeric_limits<uint32_t>::max();

absl::Status FromGrpc(const grpc::Status& status) {
  return {static_cast<absl::StatusCode>(status.error_code()), status.error_message()};
}

// On the wire 0 is none; what is past already is as short as can be.
uint32_t WireMs(absl::Duration deadline) {
  if (deadline == absl::ZeroDuration()) return 0;
  return static_cast<uint32_t>(
      std::clamp<int64_t>(absl::ToInt64Milliseconds(deadline), 1, kDeadlineMsMax));
}

void ToProto(const SequenceRequest& from, v1::Submit* to) {
  to->set_request_id(from.request_id);
  to->mutable_prompt_ids()->Add(from.prompt_ids.begin(), from.prompt_ids.end());
  v1::SamplingParams* sampling = to->mutable_sampling();
  sampling->set_temperature(from.sampling.temperature);
  sampling->set_top_p(from.sampling.top_p);
  sampling->set_top_k(from.sampling.top_k);
  sampling->set_min_p(from.sampling.min_p);
  sampling->set_seed(from.sampling.seed);
  sampling->set_seeded(from.sampling.seeded);
  sampling->set_choice(from.choice);
  sampling->set_presence_penalty(from.sampling.presence_penalty);
  sampling->set_frequency_penalty(from.sampling.frequency_penalty);
  sampling->set_repetition_penalty(from.sampling.repetition_penalty);
  for (const auto& [id, bias] : from.sampling.logit_bias) {
    (*sampling->mutable_logit_bias())[id] = bias;
  }
  sampling->mutable_banned_ids()->Add(from.sampling.banned_ids.begin(),
                                      from.sampling.banned_ids.end());
  sampling->set_min_tokens(from.sampling.min_tokens);
  to->set_max_tokens(from.max_tokens);
  to->mutable_end_ids()->Add(from.end_ids.begin(), from.end_ids.end());
  to->mutable_stop_ids()->Add(from.stop_ids.begin(), from.stop_ids.end());
  to->set_first_padding_id(from.first_padding_id);
  to->set_ignore_eos(from.ignore_eos);
  to->set_logprobs(from.logprobs.output);
  to->set_top_logprobs(from.logprobs.output_top);
  to->set_prompt_logprobs(from.logprobs.prompt);
  to->set_prompt_top_logprobs(from.logprobs.prompt_top);
  if (from.thinking) {
    v1::ThinkingBudget* thinking = to->mutable_thinking();
    thinking->set_max_tokens(from.thinking->max_tokens);
    thinking->set_begin_id(from.thinking->begin_id);
    thinking->mutable_end_ids()->Add(from.thinking->end_ids.begin(), from.thinking->end_ids.end());
    thinking->set_open(from.thinking->open);
  }
  to->set_grammar(from.grammar);
  to->set_cache_salt(from.cache_salt);
  to->set_cache_read_only(from.cache_read_only);
  to->set_system_prefix_tokens(from.system_prefix_tokens);
  to->set_fair_key(from.scheduling.fair_key);
  to->set_request_class(from.scheduling.batch ? v1::Submit::REQUEST_CLASS_BATCH
                                              : v1::Submit::REQUEST_CLASS_INTERACTIVE);
  to->set_first_token_deadline_ms(WireMs(from.scheduling.first_token_deadline));
  to->set_total_deadline_ms(WireMs(from.scheduling.total_deadline));
}

using Floats = google::protobuf::RepeatedField<float>;

// `width` ids of `top` belong to each place.
std::vector<PlaceLogprobs> FromProto(const Floats& logprobs, const v1::TopLogprobs& top) {
  std::vector<PlaceLogprobs> places(static_cast<size_t>(logprobs.size()));
  const int ids = std::min(top.ids_size(), top.logprobs_size());
  const int width = places.empty() ? 0 : ids / logprobs.size();
  for (int i = 0; i < logprobs.size(); ++i) {
    places[i].logprob = logprobs[i];
    for (int j = i * width; j < (i + 1) * width; ++j) {
      places[i].top.push_back({top.ids(j), top.logprobs(j)});
    }
  }
  return places;
}

SequenceTokens FromProto(const v1::Tokens& from) {
  return {.ids = {from.ids().data(), static_cast<size_t>(from.ids_size())},
          .logprobs = FromProto(from.logprobs(), from.top()),
          .prompt_logprobs = FromProto(from.prompt_logprobs(), from.prompt_top())};
}

SequenceEnd FromProto(const v1::Finished& from) {
  SequenceEnd end;
  end.prompt_tokens = from.prompt_tokens();
  end.completion_tokens = from.completion_tokens();
  end.cached_tokens = from.cached_tokens();
  end.stop_id = from.stop_id();
  switch (from.reason()) {
    case v1::Finished::REASON_END_TOKEN:
      end.reason = SequenceEnd::Reason::kEndToken;
      break;
    case v1::Finished::REASON_STOP_ID:
      end.reason = SequenceEnd::Reason::kStopId;
      break;
    case v1::Finished::REASON_LENGTH:
      end.reason = SequenceEnd::Reason::kLength;
      break;
    case v1::Finished::REASON_TRUNCATED:
      end.reason = SequenceEnd::Reason::kTruncated;
      break;
    default:
      end.status = absl::InternalError("the coordinator ended a sequence without a known reason");
  }
  return end;
}

// Counts the open calls, so that the client can wait for all of them.
class OpenCalls {
 public:
  void Add(Sequence* call) {
    std::lock_guard lock(mutex_);
    calls_.insert(call);
  }
  void Remove(Sequence* call) {
    // Notified under the lock: the waiter destroys this object.
    std::lock_guard lock(mutex_);
    calls_.erase(call);
    if (calls_.empty()) none_.notify_all();
  }
  void CancelAllAndWait() {
    std::unique_lock lock(mutex_);
    for (Sequence* call : calls_) call->Cancel();
    none_.wait(lock, [this] { return calls_.empty(); });
  }

 private:
  std::mutex mutex_;
  std::condition_variable none_;
  std::unordered_set<Sequence*> calls_;
};

// One bidirectional call. Owns itself until gRPC is done with it. A hold keeps gRPC from finishing
// while reads may be started from outside its callbacks (after a pause).
class Call final : public Sequence,
                   public grpc::ClientBidiReactor<v1::EngineRequest, v1::EngineEvent>,
                   public std::enable_shared_from_this<Call> {
 public:
  Call(OpenCalls* open, std::function<void()> on_broken)
      : open_(open), on_broken_(std::move(on_broken)) {}

  void Start(v1::Engine::Stub* stub, const SequenceRequest& request,
             std::shared_ptr<SequenceObserver> observer) {
    self_ = shared_from_this();
    observer_ = std::move(observer);
    open_->Add(this);
    v1::EngineRequest first;
    ToProto(request, first.mutable_submit());
    stub->async()->Generate(context_.get(), this);
    AddHold();
    {
      std::lock_guard lock(mutex_);
      writes_.push_back(std::move(first));
      StartNextWrite();
      reading_ = true;
      StartRead(&event_);
    }
    StartCall();
  }

  void Cancel() override {
    {
      std::lock_guard lock(mutex_);
      if (context_) context_->TryCancel();
    }
    // A paused call has no read in flight that could report the end.
    SetPaused(false);
  }

  void Truncate(uint32_t n_tokens) override {
    std::lock_guard lock(mutex_);
    if (ended_) return;
    v1::EngineRequest request;
    request.mutable_truncate()->set_n_tokens(n_tokens);
    writes_.push_back(std::move(request));
    StartNextWrite();
  }

  void SetPaused(bool paused) override {
    std::lock_guard lock(mutex_);
    if (paused_ != paused) TellPaused(paused);
    paused_ = paused;
    if (!paused_ && !reading_ && !ended_) {
      reading_ = true;
      StartRead(&event_);
    }
  }

  void OnReadDone(bool ok) override {
    if (!ok) {
      {
        std::lock_guard lock(mutex_);
        reading_ = false;
        ended_ = true;
      }
      RemoveHold();
      return;
    }
    switch (event_.event_case()) {
      case v1::EngineEvent::kAdmitted:
        if (observer_) observer_->OnAdmitted(event_.admitted().cached_tokens());
        break;
      case v1::EngineEvent::kTokens:
        if (observer_) observer_->OnTokens(FromProto(event_.tokens()));
        break;
      case v1::EngineEvent::kFinished:
        TellEnd(FromProto(event_.finished()));
        break;
      case v1::EngineEvent::kRejected:
        retry_after_ = absl::Milliseconds(event_.rejected().retry_after_ms());
        break;
      case v1::EngineEvent::EVENT_NOT_SET:
        break;
    }
    std::lock_guard lock(mutex_);
    if (paused_) {
      reading_ = false;
    } else {
      StartRead(&event_);
    }
  }

  void OnWriteDone(bool ok) override {
    std::lock_guard lock(mutex_);
    writes_.pop_front();
    writing_ = false;
    if (!ok) {
      writes_.clear();
      return;
    }
    StartNextWrite();
  }

  void OnDone(const grpc::Status& status) override {
    SequenceEnd end;
    end.status = status.ok()
                     ? absl::InternalError("the coordinator ended a sequence without saying how")
                     : FromGrpc(status);
    if (retry_after_ > absl::ZeroDuration()) {
      end.status = WithRetryAfter(std::move(end.status), retry_after_);
    }
    if (status.error_code() == grpc::StatusCode::UNAVAILABLE ||
        status.error_code() == grpc::StatusCode::ABORTED) {
      on_broken_();
    }
    TellEnd(end);
    // The context refers to the channel, and a channel's last reference must not be dropped here:
    // on one of gRPC's own threads it would wait for that very thread. The client keeps its
    // reference until this call is removed.
    std::unique_ptr<grpc::ClientContext> context;
    {
      std::lock_guard lock(mutex_);
      context = std::move(context_);
    }
    context.reset();
    open_->Remove(this);
    self_.reset();  // may destroy this
  }

 private:
  void TellEnd(const SequenceEnd& end) {
    if (!observer_) return;
    // Reads and OnDone never overlap, so that the observer needs no lock.
    std::shared_ptr<SequenceObserver> observer = std::move(observer_);
    observer_ = nullptr;
    observer->OnEnd(end);
  }

  // With mutex_ held. What was not written yet is not news any more.
  void TellPaused(bool paused) {
    if (ended_) return;
    if (writes_.size() > (writing_ ? 1u : 0u) && writes_.back().has_pause()) writes_.pop_back();
    writes_.emplace_back().mutable_pause()->set_paused(paused);
    StartNextWrite();
  }

  // With mutex_ held. At most four requests wait: submission, truncation, and a pause behind each.
  void StartNextWrite() {
    if (writing_ || writes_.empty() || ended_) return;
    writing_ = true;
    StartWrite(&writes_.front());
  }

  OpenCalls* const open_;
  const std::function<void()> on_broken_;
  std::shared_ptr<Call> self_;
  std::shared_ptr<SequenceObserver> observer_;
  v1::EngineEvent event_;
  absl::Duration retry_after_;  // of a refusal

  std::mutex mutex_;
  std::unique_ptr<grpc::ClientContext> context_ = std::make_unique<grpc::ClientContext>();
  std::deque<v1::EngineRequest> writes_;
  bool writing_ = false;
  bool reading_ = false;
  bool paused_ = false;
  bool ended_ = false;  // no more reads: nothing may be started
};

class GrpcEngineClient final : public EngineClient {
 public:
  explicit GrpcEngineClient(EngineClientOptions options) : options_(std::move(options)) {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
    arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 100);
    arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
    // A fixed window, so that what a paused sequence has on the way stays small and the coordinator
    // feels the pause.
    arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
    arguments.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 64 << 10);
    arguments.SetMaxReceiveMessageSize(64 << 20);
    arguments.SetMaxSendMessageSize(64 << 20);
    channel_ =
        grpc::CreateCustomChannel(options_.address, grpc::InsecureChannelCredentials(), arguments);
    stub_ = v1::Engine::NewStub(channel_);
    poller_ = std::thread([this] { Poll(); });
  }

  ~GrpcEngineClient() override {
    {
      std::lock_guard lock(mutex_);
      stopping_ = true;
      if (poll_context_) poll_context_->TryCancel();
      if (metrics_call_) metrics_call_->context.TryCancel();
    }
    wake_.notify_all();
    poller_.join();
    open_.CancelAllAndWait();
    std::unique_lock lock(mutex_);
    wake_.wait(lock, [this] { return !metrics_busy_; });
  }

  std::shared_ptr<Sequence> Submit(const SequenceRequest& request,
                                   std::shared_ptr<SequenceObserver> observer) override {
    auto call = std::make_shared<Call>(&open_, [this] { PollNow(); });
    call->Start(stub_.get(), request, std::move(observer));
    return call;
  }

  EngineState state() const override {
    std::lock_guard lock(mutex_);
    return state_;
  }

  void SetVocabulary(std::string vocabulary) override {
    std::lock_guard lock(mutex_);
    vocabulary_ = std::make_shared<const std::string>(std::move(vocabulary));
    vocabulary_digest_.clear();
    vocabulary_refused_ = false;
    poll_now_ = true;
    wake_.notify_all();
  }

  void FetchMetrics(std::function<void(std::string)> done) override {
    MetricsCall* call = nullptr;
    {
      std::lock_guard lock(mutex_);
      if (!stopping_ && absl::Now() - metrics_time_ > absl::Milliseconds(20)) {
        metrics_waiters_.push_back(std::move(done));
        if (metrics_busy_) return;  // the call that is under way answers everyone
        metrics_busy_ = true;
        metrics_call_ = std::make_unique<MetricsCall>();
        call = metrics_call_.get();
        call->context.set_deadline(std::chrono::system_clock::now() +
                                   std::chrono::milliseconds(500));
      }
    }
    if (!call) {
      done(CachedMetrics());
      return;
    }
    stub_->async()->GetMetrics(&call->context, &call->request, &call->response,
                               [this](grpc::Status status) { MetricsDone(status); });
  }

  std::string CachedMetrics() const override {
    std::lock_guard lock(mutex_);
    return absl::Now() - metrics_time_ <= absl::Seconds(1) ? metrics_ : "";
  }

 private:
  struct MetricsCall {
    grpc::ClientContext context;
    v1::GetMetricsRequest request;
    v1::MetricsText response;
  };

  void MetricsDone(const grpc::Status& status) {
    std::unique_lock lock(mutex_);
    if (status.ok()) {
      metrics_ = std::move(*metrics_call_->response.mutable_text());
      metrics_time_ = absl::Now();
    }
    const std::string text = absl::Now() - metrics_time_ <= absl::Seconds(1) ? metrics_ : "";
    // The context goes while the client still holds the channel, as in Call::OnDone.
    std::unique_ptr<MetricsCall> call = std::move(metrics_call_);
    lock.unlock();
    call.reset();
    lock.lock();
    while (!metrics_waiters_.empty()) {
      std::vector<std::function<void(std::string)>> waiters;
      waiters.swap(metrics_waiters_);
      lock.unlock();
      for (auto& waiter : waiters) waiter(text);
      lock.lock();
    }
    metrics_busy_ = false;
    wake_.notify_all();  // under the lock: the destructor may be waiting for this
  }

  void PollNow() {
    std::lock_guard lock(mutex_);
    poll_now_ = true;
    wake_.notify_all();
  }

  // Gives the coordinator the vocabulary if it has not got this one. With `lock` held, which is let
  // go of for the call.
  void PutVocabulary(const v1::EngineInfo& info, std::unique_lock<std::mutex>& lock) {
    const std::shared_ptr<const std::string> vocabulary = vocabulary_;
    if (!vocabulary || !info.ready()) return;
    if (!vocabulary_digest_.empty() && info.vocabulary_digest() == vocabulary_digest_) return;
    v1::PutVocabularyRequest request;
    request.set_vocabulary(*vocabulary);
    v1::PutVocabularyResponse response;
    const grpc::Status status = CallAsPoll(lock, [&](grpc::ClientContext* context) {
      return stub_->PutVocabulary(context, request, &response);
    });
    if (status.ok() && vocabulary == vocabulary_) vocabulary_digest_ = response.digest();
    if (!status.ok() && !std::exchange(vocabulary_refused_, true)) {
      LogWarning(absl::StrCat("constrained requests will be refused: the coordinator at ",
                              options_.address,
                              " did not take the vocabulary: ", status.error_message()));
    }
  }

  // With `lock` held, which is let go of for the call.
  template <typename Ask>
  grpc::Status CallAsPoll(std::unique_lock<std::mutex>& lock, const Ask& ask) {
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + options_.poll_timeout));
    poll_context_ = &context;
    lock.unlock();
    const grpc::Status status = ask(&context);
    lock.lock();
    poll_context_ = nullptr;
    return status;
  }

  void Poll() {
    std::unique_lock lock(mutex_);
    while (!stopping_) {
      poll_now_ = false;
      v1::EngineInfo info;
      const grpc::Status status = CallAsPoll(lock, [&](grpc::ClientContext* context) {
        return stub_->GetInfo(context, v1::GetInfoRequest(), &info);
      });
      if (stopping_) return;
      if (status.ok()) PutVocabulary(info, lock);
      if (stopping_) return;
      EngineState next = state_;
      // A machine that is short of cores may answer late now and then; a coordinator that is gone
      // is noticed at once.
      const bool late = status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED;
      late_polls_ = late ? late_polls_ + 1 : 0;
      if (late && late_polls_ < kLatePollsMax) {
        LogWarning(absl::StrCat("the coordinator at ", options_.address, " answers late"));
      } else if (status.ok()) {
        next = {.ready = info.ready(),
                .not_ready_reason = info.ready() ? "" : info.not_ready_reason(),
                .max_model_len = info.max_model_len(),
                .max_num_seqs = info.max_num_seqs(),
                .vocab_size = info.vocab_size(),
                .epoch = info.epoch(),
                .checkpoint_digest = info.checkpoint_digest()};
        if (next.ready && options_.gives_vocabulary && !vocabulary_) {
          next.ready = false;
          next.not_ready_reason = "the tokenizer is being loaded";
        }
        if (!next.ready && next.not_ready_reason.empty())
          next.not_ready_reason = "the coordinator is not ready";
      } else {
        next.ready = false;
        next.not_ready_reason = absl::StrCat("the coordinator at ", options_.address,
                                             " does not answer: ", status.error_message());
      }
      const bool changed = next.ready != state_.ready || !told_;
      told_ = true;
      state_ = next;
      lock.unlock();
      if (changed && options_.on_change) options_.on_change(next);
      // Keeps the cached metrics fresh for the admin port, which cannot wait.
      if (status.ok()) FetchMetrics([](std::string) {});
      lock.lock();
      wake_.wait_for(lock, absl::ToChronoNanoseconds(options_.poll_interval),
                     [this] { return stopping_ || poll_now_; });
    }
  }

  const EngineClientOptions options_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::Engine::Stub> stub_;
  OpenCalls open_;
  std::thread poller_;

  mutable std::mutex mutex_;
  std::condition_variable wake_;
  EngineState state_;
  bool told_ = false;
  bool stopping_ = false;
  bool poll_now_ = false;
  int late_polls_ = 0;
  grpc::ClientContext* poll_context_ = nullptr;
  std::shared_ptr<const std::string> vocabulary_;
  bool vocabulary_refused_ = false;
  std::string vocabulary_digest_;  // as the coordinator that took it last calls it
  std::string metrics_;
  absl::Time metrics_time_ = absl::InfinitePast();
  bool metrics_busy_ = false;                  // from the start of a call to its last waiter
  std::unique_ptr<MetricsCall> metrics_call_;  // until its answer has come
  std::vector<std::function<void(std::string)>> metrics_waiters_;
};

}  // namespace

std::unique_ptr<EngineClient> ConnectEngine(EngineClientOptions options) {
  return std::make_unique<GrpcEngineClient>(std::move(options));
}

}  // namespace quartet::gateway
