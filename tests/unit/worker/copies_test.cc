#include <gmock/gmock.h>

#include <cstdlib>
#include <filesystem>

#include "tests/unit/worker/executor_fixture.h"

// Copies between the device's pools, host memory and the disk, as plans ask for them.

namespace quartet {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr auto kDevice = v1::Copy::TIER_DEVICE;
constexpr auto kHost = v1::Copy::TIER_HOST;
constexpr auto kDisk = v1::Copy::TIER_DISK;
constexpr auto kPage = v1::Copy::KIND_PAGE;
constexpr auto kSnapshot = v1::Copy::KIND_SNAPSHOT;
constexpr auto kDone = v1::CopyResult::KIND_DONE;
constexpr auto kMissing = v1::CopyResult::KIND_MISSING;
constexpr auto kChecksum = v1::CopyResult::KIND_CHECKSUM;

v1::Copy Move(v1::Copy::Kind kind, v1::Copy::Tier from, uint32_t from_place, v1::Copy::Tier to,
              uint32_t to_place, uint64_t key, uint32_t n_tokens) {
  v1::Copy copy;
  copy.set_kind(kind);
  copy.set_from(from);
  copy.set_from_place(from_place);
  copy.set_to(to);
  copy.set_to_place(to_place);
  copy.mutable_name()->set_key_high(key);
  copy.mutable_name()->set_n_tokens(n_tokens);
  return copy;
}
v1::Copy Down(v1::Copy::Kind kind, uint32_t from, uint32_t to, uint64_t key, uint32_t n_tokens) {
  return Move(kind, kDevice, from, kHost, to, key, n_tokens);
}
v1::Copy Up(v1::Copy::Kind kind, uint32_t from, uint32_t to, uint64_t key, uint32_t n_tokens) {
  return Move(kind, kHost, from, kDevice, to, key, n_tokens);
}

class CopiesTest : public ExecutorFixture {
 protected:
  CopiesTest() { WithHost(0); }

  void WithHost(int corrupt_every) {
    host_ = HostTier::Create({.pages = 6,
                              .snapshots = 2,
                              .page_bytes = rank_->pools->page_bytes(),
                              .snapshot_bytes = rank_->pools->snapshot_bytes(),
                              .corrupt_every = corrupt_every},
                             *rank_->backend)
                .value();
    MakeExecutor();
  }
  // Over what another life has left in the folder.
  void WithDisk(const std::string& folder) {
    disk_.reset();
    disk_ = DiskTier::Open({.folder = folder,
                            .name = "rank0",
                            .pages = 6,
                            .snapshots = 2,
                            .page_bytes = rank_->pools->page_bytes(),
                            .snapshot_bytes = rank_->pools->snapshot_bytes()})
                .value();
    MakeExecutor();
  }
  void MakeExecutor() {
    executor_ = std::make_unique<Executor>(
        ExecutorOptions{.epoch = kTestEpoch, .rank = 0, .max_model_len = kTestModelLen},
        *rank_->model, *rank_->pools, LowerTiers{.host = host_.get(), .disk = disk_.get()});
    step_ = 0;
  }

  v1::StepPlan CopyPlan(const std::vector<v1::Copy>& copies,
                        const std::vector<v1::Row>& rows = {}) {
    v1::StepPlan plan = Plan(rows);
    for (const v1::Copy& copy : copies) *plan.add_copies() = copy;
    return plan;
  }
  std::vector<v1::CopyResult::Kind> Copy(const std::vector<v1::Copy>& copies,
                                         const std::vector<v1::Row>& rows = {}) {
    const v1::StepResult result = executor_->Execute(CopyPlan(copies, rows)).value();
    EXPECT_EQ(result.error(), "");
    ++step_;
    std::vector<v1::CopyResult::Kind> kinds;
    for (const v1::CopyResult& copy : result.copies()) kinds.push_back(copy.kind());
    return kinds;
  }

  std::vector<int32_t> Part(size_t begin, size_t end) const {
    return {text_.begin() + static_cast<std::ptrdiff_t>(begin),
            text_.begin() + static_cast<std::ptrdiff_t>(end)};
  }
  // Sequence 1 in slot 0 on pages 0, 1, 2: 512 tokens, the state after them in snapshot 0; what it
  // says after 88 more.
  std::vector<int32_t> First() {
    Open(1, 0);
    Run({Row(1, 0, 0, Part(0, 256), {0})});
    Run({Exporting(Row(1, 0, 256, Part(256, 512), {1}), 0)});
    return Say(1, 0, 2);
  }
  std::vector<int32_t> Say(uint64_t uid, uint32_t slot, uint32_t page) {
    std::vector<int32_t> said = {
        Run({Sampled(Row(uid, slot, 512, Part(512, 600), {page}))}).rows(0).tokens(0)};
    for (uint32_t position = 600; position < 606; ++position) {
      said.push_back(Run({Sampled(FromDevice(uid, slot, position))}).rows(0).tokens(0));
    }
    return said;
  }
  // Other texts over everything that the device holds.
  void Overwrite() {
    Open(90, 3);
    Run({Exporting(Row(90, 3, 0, Text(256, 30), {0}), 0)});
    Run({Exporting(Row(90, 3, 256, Text(256, 31), {1}), 1)});
    Run({Exporting(Row(90, 3, 512, Text(256, 32), {2}), 2)});
    Close(90);
  }

  // With the unit's tokens, as copies to the disk have.
  v1::Copy ToDisk(v1::Copy::Kind kind, uint32_t from, uint32_t to, uint64_t key,
                  uint32_t n_tokens) const {
    v1::Copy copy = Move(kind, kHost, from, kDisk, to, key, n_tokens);
    const std::vector<int32_t> unit = Part(n_tokens - 256, n_tokens);
    copy.mutable_origin()->mutable_tokens()->Add(unit.begin(), unit.end());
    return copy;
  }

  const std::vector<int32_t> text_ = Text(600, 9);
  std::unique_ptr<HostTier> host_;
  std::unique_ptr<DiskTier> disk_;
};

TEST_F(CopiesTest, ASequenceGoesOnBehindAPrefixThatCameBack) {
  const std::vector<int32_t> said = First();
  EXPECT_THAT(Copy({Down(kPage, 0, 5, 100, 256), Down(kPage, 1, 3, 101, 512),
                    Down(kSnapshot, 0, 1, 101, 512)}),
              ElementsAre(kDone, kDone, kDone));
  Close(1);
  Overwrite();
  EXPECT_THAT(
      Copy({Up(kPage, 5, 7, 100, 256), Up(kPage, 3, 8, 101, 512), Up(kSnapshot, 1, 2, 101, 512)}),
      ElementsAre(kDone, kDone, kDone));
  ASSERT_EQ(Resume(2, 1, 2, 512, {7, 8}), "");
  EXPECT_EQ(Say(2, 1, 9), said);
  EXPECT_EQ(executor_->copy_stats().down_bytes, executor_->copy_stats().up_bytes);
}

TEST_F(CopiesTest, CopiesComeBeforeTheRowsOfTheirStep) {
  const std::vector<int32_t> said = First();
  // While sequence 1 says one more token and another text takes the snapshot's place.
  Open(2, 1);
  EXPECT_THAT(Copy({Down(kPage, 0, 0, 100, 256), Down(kPage, 1, 1, 101, 512),
                    Down(kSnapshot, 0, 0, 101, 512)},
                   {Exporting(Row(2, 1, 0, Text(256, 40), {4}), 0)}),
              ElementsAre(kDone, kDone, kDone));
  EXPECT_THAT(
      Copy({Up(kPage, 0, 7, 100, 256), Up(kPage, 1, 8, 101, 512), Up(kSnapshot, 0, 1, 101, 512)},
           {Row(2, 1, 256, Text(10, 41), {5})}),
      ElementsAre(kDone, kDone, kDone));
  ASSERT_EQ(Resume(3, 2, 1, 512, {7, 8}), "");
  EXPECT_EQ(Say(3, 2, 9), said);
}

TEST_F(CopiesTest, ADamagedObjectIsReportedAndDoesNotComeBack) {
  WithHost(3);
  const std::vector<int32_t> said = First();
  Copy({Down(kPage, 0, 0, 100, 256), Down(kPage, 1, 1, 101, 512), Down(kSnapshot, 0, 0, 101, 512)});
  EXPECT_THAT(
      Copy({Up(kPage, 0, 7, 100, 256), Up(kPage, 1, 8, 101, 512), Up(kSnapshot, 0, 2, 101, 512)}),
      ElementsAre(kDone, kDone, kChecksum));
  EXPECT_EQ(executor_->copy_stats().checksum_failures, 1u);
  EXPECT_THAT(Resume(2, 1, 2, 512, {7, 8}), HasSubstr("snapshot 2 holds the state after 0"));
  // The ranks go on, and the same step again has the same result.
  const v1::StepResult again = executor_
                                   ->Execute([&] {
                                     v1::StepPlan plan = CopyPlan({});
                                     plan.set_step_id(step_);
                                     return plan;
                                   }())
                                   .value();
  EXPECT_EQ(again.copies_size(), 3);
  ASSERT_EQ(Resume(3, 2, 0, 512, {0, 1}), "");
  EXPECT_EQ(Say(3, 2, 9), said);
}

TEST_F(CopiesTest, WhatAPlaceDoesNotHoldIsMissing) {
  First();
  EXPECT_THAT(Copy({Up(kPage, 0, 7, 100, 256), Down(kSnapshot, 0, 0, 100, 256),
                    Down(kSnapshot, 1, 1, 100, 256)}),
              ElementsAre(kMissing, kMissing, kMissing));
  Copy({Down(kPage, 0, 0, 100, 256)});
  EXPECT_THAT(Copy({Up(kPage, 0, 7, 101, 256), Up(kPage, 0, 8, 100, 512)}),
              ElementsAre(kMissing, kMissing));
  EXPECT_EQ(executor_->copy_stats().missing, 5u);
}

TEST_F(CopiesTest, APrefixComesBackFromTheDiskInAnotherLife) {
  std::string folder = testing::TempDir() + "copies_XXXXXX";
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  WithDisk(folder);
  const std::vector<int32_t> said = First();
  Copy({Down(kPage, 0, 0, 100, 256), Down(kPage, 1, 1, 101, 512), Down(kSnapshot, 0, 0, 101, 512)});
  EXPECT_THAT(Copy({ToDisk(kPage, 0, 5, 100, 256), ToDisk(kPage, 1, 2, 101, 512),
                    ToDisk(kSnapshot, 0, 1, 101, 512), ToDisk(kPage, 3, 0, 100, 256)}),
              ElementsAre(kDone, kDone, kDone, kMissing));
  Close(1);
  Overwrite();

  WithHost(0);
  WithDisk(folder);
  EXPECT_EQ(disk_->TakeEntries().size(), 3u);
  EXPECT_THAT(
      Copy({Move(kPage, kDisk, 5, kHost, 2, 100, 256), Move(kPage, kDisk, 2, kHost, 3, 101, 512),
            Move(kSnapshot, kDisk, 1, kHost, 1, 101, 512),
            Move(kPage, kDisk, 4, kHost, 4, 101, 512)}),
      ElementsAre(kDone, kDone, kDone, kMissing));
  EXPECT_THAT(
      Copy({Up(kPage, 2, 7, 100, 256), Up(kPage, 3, 8, 101, 512), Up(kSnapshot, 1, 2, 101, 512)}),
      ElementsAre(kDone, kDone, kDone));
  ASSERT_EQ(Resume(2, 1, 2, 512, {7, 8}), "");
  EXPECT_EQ(Say(2, 1, 9), said);
  v1::Copy nameless = ToDisk(kPage, 2, 0, 100, 256);
  nameless.mutable_origin()->clear_tokens();
  EXPECT_THAT(Refused(CopyPlan({nameless})), HasSubstr("to the disk with 0 tokens of the unit"));
  disk_.reset();
  std::filesystem::remove_all(folder);
}

TEST_F(CopiesTest, CopiesThatCannotBeTriedAreRefused) {
  First();
  const auto refusal = [this](const v1::Copy& copy, const std::vector<v1::Row>& rows = {}) {
    return Refused(CopyPlan({copy}, rows));
  };
  v1::Copy copy = Up(kPage, 0, 7, 1, 256);
  copy.set_kind(v1::Copy::KIND_UNSPECIFIED);
  EXPECT_THAT(refusal(copy), HasSubstr("copies[0]: kind 0, expected KIND_PAGE or KIND_SNAPSHOT"));
  EXPECT_THAT(refusal(Move(kPage, kHost, 0, kHost, 1, 1, 256)), HasSubstr("from tier 2 to tier 2"));
  EXPECT_THAT(refusal(Move(kPage, kDisk, 0, kDevice, 7, 1, 256)),
              HasSubstr("from tier 3 to tier 1"));
  EXPECT_THAT(refusal(Move(kPage, kDisk, 0, kHost, 1, 1, 256)),
              HasSubstr("page 0 of TIER_DISK does not exist; there are 0"));
  EXPECT_THAT(refusal(Up(kPage, 6, 7, 1, 256)),
              HasSubstr("page 6 of TIER_HOST does not exist; there are 6"));
  EXPECT_THAT(refusal(Down(kSnapshot, 3, 0, 1, 256)),
              HasSubstr("snapshot 3 of TIER_DEVICE does not exist; there are 3"));
  EXPECT_THAT(refusal(Up(kPage, 0, 12, 1, 256)), HasSubstr("page 12 of TIER_DEVICE"));
  EXPECT_THAT(refusal(Up(kPage, 0, 7, 1, 100)),
              HasSubstr("n_tokens is 100, expected a multiple of 256"));
  EXPECT_THAT(refusal(Up(kPage, 0, 1, 1, 256)), HasSubstr("page 1 is used by sequence 1"));
  Open(2, 1);
  EXPECT_THAT(refusal(Up(kPage, 0, 7, 1, 256), {Row(2, 1, 0, Text(10), {7})}),
              HasSubstr("page 7 is written by a row or a commit of the same plan"));
  EXPECT_THAT(refusal(Up(kSnapshot, 0, 1, 1, 256), {Exporting(Row(2, 1, 0, Text(256), {7}), 1)}),
              HasSubstr("snapshot 1 is written by a row or a commit of the same plan"));
  EXPECT_THAT(Refused(CopyPlan({Down(kPage, 0, 4, 1, 256), Down(kPage, 1, 4, 2, 512)})),
              HasSubstr("copies[1]: page 4 of TIER_HOST is written twice"));
  // Nothing has changed: the step is still to come.
  Run({Row(2, 1, 0, Text(10), {7})});
}

TEST_F(CopiesTest, WithoutAHostTierEveryCopyIsRefused) {
  NewEpoch();
  First();
  EXPECT_THAT(Refused(CopyPlan({Down(kPage, 0, 0, 1, 256)})),
              HasSubstr("page 0 of TIER_HOST does not exist; there are 0"));
}

}  // namespace
}  // namespace quartet
