#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "shard_worker/checkpoint/safetensors.h"

// libFuzzer entry: the bytes are a whole safetensors file. Whatever the parser accepts must lie
// inside it, in order, without gaps.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto entries = quartet::ParseSafetensorsHeader(
      absl::MakeConstSpan(reinterpret_cast<const std::byte*>(data), size), size, "fuzz");
  if (!entries.ok()) return 0;
  uint64_t header_bytes = 0;
  for (int i = 7; i >= 0; --i) header_bytes = header_bytes << 8 | data[i];
  uint64_t next = 0;
  for (const quartet::HeaderEntry& entry : *entries) {
    uint64_t bytes = static_cast<uint64_t>(quartet::DtypeSize(entry.dtype));
    for (int64_t dim : entry.shape) bytes *= static_cast<uint64_t>(dim);
    if (entry.begin != next || entry.end != next + bytes) std::abort();
    next = entry.end;
  }
  if (8 + header_bytes + next != size) std::abort();
  return 0;
}
