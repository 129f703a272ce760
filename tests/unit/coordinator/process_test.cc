#include <fcntl.h>
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "proto/quartet/v1/engine.grpc.pb.h"
#include "services/common/status_channel.h"
#include "services/coordinator/simulation/replay.h"
#include "tests/support/scripted_worker.h"

extern char** environ;

// The program itself: what its supervisor sees.

namespace quartet::coordinator {
namespace {

using quartet::testing::ScriptedWorker;
using ::testing::HasSubstr;

class Program {
 public:
  explicit Program(std::vector<std::string> arguments) {
    int fds[2];
    EXPECT_EQ(pipe(fds), 0);
    EXPECT_EQ(fcntl(fds[0], F_SETFD, FD_CLOEXEC), 0);
    arguments.insert(arguments.begin(),
                     {QUARTET_BINARY_DIR "/quartet-coordinator", "--status-fd",
                      std::to_string(fds[1]), "--listen", "127.0.0.1:0", "--die-with-parent"});
    std::vector<char*> argv;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    EXPECT_EQ(posix_spawn(&pid_, argv[0], nullptr, nullptr, argv.data(), environ), 0);
    close(fds[1]);
    status_ = fdopen(fds[0], "r");
  }
  ~Program() {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      Wait();
    }
    fclose(status_);
  }

  // The next event of this kind; the pipe ends with the process.
  std::optional<StatusEvent> Await(StatusEvent::Kind kind) {
    char* line = nullptr;
    size_t size = 0;
    std::optional<StatusEvent> found;
    while (!found.has_value()) {
      const ssize_t length = getline(&line, &size, status_);
      if (length <= 0) break;
      auto event = ParseStatusEvent(std::string_view(line, length - 1));
      if (event.has_value() && event->kind == kind) found = event;
    }
    free(line);
    return found;
  }
  void Signal(int number) { kill(pid_, number); }
  int Wait() {
    int state = 0;
    waitpid(pid_, &state, 0);
    pid_ = -1;
    return WIFEXITED(state) ? WEXITSTATUS(state) : -WTERMSIG(state);
  }

 private:
  pid_t pid_ = -1;
  FILE* status_ = nullptr;
};

std::unique_ptr<ScriptedWorker> WorkerAt(const std::string& address) {
  ScriptedWorker::Options options;
  options.coordinator = address;
  return std::make_unique<ScriptedWorker>(options);
}

TEST(CoordinatorProgram, SaysListeningProgressAndReadyAndLeavesInOrderOnSigterm) {
  Program program({});
  auto listening = program.Await(StatusEvent::Kind::kListening);
  ASSERT_TRUE(listening.has_value());
  EXPECT_EQ(listening->name, "grpc");
  auto worker = WorkerAt(listening->address);
  auto progress = program.Await(StatusEvent::Kind::kProgress);
  ASSERT_TRUE(progress.has_value());
  EXPECT_EQ(progress->stage, "workers");
  EXPECT_EQ(progress->done, 1);
  EXPECT_EQ(progress->total, 1);
  progress = program.Await(StatusEvent::Kind::kProgress);
  ASSERT_TRUE(progress.has_value());
  EXPECT_EQ(progress->stage, "loading weights");
  EXPECT_EQ(progress->done, 1 << 20);
  ASSERT_TRUE(program.Await(StatusEvent::Kind::kReady).has_value());
  program.Signal(SIGTERM);
  EXPECT_EQ(program.Wait(), 0);
  EXPECT_TRUE(worker->WaitFor(ScriptedWorker::State::kAborted));
}

TEST(CoordinatorProgram, ExitsWithOneAndTheReasonWhenAWorkerIsLost) {
  Program program({});
  auto worker = WorkerAt(program.Await(StatusEvent::Kind::kListening)->address);
  ASSERT_TRUE(program.Await(StatusEvent::Kind::kReady).has_value());
  worker->Kill();
  auto error = program.Await(StatusEvent::Kind::kError);
  ASSERT_TRUE(error.has_value());
  EXPECT_THAT(error->message, HasSubstr("rank 0 (cpu-scripted) is lost"));
  EXPECT_EQ(program.Wait(), 1);
}

// The recordings in a folder, oldest first.
std::vector<std::string> RecordingsIn(const std::string& folder) {
  std::vector<std::string> paths;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    if (entry.path().extension() == ".bin") paths.push_back(entry.path().string());
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

void ExpectReplays(const std::string& path, const std::string& reason) {
  std::ifstream file(path, std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const absl::StatusOr<FlightLog> log = DecodeFlightLog(bytes);
  ASSERT_TRUE(log.ok()) << log.status();
  EXPECT_THAT(log->header.reason, HasSubstr(reason));
  const absl::StatusOr<simulation::ReplayResult> result = simulation::Replay(*log);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->difference, "");
  EXPECT_GE(result->plans, 20u);
  EXPECT_EQ(result->ledger.generated_tokens, 20u);
}

TEST(CoordinatorProgram, WritesARecordingOnSigusr1AndWhenItFails) {
  const std::string folder = absl::StrCat(::testing::TempDir(), "/flight-program-", getpid());
  Program program({"--flight-dir", folder});
  const std::string address = program.Await(StatusEvent::Kind::kListening)->address;
  auto worker = WorkerAt(address);
  ASSERT_TRUE(program.Await(StatusEvent::Kind::kReady).has_value());

  grpc::ClientContext context;
  auto stub = v1::Engine::NewStub(grpc::CreateChannel(address, grpc::InsecureChannelCredentials()));
  auto stream = stub->Generate(&context);
  v1::EngineRequest request;
  request.mutable_submit()->add_prompt_ids(1);
  request.mutable_submit()->set_max_tokens(20);
  stream->Write(request);
  v1::EngineEvent event;
  while (stream->Read(&event)) {
  }
  ASSERT_TRUE(stream->Finish().ok());

  program.Signal(SIGUSR1);
  const absl::Time deadline = absl::Now() + absl::Seconds(30);
  while (RecordingsIn(folder).empty() && absl::Now() < deadline) {
  }
  ASSERT_EQ(RecordingsIn(folder).size(), 1u);
  ExpectReplays(RecordingsIn(folder)[0], "asked for by a signal");
  worker->Kill();
  EXPECT_EQ(program.Wait(), 1);
  ASSERT_EQ(RecordingsIn(folder).size(), 2u);
  ExpectReplays(RecordingsIn(folder)[1], "is lost");
  std::filesystem::remove_all(folder);
}

TEST(CoordinatorProgram, EpochsGrowFromStartToStart) {
  std::vector<uint64_t> epochs;
  for (int start = 0; start < 2; ++start) {
    Program program({});
    auto worker = WorkerAt(program.Await(StatusEvent::Kind::kListening)->address);
    ASSERT_TRUE(worker->WaitFor(ScriptedWorker::State::kWelcomed));
    epochs.push_back(worker->welcome().epoch());
    EXPECT_THAT(worker->welcome().rendezvous().segment_name(),
                HasSubstr(std::to_string(epochs.back())));
  }
  EXPECT_LT(epochs[0], epochs[1]);
}

TEST(CoordinatorProgram, WrongFlagsAreErrorsThatNameTheFlag) {
  Program program({"--prefill-chunk", "100"});
  auto error = program.Await(StatusEvent::Kind::kError);
  ASSERT_TRUE(error.has_value());
  EXPECT_THAT(error->message, HasSubstr("--prefill-chunk is 100"));
  EXPECT_EQ(program.Wait(), 1);
  Program unknown({"--no-such-flag"});
  EXPECT_EQ(unknown.Wait(), 2);
}

}  // namespace
}  // namespace quartet::coordinator
