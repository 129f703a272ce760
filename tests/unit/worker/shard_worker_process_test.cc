// The program quartet-shard-worker against a coordinator that a test plays, over real sockets and
// with the demo checkpoint.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "boost/asio/ip/tcp.hpp"
#include "boost/asio/write.hpp"
#include "shard_worker/checkpoint/memory_plan.h"
#include "tests/unit/worker/child_process.h"
#include "tests/unit/worker/golden_file.h"
#include "tests/unit/worker/scripted_coordinator.h"

namespace quartet {
namespace {

using testing::HasSubstr;

constexpr uint64_t kEpoch = 7;
constexpr int kSlots = 2;
constexpr int kPages = 16;
constexpr int kBatchedTokens = 64;

std::string DemoModel() {
  return QUARTET_SOURCE_DIR "/models/quartet-demo-exl3";
}

v1::ToWorker Welcome(int rank, int tp) {
  v1::ToWorker message;
  v1::Welcome& welcome = *message.mutable_welcome();
  welcome.set_epoch(kEpoch);
  welcome.set_rank(rank);
  welcome.set_tensor_parallel_size(tp);
  welcome.mutable_rendezvous()->set_segment_folder("/dev/shm");
  static int groups = 0;
  if (rank == 0) ++groups;
  welcome.mutable_rendezvous()->set_segment_name(
      absl::StrCat("quartet-worker-test-", getpid(), "-", groups));
  welcome.mutable_pools()->set_slots(kSlots);
  welcome.mutable_pools()->set_pages(kPages);
  welcome.set_max_num_batched_tokens(kBatchedTokens);
  welcome.set_max_model_len(2048);
  return message;
}

v1::ToWorker Open(uint64_t uid, int slot) {
  v1::ToWorker message;
  message.mutable_open()->set_seq_uid(uid);
  message.mutable_open()->set_slot(slot);
  return message;
}

// A plan with one row; pages are appended as the position asks for them.
v1::ToWorker Plan(uint64_t step, uint64_t uid, int slot, int position,
                  const std::vector<int32_t>& tokens, int first_page) {
  v1::ToWorker message;
  v1::StepPlan& plan = *message.mutable_plan();
  plan.set_epoch(kEpoch);
  plan.set_step_id(step);
  plan.set_plan_hash(0x1234 + step);
  v1::Row& row = *plan.add_rows();
  row.set_seq_uid(uid);
  row.set_slot(slot);
  row.set_kind(v1::Row::KIND_PREFILL);
  row.mutable_tokens()->Add(tokens.begin(), tokens.end());
  row.set_n_tokens(tokens.size());
  row.set_position(position);
  const int end = position + static_cast<int>(tokens.size());
  for (int page = (position + 255) / 256; page < (end + 255) / 256; ++page) {
    row.add_new_pages(first_page + page);
  }
  return message;
}

// A worker process and its stream, brought as far as a test wants.
struct Worker {
  std::unique_ptr<ChildProcess> process;
  WorkerStream* stream = nullptr;

  v1::StepResult Result() {
    const std::optional<v1::FromWorker> message = stream->Next();
    if (!message || !message->has_result()) {
      ADD_FAILURE() << "no result; " << (message ? message->ShortDebugString() : "stream over");
      return {};
    }
    return message->result();
  }
};

class ShardWorkerProcessTest : public testing::Test {
 protected:
  std::unique_ptr<ChildProcess> Start(const std::string& model, const std::string& address,
                                      std::vector<std::string> more = {}) {
    std::vector<std::string> arguments = {QUARTET_BINARY_DIR "/quartet-shard-worker",
                                          "--coordinator",
                                          address,
                                          "--model",
                                          model,
                                          "--kv-dtype",
                                          "fp32",
                                          "--threads",
                                          "1",
                                          "--listen-admin",
                                          "127.0.0.1:0",
                                          "--status-fd",
                                          "3"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return std::make_unique<ChildProcess>(arguments);
  }

  // A worker that has said hello.
  Worker Hello(v1::Hello* hello = nullptr) {
    Worker worker;
    worker.process = Start(DemoModel(), coordinator_->address());
    worker.stream = coordinator_->AwaitWorker();
    if (worker.stream == nullptr) {
      ADD_FAILURE() << "no worker; " << worker.process->StandardError();
      return worker;
    }
    const std::optional<v1::FromWorker> message = worker.stream->Next();
    EXPECT_TRUE(message && message->has_hello()) << worker.process->StandardError();
    if (message && hello != nullptr) *hello = message->hello();
    return worker;
  }

  // A group of workers that are ready.
  std::vector<Worker> Ready(int tp) {
    std::vector<Worker> workers;
    for (int rank = 0; rank < tp; ++rank) {
      workers.push_back(Hello());
      workers.back().stream->Send(Welcome(rank, tp));
    }
    for (Worker& worker : workers) {
      const std::optional<v1::FromWorker> message = worker.stream->NextButProgress();
      EXPECT_TRUE(message && message->has_ready()) << worker.process->StandardError();
      EXPECT_EQ(message ? message->ready().epoch() : 0, kEpoch);
    }
    return workers;
  }

  static void SendAll(std::vector<Worker>& workers, const v1::ToWorker& message) {
    for (Worker& worker : workers) worker.stream->Send(message);
  }

  std::unique_ptr<ScriptedCoordinator> coordinator_ = ScriptedCoordinator::Start();
};

std::vector<int32_t> Tokens(int count) {
  const GoldenFile golden(QUARTET_SOURCE_DIR "/tests/data/demo/heldout_logprobs.safetensors");
  std::vector<int32_t> ids = golden.I32("input_ids");
  ids.resize(count);
  return ids;
}

// One GET on the worker's admin port.
std::string HttpGet(const std::string& address, const std::string& path) {
  namespace asio = boost::asio;
  asio::io_context context;
  asio::ip::tcp::socket socket(context);
  const size_t colon = address.rfind(':');
  boost::system::error_code error;
  socket.connect({asio::ip::make_address(address.substr(0, colon)),
                  static_cast<uint16_t>(std::stoi(address.substr(colon + 1)))},
                 error);
  if (error) return error.message();
  asio::write(
      socket,
      asio::buffer(absl::StrCat("GET ", path, " HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")),
      error);
  std::string text;
  char bytes[4096];
  while (const size_t count = socket.read_some(asio::buffer(bytes), error)) {
    text.append(bytes, count);
  }
  return text;
}

TEST_F(ShardWorkerProcessTest, HelloSaysWhatTheWorkerIsAndWhatFits) {
  v1::Hello hello;
  Worker worker = Hello(&hello);
  EXPECT_THAT(hello.device_uuid(), HasSubstr("cpu-"));
  EXPECT_EQ(hello.previous_rank(), -1);
  EXPECT_EQ(hello.schema_version(), 1u);
  EXPECT_EQ(hello.checkpoint_digest().size(), 64u);
  EXPECT_EQ(hello.model().name(), "quartet-demo-exl3");
  EXPECT_EQ(hello.model().vocab_size(), 2048u);
  EXPECT_EQ(hello.model().num_layers(), 9u);
  EXPECT_EQ(hello.model().hidden_size(), 128u);
  // 8 heads, but 512 inner channels in blocks of 128: four ranks are the most.
  std::vector<int> sizes;
  for (const v1::MemoryOffer& offer : hello.offers()) {
    sizes.push_back(static_cast<int>(offer.tensor_parallel_size()));
    EXPECT_GT(offer.weight_bytes(), 0u);
    EXPECT_GT(offer.slot_bytes(), 0u);
    EXPECT_GT(offer.activation_bytes_per_token(), 0u);
    EXPECT_EQ(offer.page_tokens(), 256u);
    // Three caches of FP32 latents [256, 128] and pooled keys [64, 128].
    EXPECT_EQ(offer.page_bytes(), 3u * (256 * 128 * 4 + 64 * 128 * 4));
  }
  EXPECT_THAT(sizes, testing::ElementsAre(1, 2, 4));
  EXPECT_EQ(hello.offers(0).budget_bytes() / 2, hello.offers(1).budget_bytes());
}

TEST_F(ShardWorkerProcessTest, ReportsProgressAndReadinessAndAnswersPlans) {
  Worker worker = Hello();
  const std::optional<StatusEvent> admin =
      worker.process->AwaitEvent(StatusEvent::Kind::kListening);
  ASSERT_TRUE(admin);
  EXPECT_EQ(admin->name, "admin");
  EXPECT_THAT(HttpGet(admin->address, "/livez"), HasSubstr("200"));
  EXPECT_THAT(HttpGet(admin->address, "/readyz"), HasSubstr("503"));

  worker.stream->Send(Welcome(0, 1));
  std::optional<v1::FromWorker> message = worker.stream->Next();
  ASSERT_TRUE(message && message->has_progress()) << worker.process->StandardError();
  EXPECT_GT(message->progress().total_bytes(), 0u);
  const std::optional<StatusEvent> progress =
      worker.process->AwaitEvent(StatusEvent::Kind::kProgress);
  ASSERT_TRUE(progress);
  EXPECT_EQ(progress->stage, "loading weights");
  message = worker.stream->NextButProgress();
  ASSERT_TRUE(message && message->has_ready());
  ASSERT_TRUE(worker.process->AwaitEvent(StatusEvent::Kind::kReady));
  EXPECT_THAT(HttpGet(admin->address, "/readyz"), HasSubstr("200"));

  worker.stream->Send(Open(1, 0));
  v1::ToWorker plan = Plan(1, 1, 0, 0, Tokens(20), 0);
  plan.mutable_plan()->mutable_rows(0)->set_sample(true);
  worker.stream->Send(plan);
  const v1::StepResult result = worker.Result();
  EXPECT_EQ(result.error(), "");
  EXPECT_EQ(result.epoch(), kEpoch);
  EXPECT_EQ(result.step_id(), 1u);
  ASSERT_EQ(result.rows_size(), 1);
  EXPECT_EQ(result.rows(0).tokens_size(), 1);

  // The same step id again: the stored answer, nothing is run twice.
  worker.stream->Send(plan);
  EXPECT_EQ(worker.Result().SerializeAsString(), result.SerializeAsString());
  // Another epoch, and a gap in the step ids.
  plan.mutable_plan()->set_epoch(kEpoch - 1);
  worker.stream->Send(plan);
  EXPECT_THAT(worker.Result().error(), HasSubstr("epoch 6"));
  plan.mutable_plan()->set_epoch(kEpoch);
  plan.mutable_plan()->set_step_id(3);
  worker.stream->Send(plan);
  EXPECT_THAT(worker.Result().error(), HasSubstr("expected step id 2"));

  const std::string metrics = HttpGet(admin->address, "/metrics");
  EXPECT_THAT(metrics, HasSubstr("quartet_worker_steps_total 1"));
  EXPECT_THAT(metrics, HasSubstr("quartet_worker_tokens_total{kind=\"prefill\"} 20"));
  EXPECT_THAT(metrics, HasSubstr("quartet_worker_pool_used{pool=\"pages\"} 1"));
  EXPECT_THAT(metrics, HasSubstr("quartet_worker_pool_used{pool=\"slots\"} 1"));

  worker.process->Signal(SIGTERM);
  EXPECT_EQ(worker.process->AwaitExit(absl::Seconds(5)), 0) << worker.process->StandardError();
}

TEST_F(ShardWorkerProcessTest, TwoRanksAgree) {
  std::vector<Worker> workers = Ready(2);
  SendAll(workers, Open(1, 1));
  v1::ToWorker plan = Plan(1, 1, 1, 0, Tokens(30), 0);
  plan.mutable_plan()->mutable_rows(0)->set_sample(true);
  plan.mutable_plan()->mutable_rows(0)->set_draft(true);
  plan.mutable_plan()->mutable_rows(0)->set_draft_chain(3);
  SendAll(workers, plan);
  const v1::StepResult first = workers[0].Result();
  const v1::StepResult second = workers[1].Result();
  EXPECT_EQ(first.error(), "");
  ASSERT_EQ(first.rows_size(), 1);
  EXPECT_EQ(first.rows(0).drafts_size(), 3);
  EXPECT_EQ(second.rows_size(), 0) << "only rank 0 reports rows";
  EXPECT_EQ(first.agreement_hash(), second.agreement_hash());
  EXPECT_NE(first.agreement_hash(), 0u);
  EXPECT_EQ(second.rank(), 1u);

  // What every rank holds in full is the same, bit for bit.
  v1::ToWorker dump;
  dump.mutable_dump_request()->set_seq_uid(1);
  SendAll(workers, dump);
  const std::optional<v1::FromWorker> a = workers[0].stream->Next();
  const std::optional<v1::FromWorker> b = workers[1].stream->Next();
  ASSERT_TRUE(a && a->has_dump() && b && b->has_dump());
  EXPECT_EQ(a->dump().tokens(), 30u);
  EXPECT_EQ(a->dump().state_hashes().at("layer3.latent"),
            b->dump().state_hashes().at("layer3.latent"));
  EXPECT_NE(a->dump().state_hashes().at("layer0.recurrent"),
            b->dump().state_hashes().at("layer0.recurrent"));
}

TEST_F(ShardWorkerProcessTest, AnswersPingWhileAStepRuns) {
  std::vector<Worker> workers = Ready(2);
  SendAll(workers, Open(1, 0));
  // Rank 1 does not have the plan yet, so rank 0 is inside the step until it gets it.
  const v1::ToWorker plan = Plan(1, 1, 0, 0, Tokens(8), 0);
  workers[0].stream->Send(plan);
  v1::ToWorker ping;
  ping.mutable_ping()->set_nonce(99);
  workers[0].stream->Send(ping);
  const std::optional<v1::FromWorker> pong = workers[0].stream->Next();
  ASSERT_TRUE(pong && pong->has_pong());
  EXPECT_EQ(pong->pong().nonce(), 99u);
  workers[1].stream->Send(plan);
  EXPECT_EQ(workers[0].Result().error(), "");
  EXPECT_EQ(workers[1].Result().error(), "");
}

TEST_F(ShardWorkerProcessTest, AbortEndsAWorkerInTheMiddleOfAStep) {
  std::vector<Worker> workers = Ready(2);
  SendAll(workers, Open(1, 0));
  workers[0].stream->Send(Plan(1, 1, 0, 0, Tokens(8), 0));
  v1::ToWorker abort;
  abort.mutable_abort()->set_epoch(kEpoch);
  abort.mutable_abort()->set_reason("rank 3 is gone");
  SendAll(workers, abort);
  for (Worker& worker : workers) {
    EXPECT_EQ(worker.process->AwaitExit(absl::Seconds(10)), 1);
    EXPECT_THAT(worker.process->StandardError(), HasSubstr("rank 3 is gone"));
  }
}

TEST_F(ShardWorkerProcessTest, AWorkerWhoseStreamBreaksEnds) {
  Worker worker = std::move(Ready(1)[0]);
  worker.stream->Cut();
  EXPECT_EQ(worker.process->AwaitExit(absl::Seconds(10)), 1);
  const std::optional<StatusEvent> error = worker.process->AwaitEvent(StatusEvent::Kind::kError);
  ASSERT_TRUE(error);
  EXPECT_THAT(error->message, HasSubstr("the stream to the coordinator broke"));
}

TEST_F(ShardWorkerProcessTest, AWorkerThatWaitsForItsPeersCanBeEnded) {
  for (const bool by_signal : {false, true}) {
    SCOPED_TRACE(by_signal ? "by SIGTERM" : "by the coordinator");
    Worker worker = Hello();
    const v1::ToWorker welcome = Welcome(0, 2);
    worker.stream->Send(welcome);
    // Loaded; the other rank never comes.
    std::optional<v1::FromWorker> message;
    do {
      message = worker.stream->Next();
      ASSERT_TRUE(message && message->has_progress()) << worker.process->StandardError();
    } while (message->progress().done_bytes() < message->progress().total_bytes());
    if (by_signal) {
      worker.process->Signal(SIGTERM);
    } else {
      worker.stream->Cut();
    }
    EXPECT_EQ(worker.process->AwaitExit(absl::Seconds(5)), by_signal ? 0 : 1);
    const v1::Rendezvous& place = welcome.welcome().rendezvous();
    EXPECT_FALSE(std::filesystem::exists(std::filesystem::path(place.segment_folder()) /
                                         place.segment_name()));
  }
}

TEST_F(ShardWorkerProcessTest, ASpareWaitsAndTakesARankLater) {
  Worker worker = Hello();
  v1::ToWorker spare;
  spare.mutable_spare();
  worker.stream->Send(spare);
  worker.stream->Send(Welcome(0, 1));
  const std::optional<v1::FromWorker> message = worker.stream->NextButProgress();
  ASSERT_TRUE(message && message->has_ready());
}

TEST_F(ShardWorkerProcessTest, ARefusedWorkerSaysWhyAndEnds) {
  Worker worker = Hello();
  v1::ToWorker refused;
  refused.mutable_refused()->set_reason("another checkpoint is being served");
  worker.stream->Send(refused);
  EXPECT_EQ(worker.process->AwaitExit(absl::Seconds(10)), 1);
  EXPECT_THAT(worker.process->StandardError(), HasSubstr("another checkpoint is being served"));
}

TEST_F(ShardWorkerProcessTest, AWelcomeThatDoesNotFitIsAFailure) {
  Worker worker = Hello();
  v1::ToWorker welcome = Welcome(0, 1);
  welcome.mutable_welcome()->mutable_pools()->set_pages(1u << 30);
  worker.stream->Send(welcome);
  const std::optional<v1::FromWorker> message = worker.stream->Next();
  ASSERT_TRUE(message && message->has_failure());
  EXPECT_THAT(message->failure().message(), HasSubstr("--memory-gib"));
  EXPECT_EQ(worker.process->AwaitExit(absl::Seconds(10)), 1);
}

TEST_F(ShardWorkerProcessTest, ABadCheckpointEndsTheWorkerBeforeItDials) {
  char folder[] = "/tmp/quartet-test-model-XXXXXX";
  ASSERT_NE(mkdtemp(folder), nullptr);
  std::ofstream(absl::StrCat(folder, "/config.json")) << "{\"model_type\": \"llama\"}";
  const absl::Time begin = absl::Now();
  // Nobody listens there: a worker that dialled first would wait for a minute.
  std::unique_ptr<ChildProcess> process = Start(folder, "127.0.0.1:1");
  EXPECT_EQ(process->AwaitExit(absl::Seconds(30)), 1);
  EXPECT_LT(absl::Now() - begin, absl::Seconds(5));
  const std::optional<StatusEvent> error = process->AwaitEvent(StatusEvent::Kind::kError);
  ASSERT_TRUE(error);
  EXPECT_THAT(error->message, HasSubstr("llama"));
  EXPECT_THAT(process->StandardError(), HasSubstr("llama"));
  std::filesystem::remove_all(folder);
}

TEST_F(ShardWorkerProcessTest, StopsWhileItWaitsForACoordinator) {
  std::unique_ptr<ChildProcess> process = Start(DemoModel(), "127.0.0.1:1");
  ASSERT_TRUE(process->AwaitEvent(StatusEvent::Kind::kListening)) << process->StandardError();
  process->Signal(SIGTERM);
  EXPECT_EQ(process->AwaitExit(absl::Seconds(5)), 0);
}

TEST_F(ShardWorkerProcessTest, LogProbsOfHeldOutDocumentsThroughTheProtocol) {
  const GoldenFile golden(QUARTET_SOURCE_DIR "/tests/data/demo/heldout_logprobs.safetensors");
  const std::vector<int32_t> ids = golden.I32("input_ids");
  const std::vector<int32_t> offsets = golden.I32("doc_offsets");
  const std::vector<float> want = golden.F32("logprob.exl3");
  std::vector<Worker> workers = Ready(1);
  double worst = 0;
  uint64_t step = 0;
  for (size_t doc = 0; doc + 1 < offsets.size(); ++doc) {
    SendAll(workers, Open(doc + 1, 0));
    const int end = offsets[doc + 1] - 1;
    for (int begin = offsets[doc]; begin < end; begin += kBatchedTokens) {
      const int stop = std::min(end, begin + kBatchedTokens);
      v1::ToWorker plan = Plan(++step, doc + 1, 0, begin - offsets[doc],
                               {ids.begin() + begin, ids.begin() + stop}, 0);
      plan.mutable_plan()->mutable_rows(0)->mutable_logprob_targets()->Add(ids.begin() + begin + 1,
                                                                           ids.begin() + stop + 1);
      SendAll(workers, plan);
      const v1::StepResult result = workers[0].Result();
      ASSERT_EQ(result.error(), "");
      ASSERT_EQ(result.rows(0).target_logprobs_size(), stop - begin);
      for (int i = begin; i < stop; ++i) {
        const double got = result.rows(0).target_logprobs(i - begin);
        ASSERT_FALSE(std::isnan(got));
        worst = std::max(worst, std::fabs(got - want[i]));
      }
    }
    v1::ToWorker close;
    close.mutable_close()->set_seq_uid(doc + 1);
    SendAll(workers, close);
  }
  std::printf("  largest difference over %zu documents: %.2e\n", offsets.size() - 1, worst);
  EXPECT_LE(worst, 1e-4);
}

}  // namespace
}  // namespace quartet
