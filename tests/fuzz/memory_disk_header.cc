#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>

#include "shard_worker/memory/checksum.h"
#include "shard_worker/memory/disk_record.h"

namespace {

// Whatever the parser accepts must be the same header when it is written again.
void Parse(std::span<const std::byte> bytes) {
  const auto header = quartet::ParseDiskHeader(bytes);
  if (!header.ok()) return;
  const auto again = quartet::FormatDiskHeader(*header);
  if (quartet::ParseDiskHeader(again).value() != *header) std::abort();
}

}  // namespace

// libFuzzer entry: the bytes are the header of a record on disk, as they are and with the beginning
// and the checksum that a header has, which no fuzzer guesses.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  Parse(bytes);
  std::array<std::byte, quartet::kDiskHeaderBytes> whole = quartet::FormatDiskHeader({});
  constexpr size_t kBegin = sizeof(uint64_t) + sizeof(uint32_t);  // magic number and format
  constexpr size_t kChecked = whole.size() - sizeof(uint64_t);
  std::copy_n(bytes.begin(), std::min(bytes.size(), kChecked - kBegin), whole.begin() + kBegin);
  const uint64_t checksum = quartet::Checksum64(std::span(whole).first(kChecked));
  std::memcpy(whole.data() + kChecked, &checksum, sizeof(checksum));
  Parse(whole);
  return 0;
}
