#include "tests/support/scripted_worker.h"

#include <grpcpp/grpcpp.h>

#include <condition_variable>
#include <mutex>
#include <optional>
#include <set>
#include <thread>
#include <utility>

#include "proto/quartet/v1/worker.grpc.pb.h"

namespace quartet::testing {

class ScriptedWorker::Impl {
 public:
  explicit Impl(Options options) : options_(std::move(options)) {
    if (!options_.rule) options_.rule = HashChainRule(static_cast<int32_t>(options_.vocab_size));
    auto channel = grpc::CreateChannel(options_.coordinator, grpc::InsecureChannelCredentials());
    stub_ = v1::WorkerHub::NewStub(channel);
    stream_ = stub_->Attach(&context_);
    thread_ = std::thread([this] { Run(); });
  }

  ~Impl() {
    Kill();
    thread_.join();
  }

  void Kill() { context_.TryCancel(); }

  void Fail(const std::string& message, bool bad_checkpoint) {
    v1::FromWorker out;
    out.mutable_failure()->set_message(message);
    out.mutable_failure()->set_bad_checkpoint(bad_checkpoint);
    Write(out, true);
  }

  bool WaitFor(State state, absl::Duration limit) const {
    std::unique_lock<std::mutex> lock(mutex_);
    return entered_.wait_for(lock, absl::ToChronoMilliseconds(limit),
                             [&] { return seen_.contains(state); });
  }
  State state() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return state_;
  }
  v1::Welcome welcome() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return welcome_;
  }
  std::string reason() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return reason_;
  }
  std::string violation() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return executor_.has_value() ? executor_->violation() : "";
  }
  uint64_t steps() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return executor_.has_value() ? executor_->steps() : 0;
  }
  size_t open_sequences() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return executor_.has_value() ? executor_->open_sequences() : 0;
  }

 private:
  // Nothing is written after the last message.
  void Write(const v1::FromWorker& message, bool last = false) {
    std::lock_guard<std::mutex> lock(write_mutex_);
    if (written_last_) return;
    stream_->Write(message);
    written_last_ = last;
    if (last) stream_->WritesDone();
  }

  void Run() {
    SendHello();
    v1::ToWorker message;
    while (stream_->Read(&message)) {
      if (options_.on_message) options_.on_message(message);
      Handle(message);
    }
    stream_->Finish();
    std::lock_guard<std::mutex> lock(mutex_);
    if (state_ != State::kRefused && state_ != State::kAborted) Enter(State::kGone);
  }

  void SendHello() {
    v1::FromWorker out;
    v1::Hello* hello = out.mutable_hello();
    hello->set_device_uuid(options_.device_uuid);
    hello->set_build("scripted");
    hello->set_previous_rank(options_.previous_rank);
    hello->set_checkpoint_digest(options_.checkpoint_digest);
    hello->set_schema_version(1);
    hello->mutable_model()->set_name(options_.model_name);
    hello->mutable_model()->set_vocab_size(options_.vocab_size);
    hello->mutable_model()->set_max_position_embeddings(options_.max_position_embeddings);
    hello->mutable_model()->set_num_mtp_layers(options_.num_mtp_layers);
    for (uint32_t size : options_.tensor_parallel_sizes) {
      v1::MemoryOffer* offer = hello->add_offers();
      offer->set_tensor_parallel_size(size);
      offer->set_budget_bytes(options_.budget_bytes);
      offer->set_weight_bytes(options_.weight_bytes);
      offer->set_slot_bytes(1 << 20);
      offer->set_page_bytes(1 << 10);
      offer->set_activation_bytes_per_token(1 << 10);
      offer->set_page_tokens(options_.page_tokens);
      offer->set_snapshot_bytes(options_.snapshot_bytes);
      offer->set_host_cache_bytes(options_.host_cache_bytes);
      offer->set_disk_cache_bytes(options_.disk_cache_bytes);
    }
    Write(out);
  }

  void Handle(const v1::ToWorker& message) {
    switch (message.message_case()) {
      case v1::ToWorker::kSpare: {
        std::lock_guard<std::mutex> lock(mutex_);
        Enter(State::kSpare);
        break;
      }
      case v1::ToWorker::kWelcome:
        OnWelcome(message.welcome());
        break;
      case v1::ToWorker::kOpen: {
        std::lock_guard<std::mutex> lock(mutex_);
        executor_->Open(message.open());
        break;
      }
      case v1::ToWorker::kClose: {
        std::lock_guard<std::mutex> lock(mutex_);
        executor_->Close(message.close());
        break;
      }
      case v1::ToWorker::kPlan:
        OnPlan(message.plan());
        break;
      case v1::ToWorker::kAbort: {
        std::lock_guard<std::mutex> lock(mutex_);
        reason_ = message.abort().reason();
        Enter(State::kAborted);
        break;
      }
      case v1::ToWorker::kRefused: {
        std::lock_guard<std::mutex> lock(mutex_);
        reason_ = message.refused().reason();
        Enter(State::kRefused);
        break;
      }
      default:
        break;
    }
  }

  void OnWelcome(const v1::Welcome& welcome) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      welcome_ = welcome;
      executor_.emplace(
          HashChainExecutor::Pools{welcome.epoch(), welcome.pools().slots(),
                                   welcome.pools().pages(), options_.page_tokens,
                                   welcome.max_num_batched_tokens(), welcome.max_model_len(),
                                   welcome.pools().snapshots(), welcome.pools().host_pages(),
                                   welcome.pools().host_snapshots(), welcome.pools().disk_pages(),
                                   welcome.pools().disk_snapshots()},
          options_.rule);
      Enter(State::kWelcomed);
    }
    v1::FromWorker progress;
    progress.mutable_progress()->set_stage("loading weights");
    progress.mutable_progress()->set_done_bytes(options_.weight_bytes);
    progress.mutable_progress()->set_total_bytes(options_.weight_bytes);
    Write(progress);
    if (options_.before_ready) options_.before_ready(welcome);
    v1::FromWorker ready;
    ready.mutable_ready()->set_epoch(welcome.epoch());
    {
      std::lock_guard<std::mutex> lock(mutex_);
      Enter(State::kReady);
    }
    Write(ready);
  }

  void OnPlan(const v1::StepPlan& plan) {
    if (options_.before_step) options_.before_step(plan);
    v1::FromWorker out;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      *out.mutable_result() = executor_->Run(plan, welcome_.rank());
      if (welcome_.rank() != 0) out.mutable_result()->clear_rows();
    }
    if (options_.edit_result) options_.edit_result(out.mutable_result());
    Write(out);
  }

  // With mutex_ held.
  void Enter(State state) {
    state_ = state;
    seen_.insert(state);
    entered_.notify_all();
  }

  Options options_;
  std::unique_ptr<v1::WorkerHub::Stub> stub_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::FromWorker, v1::ToWorker>> stream_;
  std::mutex write_mutex_;
  bool written_last_ = false;
  mutable std::mutex mutex_;  // guards the state below
  mutable std::condition_variable entered_;
  State state_ = State::kDialing;
  std::set<State> seen_;
  v1::Welcome welcome_;
  std::optional<HashChainExecutor> executor_;
  std::string reason_;
  std::thread thread_;
};

ScriptedWorker::ScriptedWorker(Options options)
    : impl_(std::make_unique<Impl>(std::move(options))) {}
ScriptedWorker::~ScriptedWorker() = default;
void ScriptedWorker::Kill() {
  impl_->Kill();
}
void ScriptedWorker::Fail(const std::string& message, bool bad_checkpoint) {
  impl_->Fail(message, bad_checkpoint);
}
bool ScriptedWorker::WaitFor(State state, absl::Duration limit) const {
  return impl_->WaitFor(state, limit);
}
ScriptedWorker::State ScriptedWorker::state() const {
  return impl_->state();
}
uint32_t ScriptedWorker::rank() const {
  return impl_->welcome().rank();
}
v1::Welcome ScriptedWorker::welcome() const {
  return impl_->welcome();
}
std::string ScriptedWorker::reason() const {
  return impl_->reason();
}
std::string ScriptedWorker::violation() const {
  return impl_->violation();
}
uint64_t ScriptedWorker::steps() const {
  return impl_->steps();
}
size_t ScriptedWorker::open_sequences() const {
  return impl_->open_sequences();
}

}  // namespace quartet::testing
