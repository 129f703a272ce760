#include "services/common/process.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <functional>
#include <string>
#include <thread>

namespace quartet {
namespace {

using ::testing::HasSubstr;

TEST(ParseHostPort, TakesNamesAndBothKindsOfNumbers) {
  const auto v4 = ParseHostPort("127.0.0.1:8000");
  ASSERT_TRUE(v4.ok());
  EXPECT_EQ(v4->host, "127.0.0.1");
  EXPECT_EQ(v4->port, 8000);
  const auto v6 = ParseHostPort("[::1]:0");
  ASSERT_TRUE(v6.ok());
  EXPECT_EQ(v6->host, "::1");
  EXPECT_EQ(v6->port, 0);
  const auto name = ParseHostPort("coordinator:65535");
  ASSERT_TRUE(name.ok());
  EXPECT_EQ(name->host, "coordinator");
  EXPECT_EQ(name->port, 65535);
}

TEST(ParseHostPort, SaysWhatIsWrongAndWhatWouldBeRight) {
  for (const char* bad : {"", "8000", "localhost", ":8000", "host:", "host:http", "host:65536",
                          "host:-1", "host:+1", "::1:8000", "a b:1", "unix:/tmp/socket"}) {
    const auto parsed = ParseHostPort(bad);
    ASSERT_FALSE(parsed.ok()) << bad;
    EXPECT_EQ(parsed.status().code(), absl::StatusCode::kInvalidArgument);
    const std::string message(parsed.status().message());
    EXPECT_THAT(message, HasSubstr("'" + std::string(bad) + "'"));
    EXPECT_THAT(message, HasSubstr("127.0.0.1:8000"));
  }
}

// Signals are a property of the whole process: each case runs in a child of its own.
int ExitCodeOf(const std::function<int()>& body) {
  const pid_t child = fork();
  if (child == 0) _exit(body());
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

TEST(WaitForShutdown, ReturnsTheSignalThatArrived) {
  for (const int number : {SIGINT, SIGTERM}) {
    EXPECT_EQ(ExitCodeOf([number] {
                BlockShutdownSignals();
                kill(getpid(), number);
                return WaitForShutdown();
              }),
              number);
  }
}

TEST(WaitForShutdown, ReturnsZeroWhenTheProcessItselfAsks) {
  EXPECT_EQ(ExitCodeOf([] {
              BlockShutdownSignals();
              std::thread other([] { RequestShutdown(); });
              const int number = WaitForShutdown();
              other.join();
              return number;
            }),
            0);
}

TEST(WaitForShutdown, ARequestBeforeTheWaitIsNotLost) {
  EXPECT_EQ(ExitCodeOf([] {
              BlockShutdownSignals();
              RequestShutdown();
              return WaitForShutdown();
            }),
            0);
}

TEST(DieWithParent, AChildGoesWhenItsParentIsKilled) {
  int fds[2];
  ASSERT_EQ(pipe(fds), 0);
  const pid_t parent = fork();
  if (parent == 0) {
    const pid_t child = fork();
    if (child == 0) {
      DieWithParent();
      const pid_t self = getpid();
      if (write(fds[1], &self, sizeof self) != sizeof self) _exit(1);
      while (true) pause();
    }
    while (true) pause();
  }
  close(fds[1]);
  pid_t child = 0;
  ASSERT_EQ(read(fds[0], &child, sizeof child), static_cast<ssize_t>(sizeof child));
  ASSERT_EQ(kill(parent, SIGKILL), 0);
  ASSERT_EQ(waitpid(parent, nullptr, 0), parent);
  // The child held the last writing end: the pipe's end is the child's end.
  char byte = 0;
  EXPECT_EQ(read(fds[0], &byte, 1), 0);
  close(fds[0]);
}

}  // namespace
}  // namespace quartet
