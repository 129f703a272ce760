// A rank of a test on a GPU is this program once more, with this test alone: processes that share a
// card take turns there as shard workers would, and a driver that has been used survives no fork.

#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "kernels/cuda/device.h"
#include "shard_worker/collectives/cuda_collectives.h"
#include "tests/unit/worker/model_rank.h"

extern char** environ;

namespace quartet {
namespace {

constexpr const char* kGroupVariable = "QUARTET_TEST_GROUP";  // where the ranks meet
constexpr const char* kRankVariable = "QUARTET_TEST_RANK";    // also chooses the card
constexpr const char* kFormVariable = "QUARTET_COLLECTIVES";  // as of shard workers

CollectiveForm FormFromEnvironment() {
  const char* name = std::getenv(kFormVariable);
  return ParseCollectiveForm(name == nullptr ? "auto" : name).value();
}

void RunRank(const ModelRankOptions& options, const SharedMemoryOptions& rendezvous,
             const std::function<void(ModelRank&)>& body) {
  TestBackend backend = MakeTestBackend(options.threads, options.limits, options.pools.slots,
                                        options.batch_invariant);
  CudaCollectivesOptions group_options;
  group_options.rendezvous = rendezvous;
  group_options.form = FormFromEnvironment();
  absl::StatusOr<std::unique_ptr<CudaCollectives>> group =
      OpenCudaCollectives(*static_cast<cuda::Device*>(backend.device.get()), group_options);
  ASSERT_TRUE(group.ok()) << group.status();
  if (rendezvous.rank == 0) std::printf("  %s\n", (*group)->description().c_str());
  ModelRank rank(options, std::move(backend), *std::move(group));
  body(rank);
  EXPECT_TRUE(rank.collectives->Barrier().ok()) << "rank " << rendezvous.rank;
}

// This program with the running test alone, as one rank of a group.
pid_t SpawnRank(const std::string& group, int rank) {
  const testing::TestInfo& test = *testing::UnitTest::GetInstance()->current_test_info();
  std::string filter = absl::StrCat("--gtest_filter=", test.test_suite_name(), ".", test.name());
  std::string program = "/proc/self/exe";
  std::string brief = "--gtest_brief=1";
  char* const arguments[] = {program.data(), filter.data(), brief.data(), nullptr};
  setenv(kGroupVariable, group.c_str(), 1);
  setenv(kRankVariable, std::to_string(rank).c_str(), 1);
  pid_t child = -1;
  const int error = posix_spawn(&child, program.c_str(), nullptr, nullptr, arguments, environ);
  unsetenv(kGroupVariable);
  unsetenv(kRankVariable);
  EXPECT_EQ(error, 0) << "rank " << rank;
  return error == 0 ? child : -1;
}

}  // namespace

void RunRanks(const ModelRankOptions& options, int tp,
              const std::function<void(ModelRank&)>& body) {
  if (tp == 1) {
    ModelRank rank(options, MakeSingleRank());
    return body(rank);
  }
  SharedMemoryOptions rendezvous;
  rendezvous.size = tp;
  if (const char* group = std::getenv(kGroupVariable); group != nullptr) {
    rendezvous.name = group;
    if (!absl::SimpleAtoi(std::getenv(kRankVariable), &rendezvous.rank)) std::abort();
    RunRank(options, rendezvous, body);
    std::fflush(stdout);
    _exit(testing::Test::HasFailure() ? 1 : 0);  // what the test does next is for all ranks
  }
  static const testing::TestInfo* last = nullptr;
  const testing::TestInfo* test = testing::UnitTest::GetInstance()->current_test_info();
  ASSERT_NE(std::exchange(last, test), test) << "a rank's process would run the first call again";
  static int groups = 0;
  const std::string name = absl::StrCat("quartet-test-", getpid(), "-", groups++);
  std::fflush(stdout);
  std::vector<pid_t> ranks;
  for (int r = 0; r < tp; ++r) ranks.push_back(SpawnRank(name, r));
  for (int r = 0; r < tp; ++r) {
    int status = 0;
    ASSERT_EQ(waitpid(ranks[r], &status, 0), ranks[r]);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "rank " << r << " of " << tp;
  }
}

}  // namespace quartet
