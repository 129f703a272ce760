#include "shard_worker/executor/rank_tiers.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "services/common/log.h"
#include "shard_worker/model/status_macros.h"

namespace quartet {
namespace {

// In one message: about half a megabyte.
constexpr int kInventoryEntries = 400;

double Mib(int64_t bytes) {
  return static_cast<double>(bytes) / (1 << 20);
}

v1::CacheEntry ToProto(const DiskEntry& entry) {
  const DiskHeader& header = entry.header;
  v1::CacheEntry out;
  out.set_kind(header.object == CacheObject::kPage ? v1::Copy::KIND_PAGE : v1::Copy::KIND_SNAPSHOT);
  out.set_place(static_cast<uint32_t>(entry.place));
  out.mutable_name()->set_key_high(header.name.key_high);
  out.mutable_name()->set_key_low(header.name.key_low);
  out.mutable_name()->set_n_tokens(header.name.n_tokens);
  out.mutable_origin()->set_root_high(header.origin.root_high);
  out.mutable_origin()->set_root_low(header.origin.root_low);
  out.mutable_origin()->set_parent_high(header.origin.parent_high);
  out.mutable_origin()->set_parent_low(header.origin.parent_low);
  out.mutable_origin()->mutable_tokens()->Add(header.origin.tokens.begin(),
                                              header.origin.tokens.end());
  return out;
}

}  // namespace

absl::StatusOr<RankTiers> OpenRankTiers(const RankTierOptions& options, const v1::Welcome& welcome,
                                        const Pools& pools, ops::Backend& backend) {
  RankTiers tiers;
  const v1::PoolSizes& sizes = welcome.pools();
  if (sizes.host_pages() == 0) return tiers;
  const HostTierOptions host = {.pages = static_cast<int>(sizes.host_pages()),
                                .snapshots = static_cast<int>(sizes.host_snapshots()),
                                .page_bytes = pools.page_bytes(),
                                .snapshot_bytes = pools.snapshot_bytes(),
                                .corrupt_every = options.corrupt_copies};
  QUARTET_ASSIGN(tiers.host, HostTier::Create(host, backend));
  LogInfo(absl::StrFormat(
      "cached prefixes in host memory: %d pages, %d snapshots, %.1f MiB", host.pages,
      host.snapshots, Mib(host.pages * host.page_bytes + host.snapshots * host.snapshot_bytes)));
  if (host.corrupt_every > 0) {
    LogWarning(absl::StrCat("--corrupt-copies: one object of ", host.corrupt_every,
                            " that move to host memory is damaged, for tests"));
  }
  if (sizes.disk_pages() == 0) return tiers;
  const DiskTierOptions disk = {
      .folder = options.disk_folder,
      .name = absl::StrCat("rank", welcome.rank(), "of", welcome.tensor_parallel_size()),
      .fingerprint = MakeDiskFingerprint(options.numerics),
      .pages = static_cast<int>(sizes.disk_pages()),
      .snapshots = static_cast<int>(sizes.disk_snapshots()),
      .page_bytes = host.page_bytes,
      .snapshot_bytes = host.snapshot_bytes};
  absl::StatusOr<std::unique_ptr<DiskTier>> opened = DiskTier::Open(disk);
  if (!opened.ok()) {
    return absl::Status(opened.status().code(),
                        absl::StrCat("--disk-cache-dir: ", opened.status().message()));
  }
  tiers.disk = *std::move(opened);
  LogInfo(absl::StrCat("cached prefixes on disk: room for ", disk.pages, " pages and ",
                       disk.snapshots, " snapshots; ", tiers.disk->stats().broken,
                       " records were broken or of another model and are cleared"));
  return tiers;
}

std::vector<v1::FromWorker> TakeInventory(RankTiers& tiers) {
  std::vector<v1::FromWorker> messages;
  if (tiers.disk == nullptr) return messages;
  for (const DiskEntry& entry : tiers.disk->TakeEntries()) {
    if (messages.empty() || messages.back().inventory().entries_size() == kInventoryEntries) {
      messages.emplace_back();
    }
    *messages.back().mutable_inventory()->add_entries() = ToProto(entry);
  }
  return messages;
}

}  // namespace quartet
