#include "services/coordinator/membership/pool_plan.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace quartet::coordinator {
namespace {

std::string Mib(uint64_t bytes) {
  return absl::StrFormat("%.1f MiB", static_cast<double>(bytes) / (1 << 20));
}

uint64_t FixedBytes(const MemoryOffer& offer, const PoolLimits& limits) {
  return offer.weight_bytes +
         offer.activation_bytes_per_token * uint64_t{limits.max_num_batched_tokens} +
         offer.slot_bytes * uint64_t{limits.max_num_seqs} +
         (limits.prefix_caching ? offer.snapshot_bytes * kMinSnapshots : 0);
}

uint64_t PagesThatFit(const MemoryOffer& offer, const PoolLimits& limits) {
  const uint64_t fixed = FixedBytes(offer, limits);
  return fixed >= offer.budget_bytes ? 0 : (offer.budget_bytes - fixed) / offer.page_bytes;
}

// Beside the pages of the plan.
uint32_t SnapshotsThatFit(const MemoryOffer& offer, const PoolPlan& plan,
                          const PoolLimits& limits) {
  if (!limits.prefix_caching || offer.snapshot_bytes == 0) return 0;
  const uint64_t rest =
      offer.budget_bytes - FixedBytes(offer, limits) - offer.page_bytes * plan.pages;
  return static_cast<uint32_t>(
      std::min<uint64_t>({plan.pages, uint64_t{kMaxSnapshotsPerSequence} * limits.max_num_seqs,
                          kMinSnapshots + rest / offer.snapshot_bytes}));
}

uint64_t TierBytes(const TierPlaces& tier, const MemoryOffer& offer) {
  return tier.pages * offer.page_bytes + tier.snapshots * offer.snapshot_bytes;
}

std::string Figures(const MemoryOffer& offer, const PoolLimits& limits) {
  return absl::StrCat(
      "budget ", Mib(offer.budget_bytes), " per rank; weights ", Mib(offer.weight_bytes),
      ", activations ",
      Mib(offer.activation_bytes_per_token * uint64_t{limits.max_num_batched_tokens}), " (",
      limits.max_num_batched_tokens, " tokens), live states ",
      Mib(offer.slot_bytes * uint64_t{limits.max_num_seqs}), " (", limits.max_num_seqs,
      " sequences), ", Mib(offer.page_bytes), " for each page of ", offer.page_tokens, " tokens");
}

absl::Status OfferError(const MemoryOffer& offer) {
  if (offer.page_tokens == 0 || offer.page_bytes == 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a memory offer for tensor-parallel size ", offer.tensor_parallel_size, " has pages of ",
        offer.page_tokens, " tokens and ", offer.page_bytes, " bytes; both must be above 0"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<uint32_t> ResolveMaxModelLen(const PoolLimits& limits) {
  if (limits.max_position_embeddings == 0) {
    return absl::InvalidArgumentError("the worker's model says max_position_embeddings = 0");
  }
  if (limits.max_model_len > limits.max_position_embeddings) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--max-model-len ", limits.max_model_len, " is more than the model's ",
        limits.max_position_embeddings, " positions (max_position_embeddings in config.json)"));
  }
  if (limits.max_model_len != 0) return limits.max_model_len;
  return std::min(kDefaultMaxModelLen, limits.max_position_embeddings);
}

absl::StatusOr<PoolPlan> PlanPools(const std::vector<MemoryOffer>& offers,
                                   const PoolLimits& limits) {
  if (offers.empty()) return absl::InvalidArgumentError("no memory offers");
  absl::StatusOr<uint32_t> max_model_len = ResolveMaxModelLen(limits);
  if (!max_model_len.ok()) return max_model_len.status();

  PoolPlan plan;
  plan.slots = limits.max_num_seqs;
  plan.max_model_len = *max_model_len;
  plan.page_tokens = offers.front().page_tokens;
  plan.page_bytes = offers.front().page_bytes;
  plan.snapshot_bytes = offers.front().snapshot_bytes;
  const MemoryOffer* tightest = &offers.front();
  uint64_t pages = UINT64_MAX;
  for (const MemoryOffer& offer : offers) {
    if (absl::Status error = OfferError(offer); !error.ok()) return error;
    if (offer.page_tokens != plan.page_tokens) {
      return absl::InvalidArgumentError(absl::StrCat(
          "ranks differ in the tokens of a page: ", plan.page_tokens, " and ", offer.page_tokens));
    }
    const uint64_t fit = PagesThatFit(offer, limits);
    if (fit < pages) {
      pages = fit;
      tightest = &offer;
    }
  }
  const uint64_t context_pages = (plan.max_model_len + plan.page_tokens - 1) / plan.page_tokens;
  if (pages < context_pages) {
    const uint64_t largest = pages * plan.page_tokens;
    std::string advice = largest > 1
                             ? absl::StrCat("the largest --max-model-len that fits is ", largest)
                             : std::string(
                                   "no context fits; raise --memory-gib or lower --max-num-seqs or "
                                   "--max-num-batched-tokens");
    return absl::ResourceExhaustedError(
        absl::StrCat("one context of ", plan.max_model_len, " tokens needs ", context_pages,
                     " pages (", Mib(context_pages * tightest->page_bytes), "), but only ", pages,
                     " fit: ", Figures(*tightest, limits), "; ", advice));
  }
  plan.pages = static_cast<uint32_t>(std::min(pages, context_pages * limits.max_num_seqs));
  plan.snapshots = UINT32_MAX;
  for (const MemoryOffer& offer : offers) {
    plan.snapshots = std::min(plan.snapshots, SnapshotsThatFit(offer, plan, limits));
  }
  uint64_t host_bytes = UINT64_MAX;
  uint64_t disk_bytes = UINT64_MAX;
  for (const MemoryOffer& offer : offers) {
    host_bytes = std::min(host_bytes, offer.host_cache_bytes);
    disk_bytes = std::min(disk_bytes, offer.disk_cache_bytes);
  }
  if (plan.snapshots > 0) plan.host = PlanTier(host_bytes, plan.page_bytes, plan.snapshot_bytes);
  if (plan.host.pages > 0) {
    plan.disk = PlanTier(disk_bytes, plan.page_bytes + kDiskRecordBytes,
                         plan.snapshot_bytes + kDiskRecordBytes);
  }
  return plan;
}

TierPlaces PlanTier(uint64_t bytes, uint64_t page_bytes, uint64_t snapshot_bytes) {
  const uint64_t snapshots = std::min<uint64_t>(
      {bytes / 2 / snapshot_bytes, bytes / (page_bytes + snapshot_bytes), kMaxTierPages});
  if (snapshots == 0) return {};
  const uint64_t pages = (bytes - snapshots * snapshot_bytes) / page_bytes;
  return {.pages = static_cast<uint32_t>(std::min<uint64_t>(pages, kMaxTierPages)),
          .snapshots = static_cast<uint32_t>(snapshots)};
}

absl::Status FitsPools(const MemoryOffer& offer, const PoolPlan& plan, const PoolLimits& limits) {
  if (absl::Status error = OfferError(offer); !error.ok()) return error;
  const uint64_t pages = PagesThatFit(offer, limits);
  const bool pages_fit = offer.page_tokens == plan.page_tokens && pages >= plan.pages;
  const uint32_t snapshots = pages_fit ? SnapshotsThatFit(offer, plan, limits) : 0;
  if (pages_fit && snapshots >= plan.snapshots) {
    if (plan.disk.pages > 0 && offer.disk_cache_bytes == 0) {
      return absl::ResourceExhaustedError(
          "the engine keeps cached prefixes on disk, this worker does not (--disk-cache-gib)");
    }
    if (TierBytes(plan.host, offer) <= offer.host_cache_bytes) return absl::OkStatus();
    return absl::ResourceExhaustedError(
        absl::StrCat("the engine keeps ", Mib(TierBytes(plan.host, offer)),
                     " of cached prefixes in the host memory of each rank, this worker offers ",
                     Mib(offer.host_cache_bytes), " (--host-cache-gib)"));
  }
  return absl::ResourceExhaustedError(
      absl::StrCat("the engine's pools are agreed at ", plan.pages, " pages of ", plan.page_tokens,
                   " tokens and ", plan.snapshots, " snapshots; this worker has room for ", pages,
                   " pages", pages_fit ? absl::StrCat(" and ", snapshots, " snapshots") : "", ": ",
                   Figures(offer, limits)));
}

}  // namespace quartet::coordinator
