#ifndef QUARTET_TESTS_UNIT_COORDINATOR_ENGINE_HARNESS_H_
#define QUARTET_TESTS_UNIT_COORDINATOR_ENGINE_HARNESS_H_

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "proto/quartet/v1/engine.grpc.pb.h"
#include "services/coordinator/rpc/engine.h"
#include "services/coordinator/rpc/server.h"
#include "tests/support/scripted_worker.h"

namespace quartet::coordinator {

inline constexpr absl::Duration kPatience = absl::Seconds(30);

// Lets threads through one by one, by number, or all.
class Gate {
 public:
  void Pass() {
    std::unique_lock<std::mutex> lock(mutex_);
    ++arrived_;
    changed_.notify_all();
    changed_.wait(lock, [this] { return open_ || permits_ > 0; });
    if (!open_) --permits_;
    ++passed_;
  }
  void Open() {
    std::lock_guard<std::mutex> lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }
  void Close() {
    std::lock_guard<std::mutex> lock(mutex_);
    open_ = false;
    permits_ = 0;
  }
  void Permit(int n) {
    std::lock_guard<std::mutex> lock(mutex_);
    permits_ += n;
    changed_.notify_all();
  }
  // Until somebody stands before the closed gate.
  bool AwaitSomebody() {
    std::unique_lock<std::mutex> lock(mutex_);
    return changed_.wait_for(lock, absl::ToChronoMilliseconds(kPatience),
                             [this] { return !open_ && permits_ == 0 && arrived_ > passed_; });
  }

  // How many have come so far: the number of the step that stands there, if all steps come here.
  int arrived() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return arrived_;
  }

 private:
  mutable std::mutex mutex_;  // guards all below
  std::condition_variable changed_;
  bool open_ = true;
  int permits_ = 0;
  int arrived_ = 0;
  int passed_ = 0;
};

// One Generate call of a client that blocks.
class Call {
 public:
  Call(v1::Engine::Stub* stub, const v1::Submit& submit) {
    stream_ = stub->Generate(&context_);
    v1::EngineRequest request;
    *request.mutable_submit() = submit;
    stream_->Write(request);
  }

  // The next event; nothing at the end of the call.
  std::optional<v1::EngineEvent> Read() {
    v1::EngineEvent event;
    if (!stream_->Read(&event)) return std::nullopt;
    if (event.has_admitted()) admitted = true;
    if (event.has_tokens()) {
      tokens.insert(tokens.end(), event.tokens().ids().begin(), event.tokens().ids().end());
    }
    if (event.has_finished()) finished = event.finished();
    if (event.has_rejected()) retry_after_ms = event.rejected().retry_after_ms();
    return event;
  }
  // Until at least n tokens are there.
  bool ReadTokens(size_t n) {
    while (tokens.size() < n) {
      if (!Read().has_value()) return false;
    }
    return true;
  }
  grpc::Status ReadToEnd() {
    while (Read().has_value()) {
    }
    return stream_->Finish();
  }
  void Truncate(uint32_t n) {
    v1::EngineRequest request;
    request.mutable_truncate()->set_n_tokens(n);
    stream_->Write(request);
  }
  void Pause(bool paused) {
    v1::EngineRequest request;
    request.mutable_pause()->set_paused(paused);
    stream_->Write(request);
  }
  void Write(const v1::EngineRequest& request) { stream_->Write(request); }
  void HalfClose() { stream_->WritesDone(); }
  void Cancel() { context_.TryCancel(); }

  bool admitted = false;
  std::vector<int32_t> tokens;
  std::optional<v1::Finished> finished;
  std::optional<uint32_t> retry_after_ms;  // of a refusal

 private:
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::EngineRequest, v1::EngineEvent>> stream_;
};

// A coordinator in this process, behind a real socket.
class EngineHarness {
 public:
  using Worker = quartet::testing::ScriptedWorker;

  explicit EngineHarness(EngineOptions options, std::vector<std::string> listen = {"127.0.0.1:0"})
      : metrics(MakeMetrics()) {
    options.epoch = 4711;
    options.segment_name = "quartet-test-4711";
    engine =
        std::make_unique<Engine>(options, metrics.get(), &status,
                                 [this](const std::string& message) { fatal.set_value(message); });
    auto started = StartServer(listen, engine.get(), [this] { return metrics->Expose(); });
    EXPECT_TRUE(started.ok()) << started.status();
    server = *std::move(started);
    engine->Start();
    channel = NewChannel({});
    stub = v1::Engine::NewStub(channel);
  }
  ~EngineHarness() {
    engine->Shutdown();
    workers.clear();
    server->Shutdown(absl::Seconds(5));
  }

  static EngineOptions Options(uint32_t ranks) {
    EngineOptions options;
    options.tensor_parallel_size = ranks;
    options.max_num_seqs = 16;
    return options;
  }

  std::shared_ptr<grpc::Channel> NewChannel(const grpc::ChannelArguments& arguments) const {
    return grpc::CreateCustomChannel(server->addresses().front(),
                                     grpc::InsecureChannelCredentials(), arguments);
  }

  Worker::Options WorkerOptions() const {
    Worker::Options options;
    options.coordinator = server->addresses().front();
    options.device_uuid = absl::StrCat("cpu-test-", workers.size());
    return options;
  }
  Worker& AddWorker(Worker::Options options) {
    workers.push_back(std::make_unique<Worker>(std::move(options)));
    return *workers.back();
  }
  // All of them, each its turn, so that worker i has rank i; then waits until the engine is ready.
  void AddRanks(uint32_t n) {
    for (uint32_t i = 0; i < n; ++i) {
      AddWorker(WorkerOptions());
      if (i + 1 < n) {
        ASSERT_TRUE(
            AwaitReason(absl::StrCat("waiting for workers: ", i + 1, " of ", n, " have come")));
      }
    }
    ASSERT_TRUE(AwaitReason(""));
  }

  // Asks until the answer is this one. Each question is a turn of a remote call, not of a clock.
  bool AwaitReason(const std::string& reason) const {
    return Await([&] { return Info().not_ready_reason() == reason; });
  }
  bool AwaitMetric(const std::string& series, double value) const {
    return Await([&] { return Metric(series) == value; });
  }
  template <typename Predicate>
  bool Await(Predicate predicate) const {
    const absl::Time deadline = absl::Now() + kPatience;
    while (!predicate()) {
      if (absl::Now() > deadline) return false;
    }
    return true;
  }

  // What the engine ended itself with; empty if it does not.
  std::string AwaitFatal() {
    if (fatal_message.wait_for(absl::ToChronoMilliseconds(kPatience)) !=
        std::future_status::ready) {
      return "";
    }
    return fatal_message.get();
  }

  v1::EngineInfo Info() const {
    grpc::ClientContext context;
    v1::EngineInfo info;
    EXPECT_TRUE(stub->GetInfo(&context, v1::GetInfoRequest(), &info).ok());
    return info;
  }
  // The value of `name{labels}` as it stands in the exposition; nothing if it is not there.
  std::optional<double> Metric(const std::string& series) const {
    grpc::ClientContext context;
    v1::MetricsText text;
    EXPECT_TRUE(stub->GetMetrics(&context, v1::GetMetricsRequest(), &text).ok());
    for (absl::string_view line : absl::StrSplit(text.text(), '\n')) {
      if (!absl::ConsumePrefix(&line, series) || !absl::ConsumePrefix(&line, " ")) continue;
      double value = 0;
      if (absl::SimpleAtod(line, &value)) return value;
    }
    return std::nullopt;
  }

  static v1::Submit Ask(int salt, uint32_t prompt_tokens, uint32_t max_tokens) {
    v1::Submit submit;
    submit.set_request_id(absl::StrCat("r", salt));
    for (uint32_t i = 0; i < prompt_tokens; ++i) submit.add_prompt_ids((i * 7 + salt * 131) % 1000);
    submit.set_max_tokens(max_tokens);
    submit.mutable_sampling()->set_seed(salt);
    return submit;
  }
  static std::vector<int32_t> Alone(const v1::Submit& submit, size_t n) {
    return quartet::testing::HashChainText(
        quartet::testing::HashChainRule(1000),
        std::vector<int32_t>(submit.prompt_ids().begin(), submit.prompt_ids().end()),
        submit.sampling(), n);
  }

  std::unique_ptr<Metrics> metrics;
  StatusChannel status;
  std::promise<std::string> fatal;
  std::future<std::string> fatal_message = fatal.get_future();
  std::unique_ptr<Engine> engine;
  std::unique_ptr<Server> server;
  std::shared_ptr<grpc::Channel> channel;
  std::unique_ptr<v1::Engine::Stub> stub;
  std::vector<std::unique_ptr<Worker>> workers;
};

}  // namespace quartet::coordinator

#endif  // QUARTET_TESTS_UNIT_COORDINATOR_ENGINE_HARNESS_H_
