#include "services/common/log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "boost/json.hpp"

namespace quartet {
namespace {

namespace json = boost::json;

// What `body` writes to standard error.
template <typename Body>
std::string ErrorOutputOf(Body body) {
  ::testing::internal::CaptureStderr();
  body();
  return ::testing::internal::GetCapturedStderr();
}

// Captured standard error is a file, so lines are JSON.
json::object LoggedObject(const std::string& message) {
  const std::string output = ErrorOutputOf([&] {
    EXPECT_TRUE(InitLogging("quartet-test", "info"));
    LogWarning(message);
  });
  json::error_code error;
  const json::value value = json::parse(output, error);
  EXPECT_FALSE(error) << output;
  return value.is_object() ? value.get_object() : json::object();
}

TEST(Log, ALineIsAJsonObjectWithTimeLevelProcessAndMessage) {
  const json::object line = LoggedObject("one \"message\"\nin two lines\t\x01 \\");
  ASSERT_EQ(line.size(), 4U);
  EXPECT_EQ(line.at("level").as_string(), "warning");
  EXPECT_EQ(line.at("process").as_string(), "quartet-test");
  EXPECT_EQ(line.at("message").as_string(), "one \"message\"\nin two lines\t\x01 \\");
  const std::string time(line.at("time").as_string().c_str());
  EXPECT_THAT(time, ::testing::MatchesRegex(
                        "[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\\.[0-9]{3}Z"));
}

TEST(Log, BytesThatAreNotUtf8BecomeReplacementCharacters) {
  EXPECT_EQ(LoggedObject("ü 漢 🙂").at("message").as_string(), "ü 漢 🙂");
  EXPECT_EQ(LoggedObject("a\xff"
                         "b\xc3")
                .at("message")
                .as_string(),
            "a\xEF\xBF\xBD"
            "b\xEF\xBF\xBD");
  // Overlong, surrogate, beyond U+10FFFF.
  for (const char* bad : {"\xc0\xaf", "\xed\xa0\x80", "\xf4\x90\x80\x80"}) {
    const std::string message(LoggedObject(bad).at("message").as_string().c_str());
    EXPECT_THAT(message, ::testing::StartsWith("\xEF\xBF\xBD"));
  }
}

TEST(Log, LinesBelowTheLevelAreLeftOut) {
  const std::string output = ErrorOutputOf([] {
    EXPECT_TRUE(InitLogging("quartet-test", "warning"));
    LogDebug("debug");
    LogInfo("info");
    LogError("error");
  });
  EXPECT_THAT(output, ::testing::Not(::testing::HasSubstr("\"info\"")));
  EXPECT_THAT(output, ::testing::HasSubstr("\"message\":\"error\""));
}

TEST(Log, AnUnknownLevelIsRefusedAndChangesNothing) {
  const std::string output = ErrorOutputOf([] {
    EXPECT_TRUE(InitLogging("quartet-test", "error"));
    EXPECT_FALSE(InitLogging("quartet-other", "verbose"));
    LogWarning("hidden");
    LogError("shown");
  });
  EXPECT_THAT(output, ::testing::HasSubstr("\"process\":\"quartet-test\""));
  EXPECT_THAT(output, ::testing::Not(::testing::HasSubstr("hidden")));
}

TEST(Log, ALongMessageIsWrittenWhole) {
  const std::string message(100'000, 'x');
  EXPECT_EQ(LoggedObject(message).at("message").as_string().size(), message.size());
}

}  // namespace
}  // namespace quartet
