#include "services/cli/sse_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace quartet::cli {
namespace {

using ::testing::ElementsAre;

std::vector<std::string> Read(const std::vector<std::string>& pieces) {
  SseReader reader;
  std::vector<std::string> events;
  for (const std::string& piece : pieces) {
    reader.Feed(piece,
                [&](const SseEvent& event) { events.push_back(event.type + "|" + event.data); });
  }
  return events;
}

TEST(SseReader, AnEventEndsWithAnEmptyLine) {
  EXPECT_THAT(Read({"data: one\n\ndata: two\n\ndata: unfinished\n"}), ElementsAre("|one", "|two"));
}

TEST(SseReader, ItDoesNotMatterHowTheBytesArrive) {
  const std::string stream = "event: error\r\ndata: {\"a\": 1}\r\n\r\ndata:x\r\rdata: y\n\n";
  const std::vector<std::string> whole = Read({stream});
  EXPECT_THAT(whole, ElementsAre("error|{\"a\": 1}", "|x", "|y"));
  for (size_t cut = 0; cut <= stream.size(); ++cut) {
    EXPECT_EQ(Read({stream.substr(0, cut), stream.substr(cut)}), whole) << "cut at " << cut;
  }
}

TEST(SseReader, DataLinesAreJoinedAndOnlyOneSpaceIsTaken) {
  EXPECT_THAT(Read({"data:  a\ndata:b\ndata\n\n"}), ElementsAre("| a\nb\n"));
}

TEST(SseReader, CommentsIdsAndEmptyEventsAreLeftOut) {
  EXPECT_THAT(Read({": ping\n\nid: 7\nretry: 10\n\nevent: empty\n\ndata: x\n\n"}),
              ElementsAre("|x"));
}

}  // namespace
}  // namespace quartet::cli
