#ifndef QUARTET_SHARD_WORKER_MEMORY_DISK_RECORD_H_
#define QUARTET_SHARD_WORKER_MEMORY_DISK_RECORD_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "shard_worker/memory/host_tier.h"

// The format of a cached page or snapshot on disk: a header of kDiskHeaderBytes, then the bytes as
// they stand in the device's pools. Numbers are little-endian. Whoever changes the format raises
// kDiskFormat; records of another format are not read.

namespace quartet {

inline constexpr uint32_t kDiskFormat = 1;
inline constexpr size_t kDiskHeaderBytes = 4096;  // a sector or a page of the page cache, at least
inline constexpr int kUnitTokens = 256;

// What the bytes depend on besides the tokens: model, numerics, which rank of how many. Records of
// another one are not this rank's.
struct DiskFingerprint {
  uint64_t high = 0;
  uint64_t low = 0;

  friend bool operator==(const DiskFingerprint&, const DiskFingerprint&) = default;
};
DiskFingerprint MakeDiskFingerprint(const std::string& description);

// What it takes to enter a unit into the cache's index again.
struct UnitOrigin {
  uint64_t root_high = 0;
  uint64_t root_low = 0;
  uint64_t parent_high = 0;
  uint64_t parent_low = 0;
  std::array<int32_t, kUnitTokens> tokens = {};

  friend bool operator==(const UnitOrigin&, const UnitOrigin&) = default;
};

struct DiskHeader {
  CacheObject object = CacheObject::kPage;
  DiskFingerprint fingerprint;
  UnitName name;
  UnitOrigin origin;
  uint64_t bytes = 0;     // behind the header
  uint64_t checksum = 0;  // Checksum64 of them

  friend bool operator==(const DiskHeader&, const DiskHeader&) = default;
};

std::array<std::byte, kDiskHeaderBytes> FormatDiskHeader(const DiskHeader& header);

// NOT_FOUND: there is no record, only zeros. DATA_LOSS: the message says what is wrong with it.
absl::StatusOr<DiskHeader> ParseDiskHeader(std::span<const std::byte> bytes);

}  // namespace quartet

#endif  // QUARTET_SHARD_WORKER_MEMORY_DISK_RECORD_H_
