#include "shard_worker/memory/host_tier.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "kernels/cpu/cpu_backend.h"
#include "shard_worker/memory/checksum.h"

namespace quartet {
namespace {

using Bytes = std::vector<std::byte>;

Bytes RandomBytes(size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  Bytes bytes(count);
  for (std::byte& b : bytes) b = static_cast<std::byte>(random());
  return bytes;
}

TEST(ChecksumTest, EveryChangedBitShows) {
  for (const size_t count : {1, 7, 8, 31, 32, 33, 100}) {
    Bytes bytes = RandomBytes(count, 1);
    const uint64_t whole = Checksum64(bytes);
    for (size_t bit = 0; bit < 8 * count; ++bit) {
      bytes[bit / 8] ^= std::byte{1} << (bit % 8);
      EXPECT_NE(Checksum64(bytes), whole) << count << " bytes, bit " << bit;
      bytes[bit / 8] ^= std::byte{1} << (bit % 8);
    }
    EXPECT_EQ(Checksum64(bytes), whole);
  }
}

TEST(ChecksumTest, KnowsOrderAndLength) {
  Bytes bytes(64, std::byte{0});
  const uint64_t zeros = Checksum64(bytes);
  bytes.resize(63);
  EXPECT_NE(Checksum64(bytes), zeros);
  Bytes two = RandomBytes(64, 2);
  const uint64_t before = Checksum64(two);
  std::swap_ranges(two.begin(), two.begin() + 8, two.begin() + 32);
  EXPECT_NE(Checksum64(two), before);
}

class HostTierTest : public ::testing::Test {
 protected:
  static constexpr HostTierOptions kOptions = {
      .pages = 3, .snapshots = 2, .page_bytes = 192, .snapshot_bytes = 320};

  HostTierTest() { Make(kOptions); }
  void Make(const HostTierOptions& options) {
    tier_ = HostTier::Create(options, *backend_).value();
  }
  void Store(CacheObject object, int place, const UnitName& name, const Bytes& bytes) {
    ASSERT_TRUE(tier_->Store(object, place, name, bytes.data()).ok());
  }
  CopyOutcome Load(CacheObject object, int place, const UnitName& name, Bytes& bytes) {
    return tier_->Load(object, place, name, bytes.data()).value();
  }

  const std::unique_ptr<ops::Backend> backend_ = cpu::MakeCpuBackend({});
  std::unique_ptr<HostTier> tier_;
};

TEST_F(HostTierTest, WhatCameGoesBack) {
  std::vector<Bytes> stored;
  for (int place = 0; place < 5; ++place) {
    const bool page = place < 3;
    stored.push_back(RandomBytes(page ? 192 : 320, place));
    Store(page ? CacheObject::kPage : CacheObject::kSnapshot, page ? place : place - 3,
          {1, static_cast<uint64_t>(place), 256}, stored.back());
  }
  for (int place = 0; place < 5; ++place) {
    const bool page = place < 3;
    Bytes back(page ? 192 : 320);
    EXPECT_EQ(Load(page ? CacheObject::kPage : CacheObject::kSnapshot, page ? place : place - 3,
                   {1, static_cast<uint64_t>(place), 256}, back),
              CopyOutcome::kDone);
    EXPECT_EQ(back, stored[place]);
  }
}

TEST_F(HostTierTest, OnlyUnderItsOwnName) {
  Store(CacheObject::kPage, 1, {7, 8, 512}, RandomBytes(192, 1));
  const Bytes before = RandomBytes(192, 2);
  Bytes back = before;
  for (const UnitName& other : {UnitName{6, 8, 512}, {7, 9, 512}, {7, 8, 256}}) {
    EXPECT_EQ(Load(CacheObject::kPage, 1, other, back), CopyOutcome::kMissing);
  }
  EXPECT_EQ(Load(CacheObject::kPage, 0, {7, 8, 512}, back), CopyOutcome::kMissing);
  EXPECT_EQ(Load(CacheObject::kPage, 2, {0, 0, 0}, back), CopyOutcome::kMissing);
  EXPECT_EQ(back, before);
  Store(CacheObject::kPage, 1, {9, 9, 256}, RandomBytes(192, 3));
  EXPECT_EQ(Load(CacheObject::kPage, 1, {7, 8, 512}, back), CopyOutcome::kMissing);
}

TEST_F(HostTierTest, DamageIsFoundAndNothingOfItGoesBack) {
  HostTierOptions options = kOptions;
  options.corrupt_every = 2;
  Make(options);
  const Bytes first = RandomBytes(192, 1);
  Store(CacheObject::kPage, 0, {1, 1, 256}, first);
  Store(CacheObject::kSnapshot, 0, {1, 1, 256}, RandomBytes(320, 2));
  Bytes page(192);
  EXPECT_EQ(Load(CacheObject::kPage, 0, {1, 1, 256}, page), CopyOutcome::kDone);
  EXPECT_EQ(page, first);
  const Bytes before = RandomBytes(320, 3);
  Bytes snapshot = before;
  EXPECT_EQ(Load(CacheObject::kSnapshot, 0, {1, 1, 256}, snapshot), CopyOutcome::kChecksum);
  EXPECT_EQ(snapshot, before);
}

}  // namespace
}  // namespace quartet
