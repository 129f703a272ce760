#include "shard_worker/memory/disk_tier.h"

#include <gmock/gmock.h>
#include <sys/types.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <vector>

#include "shard_worker/memory/checksum.h"

namespace quartet {
namespace {

using testing::HasSubstr;
using Bytes = std::vector<std::byte>;

Bytes RandomBytes(size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  Bytes bytes(count);
  for (std::byte& b : bytes) b = static_cast<std::byte>(random());
  return bytes;
}

DiskHeader SomeHeader() {
  DiskHeader header = {.object = CacheObject::kSnapshot,
                       .fingerprint = MakeDiskFingerprint("model, rank 0 of 2"),
                       .name = {.key_high = 1, .key_low = 2, .n_tokens = 512},
                       .origin = {.root_high = 3, .root_low = 4, .parent_high = 5, .parent_low = 6},
                       .bytes = 1000,
                       .checksum = 7};
  for (int i = 0; i < kUnitTokens; ++i) header.origin.tokens[i] = 100000 + i;
  return header;
}

TEST(DiskRecordTest, AHeaderComesBackAsItWas) {
  EXPECT_EQ(ParseDiskHeader(FormatDiskHeader(SomeHeader())).value(), SomeHeader());
}

TEST(DiskRecordTest, NothingButZerosIsNoRecord) {
  EXPECT_TRUE(absl::IsNotFound(ParseDiskHeader(Bytes(kDiskHeaderBytes)).status()));
}

TEST(DiskRecordTest, BrokenHeadersAreRefusedWithAReason) {
  const auto reason = [](Bytes bytes) {
    const auto parsed = ParseDiskHeader(bytes);
    EXPECT_TRUE(absl::IsDataLoss(parsed.status())) << parsed.status();
    return std::string(parsed.status().message());
  };
  const auto good = FormatDiskHeader(SomeHeader());
  EXPECT_THAT(reason(Bytes(good.begin(), good.end() - 1)), HasSubstr("has 4095 bytes"));
  EXPECT_THAT(reason(RandomBytes(kDiskHeaderBytes, 1)), HasSubstr("no record of a prefix cache"));
  Bytes other(good.begin(), good.end());
  other[8] = std::byte{2};
  EXPECT_THAT(reason(other), HasSubstr("format 2, expected 1"));
  DiskHeader header = SomeHeader();
  header.object = static_cast<CacheObject>(9);
  auto bytes = FormatDiskHeader(header);
  EXPECT_THAT(reason(Bytes(bytes.begin(), bytes.end())), HasSubstr("of kind 9"));
  header = SomeHeader();
  header.name.n_tokens = 300;
  bytes = FormatDiskHeader(header);
  EXPECT_THAT(reason(Bytes(bytes.begin(), bytes.end())), HasSubstr("ends after 300 tokens"));
}

// Every byte of the header counts, also the ones that nothing stands in.
TEST(DiskRecordTest, AnyChangedByteIsFound) {
  const auto good = FormatDiskHeader(SomeHeader());
  for (size_t at = 0; at < good.size(); ++at) {
    auto bytes = good;
    bytes[at] ^= std::byte{0x10};
    EXPECT_FALSE(ParseDiskHeader(bytes).ok()) << "byte " << at;
  }
}

TEST(DiskRecordTest, RandomBytesNeverParse) {
  std::mt19937 random(3);
  const auto good = FormatDiskHeader(SomeHeader());
  for (int i = 0; i < 2000; ++i) {
    auto bytes = good;
    const size_t begin = random() % bytes.size();
    const size_t count = 1 + random() % (bytes.size() - begin);
    for (size_t at = begin; at < begin + count; ++at) bytes[at] = static_cast<std::byte>(random());
    if (bytes == good) continue;
    EXPECT_FALSE(ParseDiskHeader(bytes).ok());
  }
}

class DiskTierTest : public ::testing::Test {
 protected:
  DiskTierTest() {
    std::string pattern = testing::TempDir() + "disk_tier_XXXXXX";
    folder_ = mkdtemp(pattern.data());
    options_ = {.folder = folder_ + "/cache",
                .name = "rank0",
                .fingerprint = MakeDiskFingerprint("model"),
                .pages = 4,
                .snapshots = 2,
                .page_bytes = 5000,
                .snapshot_bytes = 9000};
    Open();
  }
  ~DiskTierTest() override {
    tier_.reset();
    std::filesystem::remove_all(folder_);
  }

  void Open() {
    tier_.reset();
    auto opened = DiskTier::Open(options_);
    ASSERT_TRUE(opened.ok()) << opened.status();
    tier_ = *std::move(opened);
  }
  static UnitName Name(uint64_t key) { return {.key_high = key, .key_low = 1, .n_tokens = 256}; }
  bool Store(CacheObject object, int place, uint64_t key, const Bytes& bytes) {
    UnitOrigin origin;
    origin.parent_low = key - 1;
    return tier_->Store(object, place, Name(key), origin, bytes, Checksum64(bytes));
  }
  CopyOutcome Load(CacheObject object, int place, uint64_t key, Bytes& bytes) {
    bytes.assign(object == CacheObject::kPage ? 5000 : 9000, std::byte{0});
    uint64_t checksum = 0;
    const CopyOutcome outcome = tier_->Load(object, place, Name(key), bytes, checksum);
    EXPECT_TRUE(outcome != CopyOutcome::kDone || checksum == Checksum64(bytes));
    return outcome;
  }
  void Damage(const std::string& file, int64_t at) {
    tier_.reset();
    std::fstream stream(options_.folder + "/rank0" + file,
                        std::ios::in | std::ios::out | std::ios::binary);
    stream.seekg(at);
    const char was = static_cast<char>(stream.get());
    stream.seekp(at);
    stream.put(static_cast<char>(was ^ 4));
    ASSERT_TRUE(stream.good());
  }

  std::string folder_;
  DiskTierOptions options_;
  std::unique_ptr<DiskTier> tier_;
};

TEST_F(DiskTierTest, WhatWasStoredIsThereAfterARestart) {
  const Bytes page = RandomBytes(5000, 1), snapshot = RandomBytes(9000, 2);
  EXPECT_TRUE(Store(CacheObject::kPage, 3, 10, page));
  EXPECT_TRUE(Store(CacheObject::kSnapshot, 1, 11, snapshot));
  Bytes back;
  EXPECT_EQ(Load(CacheObject::kPage, 3, 10, back), CopyOutcome::kDone);
  EXPECT_EQ(back, page);
  Open();
  const std::vector<DiskEntry> entries = tier_->TakeEntries();
  ASSERT_EQ(entries.size(), 2u);
  EXPECT_EQ(entries[0].place, 3);
  EXPECT_EQ(entries[0].header.name, Name(10));
  EXPECT_EQ(entries[0].header.origin.parent_low, 9u);
  EXPECT_EQ(entries[1].place, 1);
  EXPECT_EQ(entries[1].header.object, CacheObject::kSnapshot);
  EXPECT_EQ(Load(CacheObject::kPage, 3, 10, back), CopyOutcome::kDone);
  EXPECT_EQ(back, page);
  EXPECT_EQ(Load(CacheObject::kSnapshot, 1, 11, back), CopyOutcome::kDone);
  EXPECT_EQ(back, snapshot);
}

TEST_F(DiskTierTest, APlaceHoldsWhatCameLast) {
  const Bytes last = RandomBytes(5000, 9);
  for (int i = 0; i < 9; ++i) Store(CacheObject::kPage, 0, 20 + i, RandomBytes(5000, i));
  Store(CacheObject::kPage, 0, 30, last);
  Bytes back;
  EXPECT_EQ(Load(CacheObject::kPage, 0, 28, back), CopyOutcome::kMissing);
  EXPECT_EQ(Load(CacheObject::kPage, 0, 30, back), CopyOutcome::kDone);
  EXPECT_EQ(back, last);
  EXPECT_EQ(Load(CacheObject::kPage, 1, 30, back), CopyOutcome::kMissing);
}

TEST_F(DiskTierTest, DamageIsFound) {
  Store(CacheObject::kPage, 0, 10, RandomBytes(5000, 1));
  Store(CacheObject::kPage, 1, 11, RandomBytes(5000, 2));
  const int64_t record = 4096 + 8192;
  Damage(".pages", 4096 + 4999);    // the last byte of place 0
  Damage(".pages", record + 1000);  // a token of place 1
  Open();
  EXPECT_EQ(tier_->TakeEntries().size(), 1u);
  EXPECT_EQ(tier_->stats().broken, 1u);
  Bytes back;
  EXPECT_EQ(Load(CacheObject::kPage, 0, 10, back), CopyOutcome::kChecksum);
  EXPECT_EQ(Load(CacheObject::kPage, 1, 11, back), CopyOutcome::kMissing);
  // It was cleared: once is enough.
  Open();
  EXPECT_EQ(tier_->stats().broken, 0u);
}

TEST_F(DiskTierTest, AnotherModelsRecordsAreNotRead) {
  Store(CacheObject::kPage, 0, 10, RandomBytes(5000, 1));
  options_.fingerprint = MakeDiskFingerprint("another model");
  Open();
  EXPECT_TRUE(tier_->TakeEntries().empty());
  EXPECT_EQ(tier_->stats().broken, 1u);
  Bytes back;
  EXPECT_EQ(Load(CacheObject::kPage, 0, 10, back), CopyOutcome::kMissing);
}

TEST_F(DiskTierTest, OtherSizesLeaveNothing) {
  for (int place = 0; place < 4; ++place) {
    Store(CacheObject::kPage, place, 10 + place, RandomBytes(5000, place));
  }
  options_.pages = 2;
  Open();
  EXPECT_EQ(tier_->TakeEntries().size(), 2u);
  options_.page_bytes = 6000;
  Open();
  EXPECT_TRUE(tier_->TakeEntries().empty());
}

TEST_F(DiskTierTest, AFullQueueDropsWhatComes) {
  options_.queue_bytes = 4000;
  Open();
  EXPECT_FALSE(Store(CacheObject::kPage, 0, 10, RandomBytes(5000, 1)));
  EXPECT_EQ(tier_->stats().dropped, 1u);
  Bytes back;
  EXPECT_EQ(Load(CacheObject::kPage, 0, 10, back), CopyOutcome::kMissing);
}

TEST_F(DiskTierTest, TwoProcessesDoNotShareAFolder) {
  const auto second = DiskTier::Open(options_);
  EXPECT_TRUE(absl::IsFailedPrecondition(second.status()));
  EXPECT_THAT(std::string(second.status().message()), HasSubstr("in use by another process"));
}

TEST_F(DiskTierTest, AFolderThatCannotBeMadeIsNamed) {
  options_.folder = "/proc/nothing/here";
  const auto opened = DiskTier::Open(options_);
  EXPECT_THAT(std::string(opened.status().message()), HasSubstr("/proc/nothing/here"));
}

}  // namespace
}  // namespace quartet
