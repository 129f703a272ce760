#include "services/coordinator/simulation/sim_tiers.h"

#include <gmock/gmock.h>

#include "services/coordinator/simulation/sim_worker.h"

// The memory of a simulated rank below its device does what a shard worker's does.

namespace quartet::simulation {
namespace {

using coordinator::CacheTier;
using coordinator::CopyOutcome;
using coordinator::CoreConfig;
using coordinator::StepCollector;
using coordinator::StepPlan;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr auto kPage = TierCopy::Kind::kPage;
constexpr auto kSnapshot = TierCopy::Kind::kSnapshot;
constexpr auto kDevice = CacheTier::kDevice;
constexpr auto kHost = CacheTier::kHost;
constexpr auto kDisk = CacheTier::kDisk;

StoredObject Record(uint64_t name, uint64_t data) {
  return {.key = {.high = name, .low = 1},
          .n_tokens = 64,
          .data = data,
          .checksum = StoredObject::ChecksumOf(data),
          .origin = {}};
}

TEST(SimDisk, ARankReadsWhatItHasQueuedAndWaitsForIt) {
  SimDisk disk(2, 2, 100);
  EXPECT_TRUE(disk.Write(kPage, 1, Record(7, 70), 1000));
  EXPECT_TRUE(disk.Write(kPage, 0, Record(8, 80), 1000));
  EXPECT_THAT(disk.Inventory(), IsEmpty());
  TimeUs ready = 1000;
  EXPECT_EQ(disk.Read(kPage, 0, ready).data, 80u);
  EXPECT_EQ(ready, 1200);
  EXPECT_THAT(disk.Inventory(), SizeIs(2)) << "the one in front of it is written as well";
  ready = 5000;
  EXPECT_EQ(disk.Read(kPage, 1, ready).data, 70u);
  EXPECT_EQ(ready, 5000);
}

TEST(SimDisk, RefusesWhatItCannotWriteInTime) {
  SimDisk disk(100, 1, 100);
  for (uint32_t place = 0; place < SimDisk::kQueue; ++place) {
    EXPECT_TRUE(disk.Write(kPage, place, Record(place, 1), 0));
  }
  EXPECT_FALSE(disk.Write(kPage, 99, Record(99, 1), 0));
  EXPECT_TRUE(disk.Write(kPage, 99, Record(99, 1), 100)) << "the first one is written";
}

TEST(SimDisk, ACrashLosesTheQueueAndCutsShortWhatIsBeingWritten) {
  for (const uint64_t name : {6, 7}) {
    SimDisk disk(3, 1, 100);
    disk.Write(kPage, 0, Record(4, 40), 0);
    disk.Write(kPage, 1, Record(5, 50), 0);
    disk.Flush();
    disk.Write(kPage, 0, Record(name, 60), 1000);
    disk.Write(kPage, 1, Record(8, 80), 1000);
    disk.Crash(1050);
    const StoredObject& cut = disk.records().Of(kPage)[0];
    EXPECT_TRUE(cut.n_tokens == 0 || !cut.intact()) << "neither the old record nor a good new one";
    EXPECT_EQ(cut.n_tokens == 0, name == 7) << "both ways happen";
    EXPECT_EQ(disk.records().Of(kPage)[1].data, 50u) << "not begun: the old record";
  }
}

CoreConfig Config() {
  CoreConfig config;
  config.epoch = 3;
  config.vocab_size = 1000;
  config.max_model_len = 1024;
  config.slots = 2;
  config.pages = 8;
  config.page_tokens = 64;
  config.snapshots = 3;
  config.host_pages = 4;
  config.host_snapshots = 2;
  config.disk_pages = 4;
  config.disk_snapshots = 2;
  config.max_num_batched_tokens = 128;
  return config;
}

class SimWorkerCopiesTest : public ::testing::Test {
 protected:
  SimWorkerCopiesTest() : worker_({.vocab_size = 1000}, Config(), 0, SimDisk(4, 2, 10)) {
    worker_.Open(OpenAt(1, 0));
    coordinator::PlanRow row;
    row.seq_uid = 1;
    row.n_tokens = 64;
    for (int32_t i = 0; i < 64; ++i) row.tokens.push_back(i);
    row.new_pages = {5};
    row.exports = {{.offset = 64, .snapshot = 2}};
    StepPlan plan = Plan({});
    plan.rows.push_back(row);
    EXPECT_EQ(worker_.Execute(plan).error, "");
  }

  static coordinator::SequenceOpen OpenAt(uint64_t uid, uint32_t slot) {
    coordinator::SequenceOpen open;
    open.seq_uid = uid;
    open.slot = slot;
    return open;
  }
  StepPlan Plan(std::vector<TierCopy> copies) {
    StepPlan plan;
    plan.epoch = 3;
    plan.step_id = ++step_;
    plan.copies = std::move(copies);
    return plan;
  }
  // How each copy went.
  std::vector<CopyOutcome> Run(std::vector<TierCopy> copies, std::vector<TierFault> faults = {}) {
    const StepCollector::Answer answer = worker_.Execute(Plan(std::move(copies)), 1000, faults);
    EXPECT_EQ(answer.error, "");
    return answer.copies;
  }
  std::string Error(std::vector<TierCopy> copies) {
    const std::string error = worker_.Execute(Plan(std::move(copies))).error;
    --step_;
    return error;
  }
  static TierCopy Copy(TierCopy::Kind kind, CacheTier from, uint32_t from_place, CacheTier to,
                       uint32_t to_place, uint64_t name = 7) {
    TierCopy copy;
    copy.kind = kind;
    copy.from = from;
    copy.from_place = from_place;
    copy.to = to;
    copy.to_place = to_place;
    copy.key = {.high = name, .low = 1};
    copy.n_tokens = 64;
    if (to == kDisk) copy.origin.tokens.resize(64);
    return copy;
  }

  SimWorker worker_;
  uint64_t step_ = 0;
};

TEST_F(SimWorkerCopiesTest, WhatWentDownComesBackUnderItsNameOnly) {
  const uint64_t entries = worker_.PageEntries(5);
  const auto state = worker_.SnapshotState(2);
  EXPECT_THAT(Run({Copy(kPage, kDevice, 5, kHost, 1), Copy(kSnapshot, kDevice, 2, kHost, 0)}),
              ElementsAre(CopyOutcome::kDone, CopyOutcome::kDone));
  EXPECT_THAT(Run({Copy(kPage, kHost, 1, kDevice, 0, 8), Copy(kSnapshot, kHost, 1, kDevice, 0)}),
              ElementsAre(CopyOutcome::kMissing, CopyOutcome::kMissing));
  EXPECT_EQ(worker_.PageEntries(0), 0u) << "left as it was";
  EXPECT_THAT(Run({Copy(kPage, kHost, 1, kDevice, 0), Copy(kSnapshot, kHost, 0, kDevice, 0)}),
              ElementsAre(CopyOutcome::kDone, CopyOutcome::kDone));
  EXPECT_EQ(worker_.PageEntries(0), entries);
  EXPECT_EQ(worker_.SnapshotState(0), state);
}

TEST_F(SimWorkerCopiesTest, AStateIsStoredUnderItsOwnLengthOnly) {
  TierCopy copy = Copy(kSnapshot, kDevice, 2, kHost, 0);
  copy.n_tokens = 128;
  EXPECT_THAT(Run({copy}), ElementsAre(CopyOutcome::kMissing));
}

TEST_F(SimWorkerCopiesTest, DamageIsFoundOnTheWayBack) {
  Run({Copy(kPage, kDevice, 5, kHost, 1)}, {TierFault::kDamaged});
  EXPECT_THAT(Run({Copy(kPage, kHost, 1, kDevice, 0)}), ElementsAre(CopyOutcome::kChecksum));
  // The checksum goes with the bytes to the disk and back.
  EXPECT_THAT(Run({Copy(kPage, kHost, 1, kDisk, 3)}), ElementsAre(CopyOutcome::kDone));
  EXPECT_THAT(Run({Copy(kPage, kDisk, 3, kHost, 2)}), ElementsAre(CopyOutcome::kChecksum));
  worker_.BelieveEverything();
  EXPECT_THAT(Run({Copy(kPage, kHost, 1, kDevice, 0)}), ElementsAre(CopyOutcome::kDone));
  EXPECT_NE(worker_.PageEntries(0), worker_.PageEntries(5));
}

TEST_F(SimWorkerCopiesTest, AFailedCopyLeavesNothingToBeFound) {
  EXPECT_THAT(Run({Copy(kPage, kDevice, 5, kHost, 1)}, {TierFault::kRefused}),
              ElementsAre(CopyOutcome::kMissing));
  EXPECT_THAT(Run({Copy(kPage, kHost, 1, kDevice, 0)}), ElementsAre(CopyOutcome::kMissing));
  Run({Copy(kPage, kDevice, 5, kHost, 1)});
  EXPECT_THAT(Run({Copy(kPage, kHost, 1, kDisk, 3)}, {TierFault::kLostWrite}),
              ElementsAre(CopyOutcome::kDone));
  EXPECT_THAT(Run({Copy(kPage, kDisk, 3, kHost, 2)}), ElementsAre(CopyOutcome::kMissing));
}

TEST_F(SimWorkerCopiesTest, TheNextRankFindsTheDiskAndNotTheHostMemory) {
  Run({Copy(kPage, kDevice, 5, kHost, 1)});
  Run({Copy(kPage, kHost, 1, kDisk, 3)});
  SimDisk disk = std::move(worker_).TakeDisk();
  disk.Flush();
  SimWorker next({.vocab_size = 1000}, Config(), 0, std::move(disk));
  ASSERT_THAT(next.disk().Inventory(), SizeIs(1));
  EXPECT_EQ(next.disk().Inventory()[0].place, 3u);
  StepPlan plan;
  plan.epoch = 3;
  plan.step_id = 1;
  plan.copies = {Copy(kPage, kHost, 1, kDevice, 0), Copy(kPage, kDisk, 3, kHost, 0)};
  EXPECT_THAT(next.Execute(plan).copies, ElementsAre(CopyOutcome::kMissing, CopyOutcome::kDone));
}

TEST_F(SimWorkerCopiesTest, RefusesWhatCannotBeTried) {
  EXPECT_THAT(Error({Copy(kPage, kDevice, 5, kDisk, 0)}), HasSubstr("are no neighbours"));
  EXPECT_THAT(Error({Copy(kPage, kDevice, 8, kHost, 0)}), HasSubstr("does not exist"));
  EXPECT_THAT(Error({Copy(kSnapshot, kDevice, 0, kHost, 2)}), HasSubstr("does not exist"));
  EXPECT_THAT(Error({Copy(kPage, kHost, 0, kDevice, 5)}), HasSubstr("is used by a sequence"));
  EXPECT_THAT(Error({Copy(kPage, kDevice, 5, kHost, 0), Copy(kPage, kDisk, 0, kHost, 0)}),
              HasSubstr("copies[1]: place 0 of tier 2 is written twice"));
  TierCopy copy = Copy(kPage, kHost, 0, kDisk, 0);
  copy.origin.tokens.pop_back();
  EXPECT_THAT(Error({copy}), HasSubstr("to the disk with 63 tokens"));
  copy.n_tokens = 65;
  EXPECT_THAT(Error({copy}), HasSubstr("n_tokens is 65"));
}

}  // namespace
}  // namespace quartet::simulation
