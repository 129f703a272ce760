#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tests/unit/cli/program.h"

namespace quartet::cli {
namespace {

namespace fs = std::filesystem;
using ::testing::ContainsRegex;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr const char* kGoodCoordinator = "listening admin 127.0.0.1:1;listening grpc unix:x;ready;";
constexpr const char* kGoodWorker =
    "progress 1 4 loading weights;progress 4 4 loading weights;ready;";
constexpr const char* kGoodGateway =
    "listening http 127.0.0.1:4711;listening grpc 127.0.0.1:4712;ready;";

// `quartet serve` with services that only pretend, each test with its own folder of programs.
class ServeCommand : public ::testing::Test {
 protected:
  void SetUp() override {
    fs::create_directories(folder_ / "bin");
    fs::create_directories(folder_ / "fakes");
    fs::create_directories(folder_ / "tmp");
    fs::create_directories(folder_ / "model");
    std::ofstream(folder_ / "model/config.json") << "{}";
    fs::copy_file(QUARTET_BINARY_DIR "/quartet", folder_ / "bin/quartet");
    for (const char* name : {"quartet-gateway", "quartet-coordinator", "quartet-shard-worker"}) {
      fs::create_symlink(QUARTET_BINARY_DIR "/quartet_fake_service",
                         folder_ / absl::StrCat("bin/", name));
    }
    env_ = {{"FAKE_FOLDER", folder_ / "fakes"},
            {"TMPDIR", folder_ / "tmp"},
            {"FAKE_COORDINATOR", absl::StrCat(kGoodCoordinator, "wait")},
            {"FAKE_SHARD_WORKER", absl::StrCat(kGoodWorker, "wait")},
            {"FAKE_GATEWAY", absl::StrCat(kGoodGateway, "wait")}};
    // Every process that lives holds this pipe's other end: its end of file is the end of them all.
    ASSERT_EQ(pipe(life_), 0);
  }
  void TearDown() override {
    close(life_[0]);
    if (life_[1] >= 0) close(life_[1]);
  }

  std::vector<std::string> Command(const std::vector<std::string>& more = {}) const {
    std::vector<std::string> argv = {folder_ / "bin/quartet", "serve", "--model",
                                     folder_ / "model"};
    argv.insert(argv.end(), more.begin(), more.end());
    return argv;
  }

  // Returns only when none of the processes that a test started is left.
  void ExpectThatNoProcessIsLeft() {
    close(life_[1]);
    life_[1] = -1;
    char byte = 0;
    EXPECT_EQ(read(life_[0], &byte, 1), 0);
  }

  std::vector<std::string> FilesIn(const std::string& name) const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder_ / name)) {
      names.push_back(entry.path().filename().string());
    }
    return names;
  }

  // Process ids of the fakes of one role.
  std::vector<pid_t> Pids(const std::string& role) const {
    std::vector<pid_t> pids;
    for (const std::string& name : FilesIn("fakes")) {
      if (name.rfind(role + ".", 0) == 0) pids.push_back(std::stoi(name.substr(role.size() + 1)));
    }
    return pids;
  }

  std::string ArgumentsOf(const std::string& role) const {
    const std::vector<pid_t> pids = Pids(role);
    return pids.empty() ? "" : ReadWholeFile(folder_ / absl::StrCat("fakes/", role, ".", pids[0]));
  }

  std::vector<std::string> StopOrder() const {
    return absl::StrSplit(ReadWholeFile(folder_ / "fakes/order"), '\n', absl::SkipEmpty());
  }

  TempFolder folder_;
  std::map<std::string, std::string> env_;
  int life_[2] = {-1, -1};
};

class ServeCommandSignals : public ServeCommand, public ::testing::WithParamInterface<int> {};

TEST_P(ServeCommandSignals, StopsGatewayThenCoordinatorThenWorkersAndExitsWithZero) {
  Program quartet(Command(), env_);
  ASSERT_TRUE(quartet.WaitForOutput("Ctrl-C stops it."));
  EXPECT_EQ(Pids("shard-worker").size(), 4U);
  quartet.Signal(GetParam());
  const Outcome outcome = quartet.Finish();
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_THAT(outcome.err, IsEmpty());
  EXPECT_THAT(StopOrder(), ElementsAre("gateway", "coordinator", "shard-worker", "shard-worker",
                                       "shard-worker", "shard-worker"));
  ExpectThatNoProcessIsLeft();
  EXPECT_THAT(FilesIn("tmp"), IsEmpty());
}
INSTANTIATE_TEST_SUITE_P(All, ServeCommandSignals, ::testing::Values(SIGINT, SIGTERM, SIGHUP));

TEST_F(ServeCommand, PrintsALineForEachStageAndThenTheAddresses) {
  Program quartet(Command(), env_);
  ASSERT_TRUE(quartet.WaitForOutput("Ctrl-C stops it."));
  quartet.Signal(SIGTERM);
  const std::string out = quartet.Finish().out;
  EXPECT_THAT(out, ContainsRegex("coordinator +ready +done"));
  EXPECT_THAT(out, ContainsRegex("shard workers +loading weights +done"));
  EXPECT_THAT(out, ContainsRegex("shard workers +ready +done"));
  EXPECT_THAT(out, ContainsRegex("gateway +ready +done"));
  EXPECT_THAT(out, HasSubstr("\nHTTP  http://127.0.0.1:4711\n"));
  EXPECT_THAT(out, HasSubstr("\ngRPC  127.0.0.1:4712\n"));
  EXPECT_THAT(out, HasSubstr("\nmetrics  http://127.0.0.1:4711/metrics\n"));
  EXPECT_THAT(out, Not(HasSubstr("\x1b"))) << "colour belongs to terminals";
}

TEST_F(ServeCommand, GivesEachServiceItsFlags) {
  Program quartet(Command({"--tensor-parallel-size",
                           "2",
                           "--max-num-seqs",
                           "16",
                           "--kv-dtype",
                           "fp32",
                           "--threads",
                           "1",
                           "--served-model-name",
                           "a name",
                           "--trust-content-tokens",
                           "--listen-http",
                           "127.0.0.1:0",
                           "--host-cache-gib",
                           "4",
                           "--disk-cache-dir",
                           "a folder",
                           "--disk-cache-gib",
                           "3",
                           "--batch-invariant"}),
                  env_);
  ASSERT_TRUE(quartet.WaitForOutput("Ctrl-C stops it."));
  quartet.Signal(SIGTERM);
  EXPECT_EQ(quartet.Finish().exit_code, 0);
  const std::string coordinator = ArgumentsOf("coordinator");
  EXPECT_THAT(coordinator, HasSubstr("--tensor-parallel-size\n2\n"));
  EXPECT_THAT(coordinator, HasSubstr("--max-num-seqs\n16\n"));
  EXPECT_THAT(coordinator, HasSubstr("--listen\nunix:" + folder_.path() + "/tmp/"));
  EXPECT_THAT(coordinator, HasSubstr("--segment-folder\n"));
  EXPECT_THAT(coordinator, Not(HasSubstr("--max-model-len"))) << "its default is its own";
  EXPECT_EQ(Pids("shard-worker").size(), 2U);
  const std::string worker = ArgumentsOf("shard-worker");
  EXPECT_THAT(worker, HasSubstr("--model\n" + folder_ / "model" + "\n"));
  EXPECT_THAT(worker, HasSubstr("--kv-dtype\nfp32\n"));
  EXPECT_THAT(worker, HasSubstr("--threads\n1\n"));
  EXPECT_THAT(worker, HasSubstr("--batch-invariant\n"));
  EXPECT_THAT(worker, HasSubstr("--host-cache-gib\n2\n")) << "each its share";
  EXPECT_THAT(worker, HasSubstr("--disk-cache-gib\n1.5\n"));
  EXPECT_THAT(worker, HasSubstr("--disk-cache-dir\na folder\n"));
  const std::string gateway = ArgumentsOf("gateway");
  EXPECT_THAT(gateway, HasSubstr("--served-model-name\na name\n"));
  EXPECT_THAT(gateway, HasSubstr("--trust-content-tokens\n"));
  EXPECT_THAT(gateway, HasSubstr("--listen-http\n127.0.0.1:0\n"));
  for (const std::string& arguments : {coordinator, worker, gateway}) {
    EXPECT_THAT(arguments, HasSubstr("--die-with-parent\n"));
    EXPECT_THAT(arguments, HasSubstr("--listen-admin\n127.0.0.1:0\n"));
    EXPECT_THAT(arguments, HasSubstr("--status-fd\n"));
  }
}

TEST_F(ServeCommand, ABadCheckpointIsSaidOnceAndEndsInUnderFiveSeconds) {
  env_["FAKE_SHARD_WORKER"] =
      "log loading;error model-00002-of-00002.safetensors is missing;exit 1";
  const auto start = std::chrono::steady_clock::now();
  Program quartet(Command(), env_);
  const Outcome outcome = quartet.Finish();
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
  EXPECT_THAT(outcome.err,
              ContainsRegex("^quartet: shard worker [1-4] of 4: model-00002-of-00002.safetensors "
                            "is missing\n$"));
  ExpectThatNoProcessIsLeft();
  EXPECT_THAT(FilesIn("tmp"), IsEmpty());
}

TEST_F(ServeCommand, AServiceThatEndsBeforeItIsReadyIsReportedWithItsLog) {
  env_["FAKE_GATEWAY"] =
      "log {\"time\":\"now\",\"level\":\"error\",\"process\":\"g\",\"message\":\"no tokenizer\"};"
      "exit 3";
  Program quartet(Command(), env_);
  const Outcome outcome = quartet.Finish();
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.err, HasSubstr("quartet: gateway: exited with code 3 before it was ready"));
  EXPECT_THAT(outcome.err, HasSubstr("| error: no tokenizer\n"));
  ExpectThatNoProcessIsLeft();
}

TEST_F(ServeCommand, AWorkerThatIsKilledWhileServingIsReportedAndAllIsStopped) {
  env_["FAKE_SHARD_WORKER"] = absl::StrCat("log the last words;", kGoodWorker, "wait");
  Program quartet(Command(), env_);
  ASSERT_TRUE(quartet.WaitForOutput("Ctrl-C stops it."));
  const pid_t victim = Pids("shard-worker").front();
  ASSERT_EQ(kill(victim, SIGKILL), 0);
  const Outcome outcome = quartet.Finish();
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.err, ContainsRegex(absl::StrCat("shard worker [1-4] of 4 \\(process ", victim,
                                                      "\\) was killed by signal 9 \\(Killed\\)")));
  EXPECT_THAT(outcome.err, HasSubstr("| the last words\n"));
  EXPECT_THAT(StopOrder(), ElementsAre("gateway", "coordinator", "shard-worker", "shard-worker",
                                       "shard-worker"));
  ExpectThatNoProcessIsLeft();
}

TEST_F(ServeCommand, AnErrorWhileServingIsReportedWithTheWayItEnded) {
  env_["FAKE_SHARD_WORKER_FIRST"] = "ready;wait";
  env_["FAKE_COORDINATOR"] = absl::StrCat(kGoodCoordinator, "wait");
  Program quartet(Command({"--tensor-parallel-size", "1"}), env_);
  ASSERT_TRUE(quartet.WaitForOutput("Ctrl-C stops it."));
  ASSERT_EQ(kill(Pids("coordinator").front(), SIGTERM), 0);
  const Outcome outcome = quartet.Finish();
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.err, ContainsRegex("coordinator \\(process [0-9]+\\) exited with code 0"));
  ExpectThatNoProcessIsLeft();
}

TEST_F(ServeCommand, TwoSignalsAtOnceAreOneWishToStop) {
  Program quartet(Command(), env_);
  ASSERT_TRUE(quartet.WaitForOutput("Ctrl-C stops it."));
  quartet.Signal(SIGINT);
  quartet.Signal(SIGTERM);
  const Outcome outcome = quartet.Finish();
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_THAT(outcome.err, IsEmpty());
  EXPECT_EQ(StopOrder().size(), 6U);
}

TEST_F(ServeCommand, AServiceThatIgnoresTheStopIsKilled) {
  env_["FAKE_GATEWAY"] = "progress 2 2 thinking;hang";
  Program quartet(Command(), env_);
  ASSERT_TRUE(quartet.WaitForOutput("thinking"));
  quartet.Signal(SIGTERM);
  const Outcome outcome = quartet.Finish();
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_THAT(outcome.err, HasSubstr("gateway has not stopped and is killed"));
  ExpectThatNoProcessIsLeft();
}

TEST_F(ServeCommand, NothingSurvivesWhenTheSupervisorItselfIsKilled) {
  env_["FAKE_SHARD_WORKER"] = absl::StrCat(kGoodWorker, "hang");
  Program quartet(Command(), env_);
  ASSERT_TRUE(quartet.WaitForOutput("Ctrl-C stops it."));
  quartet.Signal(SIGKILL);
  EXPECT_EQ(quartet.Finish().exit_code, 128 + SIGKILL);
  ExpectThatNoProcessIsLeft();
  EXPECT_EQ(FilesIn("tmp").size(), 1U) << "nobody was left to remove the run folder";

  // The next start clears up.
  env_["FAKE_COORDINATOR"] = "error enough;exit 1";
  EXPECT_EQ(Program(Command(), env_).Finish().exit_code, 1);
  EXPECT_THAT(FilesIn("tmp"), IsEmpty());
}

TEST_F(ServeCommand, KeepsTheLogsWhereItIsTold) {
  env_["FAKE_GATEWAY"] = absl::StrCat("log hello from the gateway;", kGoodGateway, "wait");
  Program quartet(Command({"--log-dir", folder_ / "logs"}), env_);
  ASSERT_TRUE(quartet.WaitForOutput("Ctrl-C stops it."));
  quartet.Signal(SIGTERM);
  EXPECT_EQ(quartet.Finish().exit_code, 0);
  EXPECT_EQ(ReadWholeFile(folder_ / "logs/gateway.log"), "hello from the gateway\n");
  EXPECT_TRUE(fs::exists(folder_ / "logs/coordinator.log"));
  EXPECT_TRUE(fs::exists(folder_ / "logs/shard-worker-4.log"));
}

TEST_F(ServeCommand, SaysWhatIsWrongBeforeItStartsAnything) {
  const auto error_of = [this](const std::vector<std::string>& argv) {
    const Outcome outcome = Program(argv, env_).Finish();
    EXPECT_EQ(outcome.exit_code, 1);
    return outcome.err;
  };
  EXPECT_THAT(error_of({folder_ / "bin/quartet", "serve", "--model", folder_ / "nothing"}),
              HasSubstr("nothing is not a folder"));
  EXPECT_THAT(error_of({folder_ / "bin/quartet", "serve", "--model", folder_ / "bin"}),
              HasSubstr("has no config.json"));
  EXPECT_THAT(error_of(Command({"--listen-http", "8000"})),
              HasSubstr("--listen-http: '8000' is not an address"));
  fs::remove(folder_ / "bin/quartet-gateway");
  EXPECT_THAT(error_of(Command()), HasSubstr("quartet-gateway is missing"));
  EXPECT_THAT(FilesIn("fakes"), IsEmpty());
}

TEST_F(ServeCommand, AnUnknownFlagIsAnErrorOfTheCommandLine) {
  const Outcome outcome = Program(Command({"--max-seqs", "4"}), env_).Finish();
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("--max-seqs"));
}

TEST_F(ServeCommand, FlagsMayComeFromTheEnvironment) {
  env_["QUARTET_TENSOR_PARALLEL_SIZE"] = "1";
  env_["QUARTET_SERVED_MODEL_NAME"] = "from-the-environment";
  Program quartet(Command(), env_);
  ASSERT_TRUE(quartet.WaitForOutput("Ctrl-C stops it."));
  quartet.Signal(SIGTERM);
  EXPECT_EQ(quartet.Finish().exit_code, 0);
  EXPECT_EQ(Pids("shard-worker").size(), 1U);
  EXPECT_THAT(ArgumentsOf("gateway"), HasSubstr("--served-model-name\nfrom-the-environment\n"));
}

}  // namespace
}  // namespace quartet::cli
