#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>

#include "shard_worker/memory/disk_record.h"

// libFuzzer entry: the bytes are the header of a record on disk. Whatever the parser accepts must
// be the same header when it is written again.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  const auto header = quartet::ParseDiskHeader(bytes);
  if (!header.ok()) return 0;
  const auto again = quartet::FormatDiskHeader(*header);
  if (quartet::ParseDiskHeader(again).value() != *header) std::abort();
  return 0;
}
