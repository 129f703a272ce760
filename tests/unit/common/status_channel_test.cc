#include "services/common/status_channel.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <string>
#include <thread>
#include <vector>

namespace quartet {
namespace {

class StatusPipe : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_EQ(pipe2(fds_, O_CLOEXEC), 0); }
  void TearDown() override {
    CloseReader();
    CloseWriter();
  }
  void CloseReader() {
    if (fds_[0] >= 0) close(fds_[0]);
    fds_[0] = -1;
  }
  void CloseWriter() {
    if (fds_[1] >= 0) close(fds_[1]);
    fds_[1] = -1;
  }
  int writer() const { return fds_[1]; }

  // Everything that was written, as lines. Closes the writing end.
  std::vector<std::string> Lines() {
    CloseWriter();
    std::vector<std::string> lines(1);
    char c = 0;
    while (read(fds_[0], &c, 1) == 1) {
      if (c == '\n') {
        lines.emplace_back();
      } else {
        lines.back().push_back(c);
      }
    }
    EXPECT_TRUE(lines.back().empty()) << "the last line has no line feed";
    lines.pop_back();
    return lines;
  }

 private:
  int fds_[2] = {-1, -1};
};

TEST_F(StatusPipe, EveryKindOfEventComesBackAsItWasSent) {
  const StatusChannel channel(writer());
  channel.Listening("http", "127.0.0.1:8000");
  channel.Progress("loading weights", 123, 456);
  channel.Ready();
  channel.Error("config.json: \"hidden_size\" is\nmissing");

  const std::vector<std::string> lines = Lines();
  ASSERT_EQ(lines.size(), 4U);
  const auto listening = ParseStatusEvent(lines[0]);
  ASSERT_TRUE(listening.has_value());
  EXPECT_EQ(listening->kind, StatusEvent::Kind::kListening);
  EXPECT_EQ(listening->name, "http");
  EXPECT_EQ(listening->address, "127.0.0.1:8000");
  const auto progress = ParseStatusEvent(lines[1]);
  ASSERT_TRUE(progress.has_value());
  EXPECT_EQ(progress->kind, StatusEvent::Kind::kProgress);
  EXPECT_EQ(progress->stage, "loading weights");
  EXPECT_EQ(progress->done, 123);
  EXPECT_EQ(progress->total, 456);
  const auto ready = ParseStatusEvent(lines[2]);
  ASSERT_TRUE(ready.has_value());
  EXPECT_EQ(ready->kind, StatusEvent::Kind::kReady);
  const auto error = ParseStatusEvent(lines[3]);
  ASSERT_TRUE(error.has_value());
  EXPECT_EQ(error->kind, StatusEvent::Kind::kError);
  EXPECT_EQ(error->message, "config.json: \"hidden_size\" is\nmissing");
}

TEST_F(StatusPipe, LinesOfSeveralThreadsDoNotMix) {
  constexpr int kThreads = 4;
  constexpr int kEvents = 50;
  const StatusChannel channel(writer());
  std::vector<std::thread> threads;
  threads.reserve(kThreads);
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&channel] {
      for (int i = 0; i < kEvents; ++i) channel.Progress("loading", i, kEvents);
    });
  }
  for (std::thread& thread : threads) thread.join();
  const std::vector<std::string> lines = Lines();
  EXPECT_EQ(lines.size(), static_cast<size_t>(kThreads * kEvents));
  for (const std::string& line : lines) EXPECT_TRUE(ParseStatusEvent(line).has_value()) << line;
}

TEST_F(StatusPipe, ASupervisorThatHasGoneIsNoError) {
  const StatusChannel channel(writer());
  CloseReader();
  channel.Ready();  // Would end this test by SIGPIPE.
  channel.Progress("loading", 1, 2);
}

TEST(StatusChannel, WithoutADescriptorItDoesNothing) {
  const StatusChannel channel;
  channel.Ready();
  channel.Error("nobody reads this");
}

TEST(ParseStatusEvent, RefusesWhatIsNoEvent) {
  for (const char* line :
       {"", "ready", "[]", "{}", R"({"event":"unknown"})", R"({"event":7})",
        R"({"event":"listening","name":"http"})", R"({"event":"progress","stage":"x","done":1})",
        R"({"event":"progress","stage":"x","done":"1","total":2})",
        R"({"event":"progress","stage":"x","done":-1,"total":2})", R"({"event":"error"})",
        R"({"event":"ready"} trailing)"}) {
    EXPECT_FALSE(ParseStatusEvent(line).has_value()) << line;
  }
}

TEST(ParseStatusEvent, IgnoresFieldsThatItDoesNotKnow) {
  const auto event = ParseStatusEvent(R"({"event":"ready","since":"a later version"})");
  ASSERT_TRUE(event.has_value());
  EXPECT_EQ(event->kind, StatusEvent::Kind::kReady);
}

}  // namespace
}  // namespace quartet
