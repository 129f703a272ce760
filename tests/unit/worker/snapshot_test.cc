#include <gmock/gmock.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tests/unit/worker/executor_fixture.h"

// Snapshots of live states: what is exported, and sequences that begin behind a cached prefix.

namespace quartet {
namespace {

using testing::HasSubstr;

std::vector<int32_t> Part(const std::vector<int32_t>& ids, size_t begin, size_t end) {
  return {ids.begin() + static_cast<std::ptrdiff_t>(begin),
          ids.begin() + static_cast<std::ptrdiff_t>(end)};
}

class SnapshotTest : public ExecutorFixture {
 protected:
  // The draws of a sequence whose prompt is absorbed up to its last row.
  std::vector<int32_t> Decode(uint64_t uid, uint32_t slot, const v1::Row& last_row, int count) {
    std::vector<int32_t> out = {Run({Sampled(last_row)}).rows(0).tokens(0)};
    uint32_t position = last_row.position() + last_row.n_tokens();
    while (static_cast<int>(out.size()) < count) {
      out.push_back(Run({Sampled(FromDevice(uid, slot, position++))}).rows(0).tokens(0));
    }
    return out;
  }

  // The row with snapshots after so many of its tokens.
  static v1::Row Inside(v1::Row row, std::vector<std::pair<uint32_t, uint32_t>> exports) {
    row.set_kind(v1::Row::KIND_PREFILL);
    for (const auto& [offset, snapshot] : exports) {
      v1::Export* e = row.add_exports();
      e->set_offset(offset);
      e->set_snapshot(snapshot);
    }
    return row;
  }

  // Sequence 1 in slot 0 with pages 0, 1, 2: 600 tokens, exported after 256 (snapshot 0) and 512
  // (snapshot 1). Stays open.
  std::vector<int32_t> First(int count) {
    Open(1, 0);
    Run({Exporting(Row(1, 0, 0, Part(text_, 0, 256), {0}), 0)});
    Run({Exporting(Row(1, 0, 256, Part(text_, 256, 512), {1}), 1)});
    return Decode(1, 0, Row(1, 0, 512, Part(text_, 512, 600), {2}), count);
  }

  const std::vector<int32_t> text_ = Text(600, 9);
};

TEST_F(SnapshotTest, ASequenceBehindACachedPrefixContinuesAsTheOneThatLeftIt) {
  const std::vector<int32_t> whole = First(8);
  ASSERT_EQ(Resume(2, 1, 1, 512, {0, 1}), "");
  EXPECT_EQ(Decode(2, 1, Row(2, 1, 512, Part(text_, 512, 600), {5}), 8), whole);
  Close(1);
  // Also when the one that left it is gone, and from the shorter prefix.
  ASSERT_EQ(Resume(3, 0, 0, 256, {0}), "");
  Run({Row(3, 0, 256, Part(text_, 256, 500), {7})});
  EXPECT_EQ(Decode(3, 0, Row(3, 0, 500, Part(text_, 500, 600), {8}), 8), whole);
  v1::Dump request;
  request.set_seq_uid(3);
  EXPECT_EQ(executor_->Dump(request).tokens(), 607u);
}

TEST_F(SnapshotTest, AnotherTextAfterThePrefixIsThatTextsOwn) {
  First(1);
  std::vector<int32_t> other = Part(text_, 0, 512);
  const std::vector<int32_t> tail = Text(40, 77);
  other.insert(other.end(), tail.begin(), tail.end());
  ASSERT_EQ(Resume(2, 1, 1, 512, {0, 1}), "");
  const std::vector<int32_t> behind = Decode(2, 1, Row(2, 1, 512, tail, {5}), 6);
  Open(3, 2);
  Run({Row(3, 2, 0, Part(other, 0, 300), {6, 7})});
  EXPECT_EQ(Decode(3, 2, Row(3, 2, 300, Part(other, 300, 552), {8}), 6), behind);
}

TEST_F(SnapshotTest, ASnapshotKeepsItsStateWhileTheSequenceGoesOn) {
  const std::vector<int32_t> whole = First(4);
  Run({Sampled(FromDevice(1, 0, 603))});
  Close(1);
  Open(2, 0);  // the same slot, another text
  Run({Row(2, 0, 0, Text(300, 3), {9, 10})});
  ASSERT_EQ(Resume(3, 1, 1, 512, {0, 1}), "");
  EXPECT_EQ(Decode(3, 1, Row(3, 1, 512, Part(text_, 512, 600), {4}), 4), whole);
}

TEST_F(SnapshotTest, SharedPagesAreUsedUntilTheLastReaderIsGone) {
  First(1);
  ASSERT_EQ(Resume(2, 1, 1, 512, {0, 1}), "");
  ASSERT_EQ(Resume(3, 2, 1, 512, {0, 1}), "");
  EXPECT_EQ(executor_->pages_used(), 3);
  Close(1);
  EXPECT_EQ(executor_->pages_used(), 2);
  Open(4, 0);
  EXPECT_THAT(Refused(Plan({Row(4, 0, 0, Text(10), {1})})), HasSubstr("page 1 is used by"));
  Close(2);
  EXPECT_EQ(executor_->pages_used(), 2);
  Close(3);
  EXPECT_EQ(executor_->pages_used(), 0);
  Run({Row(4, 0, 0, Text(10), {1})});
}

TEST_F(SnapshotTest, AResumeThatDoesNotFitItsSnapshotIsRefused) {
  First(1);
  EXPECT_THAT(Resume(2, 1, 0, 512, {0, 1}),
              HasSubstr("resume at 512 tokens, but snapshot 0 holds the state after 256"));
  EXPECT_THAT(Resume(3, 1, 2, 512, {0, 1}), HasSubstr("snapshot 2 holds the state after 0"));
  EXPECT_THAT(Resume(4, 1, 3, 512, {0, 1}),
              HasSubstr("snapshot 3 does not exist; the worker has 3 snapshots"));
  EXPECT_THAT(Resume(5, 1, 1, 512, {0}),
              HasSubstr("resume at 512 tokens with 1 pages, expected 2"));
  EXPECT_THAT(Resume(6, 1, 1, 512, {0, 0}), HasSubstr("page 0 is given twice"));
  EXPECT_THAT(Resume(7, 1, 1, 512, {0, 12}), HasSubstr("page 12 does not exist"));
  EXPECT_THAT(Resume(8, 1, 1, 512, {0, 2}), HasSubstr("page 2 is still filled by sequence 1"));
  // Refused sequences hold nothing.
  EXPECT_EQ(executor_->slots_used(), 1);
  EXPECT_EQ(executor_->pages_used(), 3);
}

TEST_F(SnapshotTest, AStateTakenInsideOfARowIsThatOfARowThatEndsThere) {
  const std::vector<int32_t> whole = First(8);
  v1::Dump request;
  request.set_seq_uid(1);
  const auto hashes = [&] {
    const v1::DumpReply reply = executor_->Dump(request);
    return std::map<std::string, uint64_t>(reply.state_hashes().begin(),
                                           reply.state_hashes().end());
  };
  const std::map<std::string, uint64_t> state = hashes();
  Close(1);
  // The end of one unit, and beside another row whose state must not mix with it.
  Open(1, 0);
  Open(2, 1);
  const std::vector<int32_t> other = Text(20, 3);
  Run({Row(1, 0, 0, Part(text_, 0, 250), {0})});
  Run({Row(2, 1, 0, other, {6}),
       Inside(Row(1, 0, 250, Part(text_, 250, 512), {1}), {{6, 0}, {262, 1}})});
  EXPECT_EQ(Decode(1, 0, Row(1, 0, 512, Part(text_, 512, 600), {2}), 8), whole);
  EXPECT_EQ(hashes(), state);

  ASSERT_EQ(Resume(3, 2, 0, 256, {0}), "");
  Run({Row(3, 2, 256, Part(text_, 256, 500), {8})});
  EXPECT_EQ(Decode(3, 2, Row(3, 2, 500, Part(text_, 500, 600), {9}), 8), whole);
  Close(3);
  ASSERT_EQ(Resume(4, 2, 1, 512, {0, 1}), "");
  EXPECT_EQ(Decode(4, 2, Row(4, 2, 512, Part(text_, 512, 600), {8}), 8), whole);
  Close(4);

  const std::vector<int32_t> said = Decode(2, 1, Row(2, 1, 20, Text(1, 4), {}), 3);
  Open(5, 2);
  Run({Row(5, 2, 0, other, {9})});
  EXPECT_EQ(Decode(5, 2, Row(5, 2, 20, Text(1, 4), {}), 3), said);
}

TEST_F(SnapshotTest, ExportsThatCannotBeDoneAreRefused) {
  Open(1, 0);
  const std::vector<int32_t> unit = Part(text_, 0, 256);
  v1::Row twice = Inside(Row(1, 0, 0, Part(text_, 0, 300), {0, 1}), {{256, 0}, {256, 1}});
  EXPECT_THAT(Refused(Plan({twice})), HasSubstr("exports come in rising order"));
  v1::Row beyond = Inside(Row(1, 0, 0, Part(text_, 0, 300), {0, 1}), {{512, 0}});
  EXPECT_THAT(Refused(Plan({beyond})), HasSubstr("export after 512 of 300 tokens"));
  EXPECT_THAT(Refused(Plan({Exporting(Row(1, 0, 0, Part(text_, 0, 255), {0}), 0)})),
              HasSubstr("export at 255 tokens, expected a multiple of 256"));
  EXPECT_THAT(Refused(Plan({Exporting(Row(1, 0, 0, unit, {0}), 3)})),
              HasSubstr("snapshot 3 does not exist; the worker has 3 snapshots"));
  Open(2, 1);
  EXPECT_THAT(Refused(Plan({Exporting(Row(1, 0, 0, unit, {0}), 1),
                            Inside(Row(2, 1, 0, Text(1), {1}), {{1, 1}})})),
              HasSubstr("sequence 2: export at 1 tokens"));
  Run({Exporting(Row(1, 0, 0, unit, {0}), 1)});
}

}  // namespace
}  // namespace quartet
