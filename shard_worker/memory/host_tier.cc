#include "shard_worker/memory/host_tier.h"

#include "shard_worker/memory/checksum.h"

namespace quartet {

absl::StatusOr<std::unique_ptr<HostTier>> HostTier::Create(const HostTierOptions& options,
                                                           ops::Backend& backend) {
  auto tier = std::unique_ptr<HostTier>(new HostTier(options, backend));
  const int64_t bytes =
      options.pages * options.page_bytes + options.snapshots * options.snapshot_bytes;
  absl::StatusOr<ops::Memory> memory =
      backend.AllocateHost(static_cast<size_t>(bytes), "prefix cache in host memory");
  if (!memory.ok()) return memory.status();
  tier->memory_ = *std::move(memory);
  return tier;
}

std::span<std::byte> HostTier::Bytes(CacheObject object, int place) const {
  const int64_t bytes = object_bytes(object);
  const int64_t begin =
      object == CacheObject::kPage ? 0 : int64_t{options_.pages} * options_.page_bytes;
  return {memory_.data() + begin + place * bytes, static_cast<size_t>(bytes)};
}

absl::Status HostTier::Store(CacheObject object, int place, const UnitName& name,
                             const std::byte* device) {
  const std::span<std::byte> bytes = Fill(object, place);
  if (absl::Status s = backend_.CopyOut(bytes.data(), device, bytes.size()); !s.ok()) return s;
  Filled(object, place, name, Checksum64(bytes));
  if (options_.corrupt_every > 0 && ++stored_ % options_.corrupt_every == 0) {
    bytes[bytes.size() / 2] ^= std::byte{1};
  }
  return absl::OkStatus();
}

absl::StatusOr<CopyOutcome> HostTier::Load(CacheObject object, int place, const UnitName& name,
                                           std::byte* device) const {
  const Stored stored = Find(object, place, name);
  if (stored.bytes.empty()) return CopyOutcome::kMissing;
  if (Checksum64(stored.bytes) != stored.checksum) return CopyOutcome::kChecksum;
  if (absl::Status s = backend_.CopyIn(device, stored.bytes.data(), stored.bytes.size()); !s.ok()) {
    return s;
  }
  return CopyOutcome::kDone;
}

HostTier::Stored HostTier::Find(CacheObject object, int place, const UnitName& name) const {
  const Label& label = LabelOf(object, place);
  if (!label.filled || label.name != name) return {};
  return {Bytes(object, place), label.checksum};
}

std::span<std::byte> HostTier::Fill(CacheObject object, int place) {
  LabelOf(object, place) = {};
  return Bytes(object, place);
}

void HostTier::Filled(CacheObject object, int place, const UnitName& name, uint64_t checksum) {
  LabelOf(object, place) = {.filled = true, .name = name, .checksum = checksum};
}

}  // namespace quartet
