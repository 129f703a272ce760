#include <gmock/gmock.h>

#include <thread>

#include "absl/cleanup/cleanup.h"
#include "tests/unit/coordinator/engine_harness.h"

// The coordinator behind a socket, with workers and clients that speak the real protocol.

namespace quartet::coordinator {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using State = quartet::testing::ScriptedWorker::State;

constexpr char kRunning[] = R"(vllm:num_requests_running{engine="0",model_name="hash-chain"})";
constexpr char kWaiting[] = R"(vllm:num_requests_waiting{engine="0",model_name="hash-chain"})";
constexpr char kSlotsUsed[] = R"(quartet_pool_used{pool="slots"})";
constexpr char kSteps[] = "quartet_steps_total";
constexpr char kPagesUsed[] = R"(quartet_pool_used{pool="pages"})";
constexpr char kPaused[] = "quartet_requests_paused";

class EngineRanks : public ::testing::TestWithParam<uint32_t> {};
INSTANTIATE_TEST_SUITE_P(Ranks, EngineRanks, ::testing::Values(1, 4));

TEST_P(EngineRanks, SixteenStreamsEachGetTheirOwnText) {
  EngineHarness harness(EngineHarness::Options(GetParam()));
  harness.AddRanks(GetParam());
  std::vector<std::thread> clients;
  for (int i = 0; i < 16; ++i) {
    clients.emplace_back([&harness, i] {
      const v1::Submit submit = EngineHarness::Ask(i, 50 + 40 * i, 60 + i);
      Call call(harness.stub.get(), submit);
      const grpc::Status status = call.ReadToEnd();
      EXPECT_TRUE(status.ok()) << status.error_message();
      EXPECT_TRUE(call.admitted);
      EXPECT_EQ(call.tokens, EngineHarness::Alone(submit, 60 + i));
      ASSERT_TRUE(call.finished.has_value());
      EXPECT_EQ(call.finished->reason(), v1::Finished::REASON_LENGTH);
      EXPECT_EQ(call.finished->prompt_tokens(), 50u + 40 * i);
      EXPECT_EQ(call.finished->completion_tokens(), 60u + i);
      EXPECT_EQ(call.finished->cached_tokens(), 0u);
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_TRUE(harness.AwaitMetric(kSlotsUsed, 0));
  EXPECT_TRUE(harness.AwaitMetric(kPagesUsed, 0));
  for (const auto& worker : harness.workers) EXPECT_EQ(worker->violation(), "");
}

TEST_P(EngineRanks, CancellingHalfOfThemFreesTheirPlacesAndHarmsNobody) {
  // All prompts as soon as there is budget, so that nobody is through before the last one begins.
  EngineOptions all_at_once = EngineHarness::Options(GetParam());
  all_at_once.prefill_quantum_ms = 0;
  all_at_once.min_decode_share = 0;
  EngineHarness harness(all_at_once);
  Gate gate;
  const absl::Cleanup let_all_through = [&gate] { gate.Open(); };  // also where the test breaks off
  auto options = harness.WorkerOptions();
  options.before_step = [&gate](const v1::StepPlan&) { gate.Pass(); };
  harness.AddWorker(options);
  while (harness.workers.size() < GetParam()) harness.AddWorker(harness.WorkerOptions());
  ASSERT_TRUE(harness.AwaitReason(""));

  std::vector<std::unique_ptr<Call>> calls;
  for (int i = 0; i < 16; ++i) {
    calls.push_back(std::make_unique<Call>(harness.stub.get(), EngineHarness::Ask(i, 300, 80)));
  }
  for (auto& call : calls) ASSERT_TRUE(call->ReadTokens(3));
  gate.Close();
  ASSERT_TRUE(gate.AwaitSomebody());
  // A step runs and does not end, and another waits behind it. The places come back meanwhile.
  ASSERT_TRUE(harness.AwaitMetric(kSteps, gate.arrived() + 1));
  ASSERT_EQ(harness.Metric(kSlotsUsed), 16);
  const double steps = *harness.Metric(kSteps);
  for (int i = 0; i < 16; i += 2) calls[i]->Cancel();
  EXPECT_TRUE(harness.AwaitMetric(kSlotsUsed, 8));
  EXPECT_TRUE(harness.AwaitMetric(kPagesUsed, 16));
  EXPECT_TRUE(harness.AwaitMetric(kRunning, 8));
  EXPECT_EQ(harness.Metric(kSteps), steps);
  // The workers hear of it behind those two, before the next step.
  gate.Permit(2);
  ASSERT_TRUE(gate.AwaitSomebody());
  EXPECT_TRUE(harness.AwaitMetric(kSteps, steps + 2));
  EXPECT_EQ(harness.workers[0]->open_sequences(), 8u);
  gate.Open();
  for (int i = 0; i < 16; ++i) {
    const grpc::Status status = calls[i]->ReadToEnd();
    const std::vector<int32_t> alone = EngineHarness::Alone(EngineHarness::Ask(i, 300, 80), 80);
    if (i % 2 == 0) {
      EXPECT_EQ(status.error_code(), grpc::StatusCode::CANCELLED);
      continue;
    }
    EXPECT_TRUE(status.ok()) << status.error_message();
    EXPECT_EQ(calls[i]->tokens, alone);
  }
  for (const auto& worker : harness.workers) EXPECT_EQ(worker->violation(), "");
}

TEST(Engine, AnswersOverAUnixSocketToo) {
  const std::string path = absl::StrCat("/tmp/quartet-engine-test-", getpid(), ".sock");
  EngineHarness harness(EngineHarness::Options(1), {absl::StrCat("unix:", path)});
  harness.AddRanks(1);
  const v1::Submit submit = EngineHarness::Ask(1, 10, 5);
  Call call(harness.stub.get(), submit);
  EXPECT_TRUE(call.ReadToEnd().ok());
  EXPECT_EQ(call.tokens, EngineHarness::Alone(submit, 5));
  unlink(path.c_str());
}

TEST(Engine, TwoCoordinatorsCannotShareAPort) {
  EngineHarness harness(EngineHarness::Options(1));
  auto second = StartServer(harness.server->addresses(), harness.engine.get(), [] { return ""; });
  ASSERT_FALSE(second.ok());
  EXPECT_THAT(std::string(second.status().message()),
              HasSubstr("cannot listen on " + harness.server->addresses().front()));
}

TEST(Engine, BeforeTheWorkersAreReadyEverythingIsUnavailable) {
  EngineHarness harness(EngineHarness::Options(2));
  Call early(harness.stub.get(), EngineHarness::Ask(1, 10, 5));
  grpc::Status status = early.ReadToEnd();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(status.error_message(), "waiting for workers: 0 of 2 have come");
  EXPECT_FALSE(harness.Info().ready());
  harness.AddWorker(harness.WorkerOptions());
  EXPECT_TRUE(harness.AwaitReason("waiting for workers: 1 of 2 have come"));
  harness.AddWorker(harness.WorkerOptions());
  EXPECT_TRUE(harness.AwaitReason(""));
  EXPECT_TRUE(harness.Info().ready());
  EXPECT_EQ(harness.Metric(R"(quartet_admission_refused_total{reason="not_ready"})"), 1);
}

TEST(Engine, InfoAndWelcomeCarryTheAgreedFigures) {
  EngineOptions options = EngineHarness::Options(2);
  options.max_num_seqs = 3;
  EngineHarness harness(options);
  harness.AddRanks(2);
  const v1::EngineInfo info = harness.Info();
  EXPECT_EQ(info.max_model_len(), 8192u);
  EXPECT_EQ(info.max_num_seqs(), 3u);
  EXPECT_EQ(info.vocab_size(), 1000u);
  EXPECT_EQ(info.epoch(), 4711u);
  EXPECT_EQ(info.checkpoint_digest(), "digest");
  for (uint32_t rank = 0; rank < 2; ++rank) {
    const v1::Welcome welcome = harness.workers[rank]->welcome();
    EXPECT_EQ(welcome.rank(), rank);
    EXPECT_EQ(welcome.epoch(), 4711u);
    EXPECT_EQ(welcome.tensor_parallel_size(), 2u);
    EXPECT_EQ(welcome.pools().slots(), 3u);
    EXPECT_EQ(welcome.pools().pages(), 96u);
    EXPECT_EQ(welcome.pools().snapshots(), 0u);
    EXPECT_EQ(welcome.max_num_batched_tokens(), 512u);
    EXPECT_EQ(welcome.max_model_len(), 8192u);
    EXPECT_EQ(welcome.rendezvous().segment_folder(), "/dev/shm");
    EXPECT_EQ(welcome.rendezvous().segment_name(), "quartet-test-4711");
  }
}

TEST(Engine, InvalidRequestsAreRefusedWithTheReason) {
  EngineHarness harness(EngineHarness::Options(1));
  harness.AddRanks(1);
  Call call(harness.stub.get(), EngineHarness::Ask(1, 8000, 200));
  const grpc::Status status = call.ReadToEnd();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(status.error_message(),
            "prompt (8000 tokens) + max_tokens (200) = 8200 exceeds the context of 8192 tokens");
}

TEST(Engine, RequestsOutOfOrderAreRefused) {
  EngineHarness harness(EngineHarness::Options(1));
  harness.AddRanks(1);
  const v1::Submit submit = EngineHarness::Ask(1, 10, 5000);
  v1::EngineRequest again;
  *again.mutable_submit() = submit;
  Call twice(harness.stub.get(), submit);
  twice.Write(again);
  EXPECT_EQ(twice.ReadToEnd().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  Call nothing(harness.stub.get(), submit);
  nothing.Write(v1::EngineRequest());
  EXPECT_EQ(nothing.ReadToEnd().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  Call beyond(harness.stub.get(), submit);
  beyond.Truncate(8000);
  EXPECT_EQ(beyond.ReadToEnd().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_TRUE(harness.AwaitMetric(kSlotsUsed, 0));
}

TEST(Engine, AFullQueueIsResourceExhausted) {
  EngineOptions options = EngineHarness::Options(1);
  options.max_num_seqs = 1;
  options.max_queued_requests = 2;
  EngineHarness harness(options);
  Gate gate;
  auto worker = harness.WorkerOptions();
  worker.before_step = [&gate](const v1::StepPlan&) { gate.Pass(); };
  harness.AddWorker(worker);
  ASSERT_TRUE(harness.AwaitReason(""));
  gate.Close();
  std::vector<std::unique_ptr<Call>> calls;
  calls.push_back(std::make_unique<Call>(harness.stub.get(), EngineHarness::Ask(0, 10, 5)));
  ASSERT_TRUE(harness.AwaitMetric(kRunning, 1));
  for (int i = 1; i < 3; ++i) {
    calls.push_back(std::make_unique<Call>(harness.stub.get(), EngineHarness::Ask(i, 10, 5)));
    ASSERT_TRUE(harness.AwaitMetric(kWaiting, i));
  }
  Call excess(harness.stub.get(), EngineHarness::Ask(3, 10, 5));
  const grpc::Status status = excess.ReadToEnd();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(status.error_message(), HasSubstr("2 requests wait, the limit is 2"));
  EXPECT_GE(excess.retry_after_ms.value_or(0), 1000u);
  EXPECT_LE(excess.retry_after_ms.value_or(0), 60000u);
  EXPECT_EQ(harness.Metric(R"(quartet_admission_refused_total{reason="queue_full"})"), 1);
  gate.Open();
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(calls[i]->ReadToEnd().ok());
    EXPECT_EQ(calls[i]->tokens, EngineHarness::Alone(EngineHarness::Ask(i, 10, 5), 5));
  }
}

TEST(Engine, TruncateEndsTheCallInOrder) {
  EngineHarness harness(EngineHarness::Options(1));
  harness.AddRanks(1);
  Call call(harness.stub.get(), EngineHarness::Ask(1, 10, 8000));
  ASSERT_TRUE(call.ReadTokens(5));
  call.Truncate(4);
  EXPECT_TRUE(call.ReadToEnd().ok());
  ASSERT_TRUE(call.finished.has_value());
  EXPECT_EQ(call.finished->reason(), v1::Finished::REASON_TRUNCATED);
  EXPECT_EQ(call.finished->completion_tokens(), 4u);
  EXPECT_TRUE(harness.AwaitMetric(kSlotsUsed, 0));
}

TEST(Engine, HalfCloseCancels) {
  EngineHarness harness(EngineHarness::Options(1));
  harness.AddRanks(1);
  Call call(harness.stub.get(), EngineHarness::Ask(1, 10, 8000));
  ASSERT_TRUE(call.ReadTokens(1));
  call.HalfClose();
  EXPECT_EQ(call.ReadToEnd().error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_FALSE(call.finished.has_value());
  EXPECT_TRUE(harness.AwaitMetric(kSlotsUsed, 0));
}

TEST(Engine, LogprobsOfPromptAndAnswerComeWithTheTokens) {
  EngineHarness harness(EngineHarness::Options(2));
  harness.AddRanks(2);
  v1::Submit submit = EngineHarness::Ask(1, 700, 5);
  submit.set_logprobs(true);
  submit.set_prompt_logprobs(true);
  Call call(harness.stub.get(), submit);
  int logprobs = 0;
  int prompt_logprobs = 0;
  while (auto event = call.Read()) {
    logprobs += event->tokens().logprobs_size();
    prompt_logprobs += event->tokens().prompt_logprobs_size();
  }
  EXPECT_EQ(logprobs, 5);
  EXPECT_EQ(prompt_logprobs, 699);
}

// Drafts and the prefix cache, with names of units from libcrypto: the next turn of a conversation
// begins behind the last unit of what was said before.
TEST(Engine, TheNextTurnBeginsBehindTheAnswerAndDraftsAreCounted) {
  EngineHarness harness(EngineHarness::Options(2));
  for (int rank = 0; rank < 2; ++rank) {
    auto options = harness.WorkerOptions();
    options.snapshot_bytes = 1 << 10;
    options.num_mtp_layers = 1;
    harness.AddWorker(options);
  }
  ASSERT_TRUE(harness.AwaitReason(""));
  v1::Submit submit = EngineHarness::Ask(1, 300, 400);
  Call first(harness.stub.get(), submit);
  ASSERT_TRUE(first.ReadToEnd().ok());
  EXPECT_EQ(first.tokens, EngineHarness::Alone(submit, 400));
  EXPECT_EQ(first.finished->cached_tokens(), 0u);

  submit.mutable_prompt_ids()->Add(first.tokens.begin(), first.tokens.end());
  for (int i = 0; i < 50; ++i) submit.add_prompt_ids(i);
  submit.set_max_tokens(20);
  Call second(harness.stub.get(), submit);
  ASSERT_TRUE(second.ReadToEnd().ok());
  EXPECT_EQ(second.tokens, EngineHarness::Alone(submit, 20));
  EXPECT_EQ(second.finished->cached_tokens(), 512u);

  const auto count = [&harness](const std::string& name, const std::string& labels = "") {
    return harness
        .Metric(absl::StrCat("vllm:spec_decode_num_", name,
                             "_total{engine=\"0\",model_name=", "\"hash-chain\"", labels, "}"))
        .value_or(-1);
  };
  const double accepted = count("accepted_tokens");
  EXPECT_GT(accepted, 100);
  EXPECT_LT(accepted, 418) << "a token of each answer is drawn behind its prompt";
  EXPECT_GE(count("draft_tokens"), accepted);
  EXPECT_LE(count("drafts") + accepted, 420)
      << "a window says one token more than its drafts, unless its answer ends in it";
  double by_place = 0;
  for (int place = 0; place < 3; ++place) {
    by_place += count("accepted_tokens_per_pos", absl::StrCat(",position=\"", place, "\""));
  }
  EXPECT_EQ(by_place, accepted);
  for (const auto& worker : harness.workers) EXPECT_EQ(worker->violation(), "");
}

TEST(Engine, AClientThatDoesNotReadIsCancelled) {
  EngineOptions options = EngineHarness::Options(1);
  options.stream_buffer_bytes = 512;
  options.slow_client_timeout_ms = 1;
  EngineHarness harness(options);
  harness.AddRanks(1);
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 1024);
  arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  auto slow = v1::Engine::NewStub(harness.NewChannel(arguments));
  Call call(slow.get(), EngineHarness::Ask(1, 10, 8000));
  ASSERT_TRUE(call.ReadTokens(1));
  // Nobody reads any more; the engine gives the place back long before the 8,000 tokens are done.
  EXPECT_TRUE(harness.AwaitMetric(kSlotsUsed, 0));
  const grpc::Status status = call.ReadToEnd();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_THAT(status.error_message(), HasSubstr("unread"));
  EXPECT_LT(call.tokens.size(), 8000u);
}

TEST(Engine, AClientThatPausesGetsNoTokensUntilItGoesOn) {
  EngineHarness harness(EngineHarness::Options(1));
  harness.AddRanks(1);
  const v1::Submit submit = EngineHarness::Ask(1, 10, 4000);
  Call call(harness.stub.get(), submit);
  ASSERT_TRUE(call.ReadTokens(3));
  call.Pause(true);
  ASSERT_TRUE(harness.AwaitMetric(kPaused, 1));
  const double steps = *harness.Metric("quartet_steps_total");
  // It alone is paused: others go on.
  const v1::Submit other = EngineHarness::Ask(2, 10, 200);
  Call brisk(harness.stub.get(), other);
  EXPECT_TRUE(brisk.ReadToEnd().ok());
  EXPECT_EQ(brisk.tokens, EngineHarness::Alone(other, 200));
  EXPECT_LE(*harness.Metric("quartet_steps_total"), steps + 201) << "it had rows of its own";
  EXPECT_EQ(harness.Metric(kSlotsUsed), 1) << "and keeps its place";
  call.Pause(false);
  EXPECT_TRUE(call.ReadToEnd().ok());
  EXPECT_EQ(call.tokens, EngineHarness::Alone(submit, 4000));
  EXPECT_EQ(harness.Metric(kPaused), 0);
}

TEST(Engine, AClientThatStaysPausedIsCancelled) {
  EngineOptions options = EngineHarness::Options(1);
  options.slow_client_timeout_ms = 50;
  EngineHarness harness(options);
  harness.AddRanks(1);
  Call call(harness.stub.get(), EngineHarness::Ask(1, 10, 8000));
  ASSERT_TRUE(call.ReadTokens(1));
  call.Pause(true);
  EXPECT_EQ(call.ReadToEnd().error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_TRUE(harness.AwaitMetric(kSlotsUsed, 0));
}

TEST(Engine, AClientThatReadsSlowlyIsPausedAndThenGetsTheRest) {
  EngineOptions options = EngineHarness::Options(1);
  options.stream_buffer_bytes = 512;
  EngineHarness harness(options);
  harness.AddRanks(1);
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 1024);
  arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  auto slow = v1::Engine::NewStub(harness.NewChannel(arguments));
  const v1::Submit submit = EngineHarness::Ask(1, 10, 8000);
  Call call(slow.get(), submit);
  ASSERT_TRUE(call.ReadTokens(1));
  ASSERT_TRUE(harness.AwaitMetric(kPaused, 1));
  EXPECT_TRUE(call.ReadToEnd().ok());
  EXPECT_EQ(call.tokens, EngineHarness::Alone(submit, 8000));
}

TEST(Engine, PausesBeforeTheSubmitAreRefused) {
  EngineHarness harness(EngineHarness::Options(1));
  harness.AddRanks(1);
  grpc::ClientContext context;
  auto stream = harness.stub->Generate(&context);
  v1::EngineRequest request;
  request.mutable_pause()->set_paused(true);
  stream->Write(request);
  v1::EngineEvent event;
  EXPECT_FALSE(stream->Read(&event));
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
}

TEST(Engine, ADeadlineThatPassesEndsTheCallAlsoInTheMiddleOfAStep) {
  EngineHarness harness(EngineHarness::Options(1));
  Gate gate;
  auto worker = harness.WorkerOptions();
  worker.before_step = [&gate](const v1::StepPlan&) { gate.Pass(); };
  harness.AddWorker(worker);
  ASSERT_TRUE(harness.AwaitReason(""));
  gate.Close();
  v1::Submit submit = EngineHarness::Ask(1, 10, 500);
  submit.set_total_deadline_ms(100);
  Call call(harness.stub.get(), submit);
  const grpc::Status status = call.ReadToEnd();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_EQ(status.error_message(), "its deadline of 100 ms passed after 0 tokens");
  EXPECT_EQ(harness.Metric(kSlotsUsed), 0);
  gate.Open();
}

TEST(Engine, AdmissionAndOrderAreCounted) {
  EngineHarness harness(EngineHarness::Options(1));
  harness.AddRanks(1);
  for (int i = 0; i < 3; ++i) {
    Call call(harness.stub.get(), EngineHarness::Ask(i, 100, 5));
    EXPECT_TRUE(call.ReadToEnd().ok());
  }
  // Nothing was known when the first one came.
  EXPECT_EQ(harness.Metric("quartet_ttft_prediction_error_seconds_count"), 2);
  EXPECT_EQ(harness.Metric("quartet_overtakes_total"), 0);
  EXPECT_EQ(harness.Metric("quartet_no_progress_total"), 0);
  v1::Submit late = EngineHarness::Ask(9, 8000, 5);
  late.set_first_token_deadline_ms(1);
  Call call(harness.stub.get(), late);
  EXPECT_EQ(call.ReadToEnd().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(harness.Metric(R"(quartet_admission_refused_total{reason="deadline"})"), 1);
}

TEST(Engine, OptionsThatMakeNoSenseAreNamed) {
  EngineOptions options = EngineHarness::Options(1);
  EXPECT_EQ(OptionsError(options), "");
  options.min_decode_share = 1;
  EXPECT_THAT(OptionsError(options), HasSubstr("--min-decode-share"));
  options.min_decode_share = 0.5;
  options.queue_timeout_s = 4000000000;
  EXPECT_THAT(OptionsError(options), HasSubstr("--queue-timeout-s"));
}

// ---- ranks that fail -------------------------------------------------------------------------

class EngineFaults : public ::testing::Test {
 protected:
  // Four ranks of which rank 0 stands before a step that is in flight, with two calls open.
  void Begin(EngineOptions options) {
    harness_ = std::make_unique<EngineHarness>(options);
    auto first = harness_->WorkerOptions();
    first.before_step = [this](const v1::StepPlan&) { gate_.Pass(); };
    harness_->AddWorker(first);
    ASSERT_TRUE(harness_->AwaitReason("waiting for workers: 1 of 4 have come"));
    for (int i = 1; i < 4; ++i) {
      harness_->AddWorker(harness_->WorkerOptions());
      if (i < 3) {
        ASSERT_TRUE(
            harness_->AwaitReason(absl::StrCat("waiting for workers: ", i + 1, " of 4 have come")));
      }
    }
    ASSERT_TRUE(harness_->AwaitReason(""));
    for (int i = 0; i < 2; ++i) {
      calls_.push_back(
          std::make_unique<Call>(harness_->stub.get(), EngineHarness::Ask(i, 10, 4000)));
      ASSERT_TRUE(calls_.back()->ReadTokens(2));
    }
    gate_.Close();
    ASSERT_TRUE(gate_.AwaitSomebody());
  }
  void ExpectAborted(const std::string& message) {
    for (auto& call : calls_) {
      const grpc::Status status = call->ReadToEnd();
      EXPECT_EQ(status.error_code(), grpc::StatusCode::ABORTED);
      EXPECT_THAT(status.error_message(), HasSubstr(message));
      EXPECT_FALSE(call->finished.has_value());
    }
    EXPECT_THAT(harness_->AwaitFatal(), HasSubstr(message));
    EXPECT_THAT(harness_->Info().not_ready_reason(), HasSubstr(message));
    EXPECT_EQ(harness_->Metric(kSlotsUsed), 0);
    Call late(harness_->stub.get(), EngineHarness::Ask(9, 10, 5));
    EXPECT_EQ(late.ReadToEnd().error_code(), grpc::StatusCode::UNAVAILABLE);
  }

  Gate gate_;
  std::unique_ptr<EngineHarness> harness_;
  std::vector<std::unique_ptr<Call>> calls_;
};

TEST_F(EngineFaults, AWorkerThatDiesEndsEveryCallWithItsRankAndTheOthersAreTold) {
  Begin(EngineHarness::Options(4));
  harness_->workers[2]->Kill();
  ExpectAborted("rank 2 (cpu-test-2) is lost: its process ended or its connection broke");
  gate_.Open();
  for (int rank : {0, 1, 3}) {
    ASSERT_TRUE(harness_->workers[rank]->WaitFor(State::kAborted));
    EXPECT_THAT(harness_->workers[rank]->reason(), HasSubstr("rank 2"));
  }
}

TEST_F(EngineFaults, ARankThatDoesNotAnswerInTimeIsNamed) {
  EngineOptions options = EngineHarness::Options(4);
  options.step_deadline_ms = 300;
  Begin(options);
  ExpectAborted("rank 0 (cpu-test-0) did not answer step");
  gate_.Open();
}

TEST_F(EngineFaults, AFailureThatAWorkerReportsIsPassedOn) {
  Begin(EngineHarness::Options(4));
  harness_->workers[3]->Fail("out of memory", false);
  ExpectAborted("rank 3 (cpu-test-3) cannot go on: out of memory");
  gate_.Open();
}

TEST(Engine, RanksThatDisagreeLetNoTokenOfTheStepLeave) {
  EngineHarness harness(EngineHarness::Options(4));
  for (int i = 0; i < 4; ++i) {
    auto options = harness.WorkerOptions();
    options.edit_result = [](v1::StepResult* result) {
      if (result->rank() == 3 && result->step_id() == 3) {
        result->set_agreement_hash(result->agreement_hash() + 1);
      }
    };
    harness.AddWorker(options);
  }
  ASSERT_TRUE(harness.AwaitReason(""));
  const v1::Submit submit = EngineHarness::Ask(1, 10, 50);
  Call call(harness.stub.get(), submit);
  const grpc::Status status = call.ReadToEnd();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::ABORTED);
  EXPECT_THAT(status.error_message(), HasSubstr("rank 3 does not agree with rank 0 about step 3"));
  EXPECT_EQ(call.tokens, EngineHarness::Alone(submit, 2));
  EXPECT_NE(harness.AwaitFatal(), "");
  EXPECT_EQ(harness.Metric("quartet_agreement_mismatch_total"), 1);
}

TEST(Engine, AStepErrorNamesTheRankAndTheStep) {
  EngineHarness harness(EngineHarness::Options(2));
  for (int i = 0; i < 2; ++i) {
    auto options = harness.WorkerOptions();
    options.edit_result = [](v1::StepResult* result) {
      if (result->rank() == 1 && result->step_id() == 2) result->set_error("the device is gone");
    };
    harness.AddWorker(options);
  }
  ASSERT_TRUE(harness.AwaitReason(""));
  Call call(harness.stub.get(), EngineHarness::Ask(1, 10, 50));
  const grpc::Status status = call.ReadToEnd();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::ABORTED);
  EXPECT_THAT(status.error_message(), HasSubstr("rank 1 failed in step 2: the device is gone"));
}

TEST(Engine, ShutdownAnswersOpenCallsAndTellsTheWorkers) {
  EngineHarness harness(EngineHarness::Options(2));
  harness.AddRanks(2);
  Call call(harness.stub.get(), EngineHarness::Ask(1, 10, 8000));
  ASSERT_TRUE(call.ReadTokens(1));
  harness.engine->Shutdown();
  const grpc::Status status = call.ReadToEnd();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(status.error_message(), "the coordinator is shutting down");
  for (const auto& worker : harness.workers) EXPECT_TRUE(worker->WaitFor(State::kAborted));
  EXPECT_EQ(harness.fatal_message.wait_for(std::chrono::seconds(0)), std::future_status::timeout);
  Call late(harness.stub.get(), EngineHarness::Ask(1, 10, 5));
  EXPECT_EQ(late.ReadToEnd().error_code(), grpc::StatusCode::UNAVAILABLE);
}

// ---- joining ---------------------------------------------------------------------------------

TEST(EngineJoining, ASpareTakesTheRankOfAWorkerThatDiesWhileLoading) {
  EngineHarness harness(EngineHarness::Options(2));
  Gate loading;
  loading.Close();
  harness.AddWorker(harness.WorkerOptions());
  ASSERT_TRUE(harness.AwaitReason("waiting for workers: 1 of 2 have come"));
  auto stuck = harness.WorkerOptions();
  stuck.before_ready = [&loading](const v1::Welcome&) { loading.Pass(); };
  harness.AddWorker(stuck);
  ASSERT_TRUE(harness.AwaitReason("loading weights: 1 of 2 ranks are ready"));
  ASSERT_TRUE(loading.AwaitSomebody());
  harness.AddWorker(harness.WorkerOptions());
  ASSERT_TRUE(harness.workers[2]->WaitFor(State::kSpare));
  harness.workers[1]->Kill();
  ASSERT_TRUE(harness.workers[2]->WaitFor(State::kReady));
  EXPECT_EQ(harness.workers[2]->rank(), 1u);
  EXPECT_TRUE(harness.AwaitReason(""));
  loading.Open();
  const v1::Submit submit = EngineHarness::Ask(1, 10, 5);
  Call call(harness.stub.get(), submit);
  EXPECT_TRUE(call.ReadToEnd().ok());
  EXPECT_EQ(call.tokens, EngineHarness::Alone(submit, 5));
}

TEST(EngineJoining, AnotherCheckpointIsRefusedAndTheOthersServe) {
  EngineHarness harness(EngineHarness::Options(1));
  harness.AddRanks(1);
  auto other = harness.WorkerOptions();
  other.checkpoint_digest = "xyz";
  harness.AddWorker(other);
  ASSERT_TRUE(harness.workers[1]->WaitFor(State::kRefused));
  EXPECT_THAT(harness.workers[1]->reason(), HasSubstr("another checkpoint (digest xyz)"));
  EXPECT_TRUE(harness.Info().ready());
}

TEST(EngineJoining, AnImpossibleTensorParallelSizeEndsTheEngine) {
  EngineHarness harness(EngineHarness::Options(3));
  harness.AddWorker(harness.WorkerOptions());
  ASSERT_TRUE(harness.workers[0]->WaitFor(State::kRefused));
  EXPECT_THAT(harness.workers[0]->reason(), HasSubstr("possible: 1, 2, 4"));
  const std::string fatal = harness.AwaitFatal();
  EXPECT_EQ(fatal, harness.workers[0]->reason());
}

TEST(EngineJoining, AContextLargerThanTheMemoryPlanEndsTheEngineWithTheLargestThatFits) {
  EngineHarness harness(EngineHarness::Options(1));
  auto poor = harness.WorkerOptions();
  poor.budget_bytes = (17 << 20) + (512 << 10) + (10 << 10);  // 16 slots, weights, 10 pages
  harness.AddWorker(poor);
  const std::string fatal = harness.AwaitFatal();
  EXPECT_THAT(fatal, HasSubstr("one context of 8192 tokens needs 32 pages"));
  EXPECT_THAT(fatal, HasSubstr("the largest --max-model-len that fits is 2560"));
  EXPECT_TRUE(harness.workers[0]->WaitFor(State::kRefused));
}

TEST(EngineJoining, ABadCheckpointEndsTheEngineWithTheWorkersMessage) {
  EngineHarness harness(EngineHarness::Options(2));
  harness.AddWorker(harness.WorkerOptions());
  ASSERT_TRUE(harness.AwaitReason("waiting for workers: 1 of 2 have come"));
  harness.workers[0]->Fail("model.safetensors: tensor x has shape [1]", true);
  const std::string fatal = harness.AwaitFatal();
  EXPECT_THAT(fatal, HasSubstr("cannot go on: model.safetensors: tensor x has shape [1]"));
}

}  // namespace
}  // namespace quartet::coordinator
