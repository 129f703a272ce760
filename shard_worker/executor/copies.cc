#include "shard_worker/executor/copies.h"

#include <algorithm>
#include <string>
#include <tuple>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "shard_worker/checkpoint/model_config.h"

namespace quartet {
namespace {

CacheObject ObjectOf(const v1::Copy& copy) {
  return copy.kind() == v1::Copy::KIND_PAGE ? CacheObject::kPage : CacheObject::kSnapshot;
}

UnitName NameOf(const v1::Copy& copy) {
  return {.key_high = copy.name().key_high(),
          .key_low = copy.name().key_low(),
          .n_tokens = copy.name().n_tokens()};
}

bool IsTier(v1::Copy::Tier tier) {
  return tier == v1::Copy::TIER_DEVICE || tier == v1::Copy::TIER_HOST ||
         tier == v1::Copy::TIER_DISK;
}

// What a plan may only compare: snapshots of the device.
bool IsComparison(const v1::Copy& copy) {
  return copy.from() == v1::Copy::TIER_DEVICE && copy.to() == v1::Copy::TIER_DEVICE;
}

// Two states of one text, computed in other chunks on a device, differ by rounding: by less than
// this share of their norm. On the host they are equal.
constexpr double kRoundingShare = 0.05;

// Tiers are numbered from the top.
bool AreNeighbours(v1::Copy::Tier a, v1::Copy::Tier b) {
  return IsTier(a) && IsTier(b) && (a - b == 1 || b - a == 1);
}

static_assert(kUnitTokens == kTokensPerPage);

UnitOrigin OriginOf(const v1::Copy& copy) {
  UnitOrigin origin = {.root_high = copy.origin().root_high(),
                       .root_low = copy.origin().root_low(),
                       .parent_high = copy.origin().parent_high(),
                       .parent_low = copy.origin().parent_low()};
  std::ranges::copy(copy.origin().tokens(), origin.tokens.begin());
  return origin;
}

template <typename... Args>
absl::Status Bad(int index, const Args&... args) {
  return absl::InvalidArgumentError(absl::StrCat("copies[", index, "]: ", args...));
}

}  // namespace

uint32_t TierCopies::Places(v1::Copy::Tier tier, CacheObject object) const {
  if (tier == v1::Copy::TIER_DEVICE) {
    return object == CacheObject::kPage ? pools_.options().pages : pools_.options().snapshots;
  }
  if (tier == v1::Copy::TIER_DISK) {
    return tiers_.disk == nullptr ? 0 : tiers_.disk->places(object);
  }
  return tiers_.host == nullptr ? 0 : tiers_.host->places(object);
}

absl::Status TierCopies::Check(const v1::StepPlan& plan, const SequenceTable& table) const {
  if (plan.copies_size() == 0) return absl::OkStatus();
  absl::flat_hash_set<uint32_t> row_pages;
  absl::flat_hash_set<uint32_t> exported;
  for (const v1::Commit& commit : plan.commits()) {
    if (commit.export_at() != 0) exported.insert(commit.snapshot());
  }
  for (const v1::Row& row : plan.rows()) {
    row_pages.insert(row.new_pages().begin(), row.new_pages().end());
    for (const v1::Export& e : row.exports()) exported.insert(e.snapshot());
  }
  absl::flat_hash_set<std::tuple<int, int, uint32_t>> written;  // tier, kind, place
  for (int i = 0; i < plan.copies_size(); ++i) {
    const v1::Copy& copy = plan.copies(i);
    if (copy.kind() != v1::Copy::KIND_PAGE && copy.kind() != v1::Copy::KIND_SNAPSHOT) {
      return Bad(i, "kind ", static_cast<int>(copy.kind()),
                 ", expected KIND_PAGE or KIND_SNAPSHOT");
    }
    if (IsComparison(copy) && copy.kind() != v1::Copy::KIND_SNAPSHOT) {
      return Bad(i, "a page is to be compared; only snapshots can");
    }
    if (!IsComparison(copy) && !AreNeighbours(copy.from(), copy.to())) {
      return Bad(i, "from tier ", static_cast<int>(copy.from()), " to tier ",
                 static_cast<int>(copy.to()), ", expected two that stand next to each other");
    }
    const CacheObject object = ObjectOf(copy);
    const char* const kind = object == CacheObject::kPage ? "page " : "snapshot ";
    for (const auto& [tier, place] :
         {std::pair(copy.from(), copy.from_place()), std::pair(copy.to(), copy.to_place())}) {
      const uint32_t places = Places(tier, object);
      if (place < places) continue;
      return Bad(i, kind, place, " of ", v1::Copy::Tier_Name(tier), " does not exist; there are ",
                 places);
    }
    const uint32_t n_tokens = copy.name().n_tokens();
    if (n_tokens == 0 || n_tokens % kTokensPerPage != 0) {
      return Bad(i, "n_tokens is ", n_tokens, ", expected a multiple of ", kTokensPerPage);
    }
    if (IsComparison(copy)) continue;
    if (!written.emplace(copy.to(), copy.kind(), copy.to_place()).second) {
      return Bad(i, kind, copy.to_place(), " of ", v1::Copy::Tier_Name(copy.to()),
                 " is written twice");
    }
    if (copy.to() == v1::Copy::TIER_DISK && copy.origin().tokens_size() != kTokensPerPage) {
      return Bad(i, "to the disk with ", copy.origin().tokens_size(),
                 " tokens of the unit, expected ", kTokensPerPage);
    }
    if (copy.to() != v1::Copy::TIER_DEVICE) continue;
    uint64_t user = 0;
    if (object == CacheObject::kPage && table.PageUser(copy.to_place(), &user)) {
      return Bad(i, "page ", copy.to_place(), " is used by sequence ", user);
    }
    const auto& of_rows = object == CacheObject::kPage ? row_pages : exported;
    if (of_rows.contains(copy.to_place())) {
      return Bad(i, kind, copy.to_place(), " is written by a row or a commit of the same plan");
    }
  }
  return absl::OkStatus();
}

absl::Status TierCopies::Run(const v1::StepPlan& plan, v1::StepResult& result) {
  for (const v1::Copy& copy : plan.copies()) {
    const absl::StatusOr<CopyOutcome> outcome = Move(copy);
    if (!outcome.ok()) return outcome.status();
    v1::CopyResult& out = *result.add_copies();
    switch (*outcome) {
      case CopyOutcome::kDone:
        out.set_kind(v1::CopyResult::KIND_DONE);
        if (IsComparison(copy)) break;
        (copy.from() < copy.to() ? stats_.down_bytes : stats_.up_bytes) +=
            tiers_.host->object_bytes(ObjectOf(copy));
        break;
      case CopyOutcome::kMissing:
        out.set_kind(v1::CopyResult::KIND_MISSING);
        ++stats_.missing;
        break;
      case CopyOutcome::kChecksum:
        out.set_kind(v1::CopyResult::KIND_CHECKSUM);
        if (IsComparison(copy)) break;
        ++stats_.checksum_failures;
        break;
    }
  }
  return absl::OkStatus();
}

CopyStats TierCopies::stats() const {
  CopyStats stats = stats_;
  if (tiers_.disk != nullptr) stats.disk_writes_failed = tiers_.disk->stats().failed;
  return stats;
}

absl::StatusOr<CopyOutcome> TierCopies::Move(const v1::Copy& copy) {
  if (IsComparison(copy)) return Compare(copy);
  if (copy.to() == v1::Copy::TIER_DISK) return HostToDisk(copy);
  if (copy.from() == v1::Copy::TIER_DISK) return DiskToHost(copy);
  return copy.to() == v1::Copy::TIER_HOST ? DeviceToHost(copy) : HostToDevice(copy);
}

absl::StatusOr<CopyOutcome> TierCopies::DeviceToHost(const v1::Copy& copy) {
  const auto from = static_cast<int>(copy.from_place());
  const bool page = copy.kind() == v1::Copy::KIND_PAGE;
  // A state is stored under its own length only.
  if (!page && snapshot_tokens_[from] != copy.name().n_tokens()) return CopyOutcome::kMissing;
  if (absl::Status s =
          tiers_.host->Store(ObjectOf(copy), static_cast<int>(copy.to_place()), NameOf(copy),
                             page ? pools_.page(from) : pools_.snapshot(from));
      !s.ok()) {
    return s;
  }
  return CopyOutcome::kDone;
}

absl::StatusOr<CopyOutcome> TierCopies::HostToDevice(const v1::Copy& copy) {
  const auto to = static_cast<int>(copy.to_place());
  const bool page = copy.kind() == v1::Copy::KIND_PAGE;
  const absl::StatusOr<CopyOutcome> outcome =
      tiers_.host->Load(ObjectOf(copy), static_cast<int>(copy.from_place()), NameOf(copy),
                        page ? pools_.page(to) : pools_.snapshot(to));
  if (!page) {
    snapshot_tokens_[to] =
        outcome.ok() && *outcome == CopyOutcome::kDone ? copy.name().n_tokens() : 0;
  }
  return outcome;
}

absl::StatusOr<CopyOutcome> TierCopies::Compare(const v1::Copy& copy) {
  for (const uint32_t place : {copy.from_place(), copy.to_place()}) {
    if (snapshot_tokens_[place] != copy.name().n_tokens()) return CopyOutcome::kMissing;
  }
  const absl::StatusOr<double> distance =
      pools_.Distance(static_cast<int>(copy.from_place()), static_cast<int>(copy.to_place()));
  if (!distance.ok()) return distance.status();
  // Not-a-number is far from everything.
  return *distance <= (pools_.on_host() ? 0 : kRoundingShare) ? CopyOutcome::kDone
                                                              : CopyOutcome::kChecksum;
}

CopyOutcome TierCopies::HostToDisk(const v1::Copy& copy) {
  const HostTier::Stored stored =
      tiers_.host->Find(ObjectOf(copy), static_cast<int>(copy.from_place()), NameOf(copy));
  // The checksum goes with the bytes; whoever reads them compares.
  const bool queued =
      !stored.bytes.empty() &&
      tiers_.disk->Store(ObjectOf(copy), static_cast<int>(copy.to_place()), NameOf(copy),
                         OriginOf(copy), stored.bytes, stored.checksum);
  return queued ? CopyOutcome::kDone : CopyOutcome::kMissing;
}

CopyOutcome TierCopies::DiskToHost(const v1::Copy& copy) {
  const auto to = static_cast<int>(copy.to_place());
  uint64_t checksum = 0;
  const CopyOutcome outcome =
      tiers_.disk->Load(ObjectOf(copy), static_cast<int>(copy.from_place()), NameOf(copy),
                        tiers_.host->Fill(ObjectOf(copy), to), checksum);
  if (outcome == CopyOutcome::kDone)
    tiers_.host->Filled(ObjectOf(copy), to, NameOf(copy), checksum);
  return outcome;
}

}  // namespace quartet
