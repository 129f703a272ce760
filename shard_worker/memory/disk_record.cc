#include "shard_worker/memory/disk_record.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <type_traits>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "shard_worker/memory/checksum.h"

namespace quartet {
namespace {

static_assert(std::endian::native == std::endian::little, "records are written as they lie");

constexpr uint64_t kMagic = 0x3130726569747471;  // "qttier01"

// Goes through the fields of a record in their order, one way or the other.
template <typename Byte>
class Cursor {
 public:
  explicit Cursor(Byte* at) : at_(at) {}

  template <typename T>
  void Field(T& value) {
    if constexpr (std::is_const_v<Byte>) {
      std::memcpy(&value, at_, sizeof(T));
    } else {
      std::memcpy(at_, &value, sizeof(T));
    }
    at_ += sizeof(T);
  }
  Byte* at() const { return at_; }

 private:
  Byte* at_;
};

struct Fields {
  uint64_t magic = kMagic;
  uint32_t format = kDiskFormat;
  uint32_t object = 0;
  DiskHeader header;
};

template <typename Byte>
Byte* Visit(Byte* bytes, Fields& fields) {
  Cursor<Byte> cursor(bytes);
  DiskHeader& header = fields.header;
  cursor.Field(fields.magic);
  cursor.Field(fields.format);
  cursor.Field(fields.object);
  cursor.Field(header.fingerprint.high);
  cursor.Field(header.fingerprint.low);
  cursor.Field(header.bytes);
  cursor.Field(header.checksum);
  cursor.Field(header.name.key_high);
  cursor.Field(header.name.key_low);
  cursor.Field(header.origin.root_high);
  cursor.Field(header.origin.root_low);
  cursor.Field(header.origin.parent_high);
  cursor.Field(header.origin.parent_low);
  cursor.Field(header.origin.tokens);
  cursor.Field(header.name.n_tokens);
  return cursor.at();
}

// Over everything before it; stands at the end of the header.
constexpr size_t kChecked = kDiskHeaderBytes - sizeof(uint64_t);

}  // namespace

DiskFingerprint MakeDiskFingerprint(const std::string& description) {
  const auto sum = [](const std::string& text) {
    return Checksum64(std::as_bytes(std::span<const char>(text.data(), text.size())));
  };
  return {sum(absl::StrCat("high ", description)), sum(absl::StrCat("low ", description))};
}

std::array<std::byte, kDiskHeaderBytes> FormatDiskHeader(const DiskHeader& header) {
  std::array<std::byte, kDiskHeaderBytes> bytes = {};
  Fields fields;
  fields.object = static_cast<uint32_t>(header.object);
  fields.header = header;
  Visit(bytes.data(), fields);
  const uint64_t checksum = Checksum64(std::span(bytes).first(kChecked));
  std::memcpy(bytes.data() + kChecked, &checksum, sizeof(checksum));
  return bytes;
}

absl::StatusOr<DiskHeader> ParseDiskHeader(std::span<const std::byte> bytes) {
  if (bytes.size() < kDiskHeaderBytes) {
    return absl::DataLossError(absl::StrCat("the record has ", bytes.size(),
                                            " bytes, a header alone has ", kDiskHeaderBytes));
  }
  bytes = bytes.first(kDiskHeaderBytes);
  if (std::ranges::all_of(bytes, [](std::byte b) { return b == std::byte{0}; })) {
    return absl::NotFoundError("no record");
  }
  uint64_t checksum = 0;
  std::memcpy(&checksum, bytes.data() + kChecked, sizeof(checksum));
  Fields fields;
  Visit(bytes.data(), fields);
  if (fields.magic != kMagic) return absl::DataLossError("this is no record of a prefix cache");
  if (fields.format != kDiskFormat) {
    return absl::DataLossError(
        absl::StrCat("the record has format ", fields.format, ", expected ", kDiskFormat));
  }
  if (Checksum64(bytes.first(kChecked)) != checksum) {
    return absl::DataLossError("the record's header is damaged: its checksum differs");
  }
  if (fields.object > static_cast<uint32_t>(CacheObject::kSnapshot)) {
    return absl::DataLossError(absl::StrCat("the record is of kind ", fields.object,
                                            ", expected 0 (page) or 1 (snapshot)"));
  }
  const uint32_t n_tokens = fields.header.name.n_tokens;
  if (n_tokens == 0 || n_tokens % kUnitTokens != 0) {
    return absl::DataLossError(absl::StrCat("the record's unit ends after ", n_tokens,
                                            " tokens, expected a multiple of ", kUnitTokens));
  }
  fields.header.object = static_cast<CacheObject>(fields.object);
  return fields.header;
}

}  // namespace quartet
