#include "services/cli/stage_view.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>
#include <string>

namespace quartet::cli {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;

size_t Lines(const std::string& text) {
  size_t count = 0;
  for (const char c : text) count += c == '\n' ? 1 : 0;
  return count;
}

TEST(StageView, OnATerminalOneLineIsRewrittenInPlace) {
  std::ostringstream out;
  StageView view(out, /*live=*/true, /*colour=*/false);
  view.Progress("shard workers", "loading weights", 0.25, 0.5);
  view.Progress("shard workers", "loading weights", 0.5, 1.0);
  EXPECT_EQ(Lines(out.str()), 0U);
  EXPECT_THAT(out.str(), HasSubstr("\r\x1b[K"));
  EXPECT_THAT(out.str(), HasSubstr("50 %"));
  view.Done("shard workers", "loading weights", 2.0);
  EXPECT_EQ(Lines(out.str()), 1U);
}

TEST(StageView, ElsewhereALineComesEveryFiveSeconds) {
  std::ostringstream out;
  StageView view(out, /*live=*/false, /*colour=*/false);
  for (int i = 0; i < 100; ++i)
    view.Progress("shard workers", "loading weights", i / 100.0, i / 8.0);
  EXPECT_EQ(Lines(out.str()), 2U) << out.str();
  EXPECT_THAT(out.str(), ContainsRegex("loading weights +40 % +5.0 s\n.*loading weights +80 %"));
  view.Done("shard workers", "loading weights", 13.0);
  EXPECT_EQ(Lines(out.str()), 3U);
  EXPECT_EQ(out.str().find('\r'), std::string::npos);
}

TEST(StageView, AStageIsDoneOnlyOnce) {
  std::ostringstream out;
  StageView view(out, /*live=*/false, /*colour=*/false);
  view.Done("gateway", "ready", 1.0);
  view.Done("gateway", "ready", 2.0);
  view.Progress("gateway", "ready", 0.5, 3.0);
  EXPECT_EQ(Lines(out.str()), 1U);
}

TEST(StageView, RowsAreAligned) {
  std::ostringstream out;
  StageView view(out, /*live=*/false, /*colour=*/false);
  view.Done("gateway", "ready", 1.0);
  view.Done("shard workers", "loading weights", 12.5);
  EXPECT_EQ(out.str(),
            "  gateway        ready                         done      1.0 s\n"
            "  shard workers  loading weights               done     12.5 s\n");
}

TEST(StageView, AnUnknownTotalHasNoPercentage) {
  std::ostringstream out;
  StageView view(out, /*live=*/false, /*colour=*/false);
  view.Progress("gateway", "connecting", -1.0, 6.0);
  EXPECT_THAT(out.str(), HasSubstr("..."));
}

}  // namespace
}  // namespace quartet::cli
