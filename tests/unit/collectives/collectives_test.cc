#include "shard_worker/collectives/collectives.h"

#include <dirent.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <random>
#include <thread>
#include <vector>

#include "absl/time/clock.h"

namespace quartet {
namespace {

using ::testing::HasSubstr;

// A folder of its own for every test, empty again at the end.
class CollectivesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = ::testing::TempDir() + "/quartet_collectives_XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }

  void TearDown() override {
    EXPECT_EQ(FilesLeft(), 0) << "segments stay behind in " << folder_;
    rmdir(folder_.c_str());
  }

  int FilesLeft() const {
    int count = 0;
    DIR* dir = opendir(folder_.c_str());
    while (const dirent* entry = readdir(dir)) count += entry->d_name[0] != '.' ? 1 : 0;
    closedir(dir);
    return count;
  }

  SharedMemoryOptions Options(int rank, int size) const {
    SharedMemoryOptions options;
    options.folder = folder_;
    options.name = "group";
    options.epoch = 7;
    options.rank = rank;
    options.size = size;
    options.chunk_bytes = 256;
    options.open_timeout = absl::Seconds(20);
    options.wait_timeout = absl::Seconds(20);
    return options;
  }

  // Runs `body` as every rank of a group, each in a thread.
  void RunThreads(int size, const std::function<void(Collectives&)>& body) const {
    std::vector<std::thread> threads;
    for (int rank = 0; rank < size; ++rank) {
      threads.emplace_back([&, rank] {
        auto group = OpenSharedMemory(Options(rank, size));
        ASSERT_TRUE(group.ok()) << group.status();
        EXPECT_EQ((*group)->rank(), rank);
        EXPECT_EQ((*group)->size(), size);
        body(**group);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }

  // Runs `body` as every rank, each in a child process; it returns true for success.
  void RunProcesses(int size, const std::function<bool(Collectives&)>& body) const {
    std::vector<pid_t> children;
    for (int rank = 0; rank < size; ++rank) {
      const pid_t child = fork();
      ASSERT_GE(child, 0);
      if (child == 0) {
        auto group = OpenSharedMemory(Options(rank, size));
        const bool good = group.ok() && body(**group);
        if (group.ok()) group->reset();
        _exit(good ? 0 : 1);
      }
      children.push_back(child);
    }
    for (size_t rank = 0; rank < children.size(); ++rank) {
      int status = 0;
      ASSERT_EQ(waitpid(children[rank], &status, 0), children[rank]);
      EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "rank " << rank;
    }
  }

  std::string folder_;
};

// Values whose float sum depends on the order of addition.
std::vector<float> RankValues(int rank, size_t count) {
  std::mt19937 random(1000u * static_cast<unsigned>(rank) + static_cast<unsigned>(count));
  std::uniform_real_distribution<float> mantissa(-1.0f, 1.0f);
  std::uniform_int_distribution<int> exponent(-12, 12);
  std::vector<float> values(count);
  for (float& value : values) value = std::ldexp(mantissa(random), exponent(random));
  return values;
}

std::vector<float> SumInRankOrder(int size, size_t count) {
  std::vector<float> sum = RankValues(0, count);
  for (int rank = 1; rank < size; ++rank) {
    const std::vector<float> values = RankValues(rank, count);
    for (size_t i = 0; i < count; ++i) sum[i] += values[i];
  }
  return sum;
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](float x, float y) {
    return std::bit_cast<uint32_t>(x) == std::bit_cast<uint32_t>(y);
  });
}

// Below, at and above one chunk (64 floats), odd sizes, and many chunks.
constexpr size_t kCounts[] = {0, 1, 3, 63, 64, 65, 127, 128, 129, 1000, 4099};

bool EverythingAgrees(Collectives& group) {
  for (size_t count : kCounts) {
    std::vector<float> data = RankValues(group.rank(), count);
    if (!group.AllReduceSum(data.data(), count).ok()) return false;
    if (!SameBits(data, SumInRankOrder(group.size(), count))) return false;

    const std::vector<float> own = RankValues(group.rank(), count);
    std::vector<float> all(count * group.size(), -1.0f);
    if (!group.AllGather(own.data(), count * sizeof(float), all.data()).ok()) return false;
    for (int r = 0; r < group.size(); ++r) {
      const std::vector<float> part(all.begin() + r * count, all.begin() + (r + 1) * count);
      if (!SameBits(part, RankValues(r, count))) return false;
    }
    if (!group.Barrier().ok()) return false;
  }
  return true;
}

TEST_F(CollectivesTest, OneRankNeedsNoMemory) {
  const std::unique_ptr<Collectives> group = MakeSingleRank();
  EXPECT_EQ(group->rank(), 0);
  EXPECT_EQ(group->size(), 1);
  EXPECT_TRUE(EverythingAgrees(*group));
  group->Abort("told to stop");
  EXPECT_EQ(group->Barrier(), absl::AbortedError("told to stop"));
}

class CollectivesSizeTest : public CollectivesTest, public ::testing::WithParamInterface<int> {};

TEST_P(CollectivesSizeTest, ThreadsHoldTheSameBitsSummedInRankOrder) {
  RunThreads(GetParam(), [](Collectives& group) { EXPECT_TRUE(EverythingAgrees(group)); });
}

TEST_P(CollectivesSizeTest, ProcessesHoldTheSameBitsSummedInRankOrder) {
  RunProcesses(GetParam(), EverythingAgrees);
}

TEST_P(CollectivesSizeTest, ManySmallRoundsKeepInStep) {
  RunThreads(GetParam(), [](Collectives& group) {
    for (int round = 0; round < 2000; ++round) {
      float value = static_cast<float>(round + group.rank());
      ASSERT_TRUE(group.AllReduceSum(&value, 1).ok());
      const int n = group.size();
      ASSERT_EQ(value, static_cast<float>(n * round + n * (n - 1) / 2));
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Sizes, CollectivesSizeTest, ::testing::Values(1, 2, 3, 4));

TEST_F(CollectivesTest, TheNameIsGoneOnceRankZeroHasEverybody) {
  RunThreads(4, [&](Collectives& group) {
    if (group.rank() == 0) {
      EXPECT_EQ(FilesLeft(), 0);
    }
    EXPECT_TRUE(group.Barrier().ok());
  });
}

TEST_F(CollectivesTest, GatherKeepsBytesThatAreNoFloats) {
  RunThreads(2, [](Collectives& group) {
    const std::string own = group.rank() == 0 ? "left half" : "righthalf";
    std::string all(2 * own.size(), '?');
    ASSERT_TRUE(group.AllGather(own.data(), own.size(), all.data()).ok());
    EXPECT_EQ(all, "left halfrighthalf");
  });
}

TEST_F(CollectivesTest, AbortWakesSleepersAndStays) {
  RunThreads(3, [](Collectives& group) {
    ASSERT_TRUE(group.Barrier().ok());
    if (group.rank() == 2) {
      group.Abort("the coordinator is gone");
    }
    const absl::Time start = absl::Now();
    const absl::Status status = group.Barrier();
    EXPECT_EQ(status, absl::AbortedError("the coordinator is gone"));
    EXPECT_LT(absl::Now() - start, absl::Seconds(10));
    group.Abort("a later reason does not count");
    float value = 1;
    EXPECT_EQ(group.AllReduceSum(&value, 1), absl::AbortedError("the coordinator is gone"));
  });
}

TEST_F(CollectivesTest, AbortFromAnotherThreadEndsAWait) {
  std::unique_ptr<Collectives> waiting;
  std::unique_ptr<Collectives> silent;
  std::thread other([&] { silent = *OpenSharedMemory(Options(1, 2)); });
  waiting = *OpenSharedMemory(Options(0, 2));
  other.join();
  std::thread aborter([&] { waiting->Abort("SIGTERM"); });
  EXPECT_EQ(waiting->Barrier(), absl::AbortedError("SIGTERM"));
  aborter.join();
  EXPECT_EQ(silent->Barrier(), absl::AbortedError("SIGTERM"));
}

TEST_F(CollectivesTest, AKilledPeerBecomesADeadlineNotAHang) {
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    auto group = OpenSharedMemory(Options(1, 2));
    const bool good = group.ok() && (*group)->Barrier().ok();
    const char byte = good ? 'y' : 'n';
    if (write(ready[1], &byte, 1) != 1) _exit(2);
    pause();
    _exit(0);
  }
  SharedMemoryOptions options = Options(0, 2);
  options.wait_timeout = absl::Milliseconds(300);
  auto group = OpenSharedMemory(options);
  ASSERT_TRUE(group.ok()) << group.status();
  ASSERT_TRUE((*group)->Barrier().ok());
  char byte = 0;
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  ASSERT_EQ(byte, 'y');
  ASSERT_EQ(kill(child, SIGKILL), 0);
  ASSERT_EQ(waitpid(child, nullptr, 0), child);

  const absl::Time start = absl::Now();
  const absl::Status status = (*group)->Barrier();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("rank 1 did not reach round 2 within 300ms"));
  EXPECT_LT(absl::Now() - start, absl::Seconds(10));
  EXPECT_EQ((*group)->Barrier(), status) << "the group stays unusable";
  close(ready[0]);
  close(ready[1]);
}

TEST_F(CollectivesTest, APeerThatLeavesEndsTheWaitAtOnce) {
  RunThreads(2, [](Collectives& group) {
    ASSERT_TRUE(group.Barrier().ok());
    if (group.rank() == 1) return;
    const absl::Status status = group.Barrier();
    EXPECT_EQ(status, absl::AbortedError("rank 1 has left the group"));
  });
}

TEST_F(CollectivesTest, DifferentCallsInOneRoundAreAnErrorOnBothSides) {
  RunThreads(2, [](Collectives& group) {
    float values[4] = {1, 2, 3, 4};
    const absl::Status status = group.AllReduceSum(values, group.rank() == 0 ? 4 : 3);
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("AllReduceSum of 16 bytes"));
    EXPECT_THAT(std::string(status.message()), HasSubstr("AllReduceSum of 12 bytes"));
  });
}

// Opens rank 0 of two in a thread and, once its file exists, tries `second`.
absl::Status SecondOpener(const SharedMemoryOptions& first, const SharedMemoryOptions& second) {
  absl::Status refused;
  std::thread waiting([&] { OpenSharedMemory(first).status().IgnoreError(); });
  const std::string path = first.folder + "/" + first.name;
  while (access(path.c_str(), F_OK) != 0) std::this_thread::yield();
  refused = OpenSharedMemory(second).status();
  waiting.join();
  return refused;
}

TEST_F(CollectivesTest, AnotherEpochIsRefused) {
  SharedMemoryOptions first = Options(0, 2);
  first.open_timeout = absl::Milliseconds(300);
  SharedMemoryOptions second = Options(1, 2);
  second.epoch = 8;
  const absl::Status status = SecondOpener(first, second);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("/group: epoch is 7, expected 8"));
}

TEST_F(CollectivesTest, AnotherSizeIsRefused) {
  SharedMemoryOptions first = Options(0, 2);
  first.open_timeout = absl::Milliseconds(300);
  const absl::Status status = SecondOpener(first, Options(1, 4));
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("number of ranks is 2, expected 4"));
}

TEST_F(CollectivesTest, ATakenRankIsRefused) {
  SharedMemoryOptions options = Options(0, 2);
  options.open_timeout = absl::Seconds(2);
  absl::StatusCode codes[2];
  std::thread other([&] { codes[0] = OpenSharedMemory(options).status().code(); });
  codes[1] = OpenSharedMemory(options).status().code();
  other.join();
  // One of the two has the rank and waits in vain for rank 1; the other is told that it is taken.
  EXPECT_THAT(codes, ::testing::UnorderedElementsAre(absl::StatusCode::kAlreadyExists,
                                                     absl::StatusCode::kDeadlineExceeded));
}

TEST_F(CollectivesTest, AFileThatIsNoSegmentIsRefused) {
  const std::string path = folder_ + "/group";
  FILE* file = fopen(path.c_str(), "w");
  ASSERT_NE(file, nullptr);
  fputs("something else", file);
  fclose(file);
  const absl::Status status = OpenSharedMemory(Options(0, 1)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("not a segment"));
  unlink(path.c_str());
}

TEST_F(CollectivesTest, AMissingRankIsNamedWhenOpeningGivesUp) {
  SharedMemoryOptions options = Options(1, 3);
  options.open_timeout = absl::Milliseconds(50);
  const absl::Status status = OpenSharedMemory(options).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(status.message()), HasSubstr("only 1 of 3 ranks came; missing: 0 2"));
}

TEST_F(CollectivesTest, BadOptionsAreRefused) {
  SharedMemoryOptions options = Options(2, 2);
  EXPECT_EQ(OpenSharedMemory(options).status().message(), "rank 2, expected 0 to 1");
  options = Options(0, 65);
  EXPECT_EQ(OpenSharedMemory(options).status().message(), "group of 65 ranks, expected 1 to 64");
  options = Options(0, 1);
  options.name = "../group";
  EXPECT_THAT(std::string(OpenSharedMemory(options).status().message()),
              HasSubstr("without a folder"));
  options = Options(0, 1);
  options.chunk_bytes = 6;
  EXPECT_THAT(std::string(OpenSharedMemory(options).status().message()),
              HasSubstr("multiple of 4"));
  options = Options(0, 1);
  options.folder = folder_ + "/missing";
  EXPECT_EQ(OpenSharedMemory(options).status().code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace quartet
