#include "services/cli/machine.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>

namespace quartet::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using Level = Finding::Level;

TEST(JudgeProcessor, IsContentWithAvx2) {
  const Finding finding = JudgeProcessor(
      "processor\t: 0\nmodel name\t: A Good CPU\nflags\t\t: fpu avx avx2 fma\n\nprocessor\t: 1\n");
  EXPECT_EQ(finding.level, Level::kOk);
  EXPECT_EQ(finding.found, "A Good CPU (avx2 fma)");
  EXPECT_THAT(finding.help, IsEmpty());
}

TEST(JudgeProcessor, WarnsWithoutIt) {
  EXPECT_EQ(JudgeProcessor("model name : Old\nflags : fpu sse2 avx2_not\n").level, Level::kWarn);
  EXPECT_EQ(JudgeProcessor("").level, Level::kWarn);
}

TEST(JudgeCores, WarnsOfOne) {
  EXPECT_EQ(JudgeCores(1).level, Level::kWarn);
  EXPECT_EQ(JudgeCores(2).level, Level::kOk);
}

TEST(JudgeMemory, GoesByWhatIsAvailable) {
  const auto level = [](const std::string& available_kib) {
    return JudgeMemory("MemTotal:       16777216 kB\nMemFree: 1 kB\nMemAvailable:   " +
                       available_kib + " kB\n")
        .level;
  };
  EXPECT_EQ(level("500000"), Level::kFail);
  EXPECT_EQ(level("1500000"), Level::kWarn);
  EXPECT_EQ(level("8388608"), Level::kOk);
  EXPECT_EQ(JudgeMemory("").level, Level::kWarn);
  EXPECT_EQ(JudgeMemory("MemTotal: 16777216 kB\nMemAvailable: 8388608 kB\n").found,
            "16.0 GiB, 8.0 GiB of it available");
}

TEST(DefaultHostCache, TakesAQuarterOfWhatIsAvailableAndNoMoreThan32Gib) {
  EXPECT_DOUBLE_EQ(DefaultHostCacheGib("MemTotal: 1 kB\nMemAvailable: 33554432 kB\n"), 8);
  EXPECT_DOUBLE_EQ(DefaultHostCacheGib("MemTotal: 1 kB\nMemAvailable: 999999999 kB\n"), 32);
  EXPECT_DOUBLE_EQ(DefaultHostCacheGib(""), 0);
}

TEST(JudgeSharedMemory, KnowsDockersDefaultSize) {
  constexpr uint64_t kMiB = 1024 * 1024;
  EXPECT_EQ(JudgeSharedMemory(std::nullopt).level, Level::kFail);
  EXPECT_EQ(JudgeSharedMemory(FolderSpace{1024 * kMiB, false}).level, Level::kFail);
  EXPECT_EQ(JudgeSharedMemory(FolderSpace{8 * kMiB, true}).level, Level::kFail);
  const Finding small = JudgeSharedMemory(FolderSpace{64 * kMiB, true});
  EXPECT_EQ(small.level, Level::kWarn);
  EXPECT_THAT(small.help, HasSubstr("--shm-size"));
  EXPECT_EQ(JudgeSharedMemory(FolderSpace{1024 * kMiB, true}).level, Level::kOk);
}

// The gateway raises the soft limit itself and does not start where the hard one is too low.
TEST(JudgeOpenFiles, IsAboutWhatTheGatewayAsksFor) {
  EXPECT_EQ(JudgeOpenFiles(1279).level, Level::kFail);
  EXPECT_EQ(JudgeOpenFiles(1280).level, Level::kOk);
  EXPECT_EQ(JudgeOpenFiles(RLIM_INFINITY).found, "no limit");
}

TEST(JudgePort, SaysHowToFindWhoHasIt) {
  EXPECT_EQ(JudgePort(8000, "HTTP", true).level, Level::kOk);
  const Finding taken = JudgePort(8000, "HTTP", false);
  EXPECT_EQ(taken.level, Level::kWarn);
  EXPECT_THAT(taken.help, HasSubstr("sport = :8000"));
}

TEST(IsPortFree, SeesAListener) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  ASSERT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), size), 0);
  ASSERT_EQ(listen(fd, 1), 0);
  ASSERT_EQ(getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size), 0);
  EXPECT_FALSE(IsPortFree(ntohs(address.sin_port)));
  close(fd);
}

TEST(JudgeGpus, NoneIsFineAndOneWithoutDriverIsNot) {
  EXPECT_EQ(JudgeGpus({}, "").level, Level::kOk);
  EXPECT_EQ(JudgeGpus({"0000:01:00.0"}, "").level, Level::kWarn);
  const Finding good = JudgeGpus({"0000:01:00.0"}, "NVRM version: 580");
  EXPECT_EQ(good.level, Level::kOk);
  EXPECT_THAT(good.found, HasSubstr("580"));
}

TEST(LookForModels, ListsCheckpointsWithTheirType) {
  const Finding finding = LookForModels(QUARTET_SOURCE_DIR "/models");
  EXPECT_EQ(finding.level, Level::kOk);
  EXPECT_THAT(finding.found, HasSubstr("quartet-demo-exl3 (glm5_next)"));
  EXPECT_THAT(finding.found, Not(HasSubstr("README")));
  // A configuration without weights is nothing to serve.
  EXPECT_THAT(finding.found, Not(HasSubstr("glm-5.3-flash (")));
  EXPECT_EQ(LookForModels("/nowhere").level, Level::kWarn);
}

TEST(LookForPrograms, NamesWhatIsMissing) {
  const Finding finding = LookForPrograms("/nowhere");
  EXPECT_EQ(finding.level, Level::kFail);
  EXPECT_THAT(finding.found, HasSubstr("quartet-coordinator"));
}

}  // namespace
}  // namespace quartet::cli
