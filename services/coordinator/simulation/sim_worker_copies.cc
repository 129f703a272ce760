#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/coordinator/simulation/sim_worker.h"

// How a simulated rank copies between its tiers; see shard_worker/executor/copies.h.

namespace quartet::simulation {

using coordinator::CacheTier;
using coordinator::CopyOutcome;

namespace {

bool IsComparison(const TierCopy& copy) {
  return copy.kind == TierCopy::Kind::kSnapshot && copy.from == CacheTier::kDevice &&
         copy.to == CacheTier::kDevice;
}

}  // namespace

uint32_t SimWorker::Places(CacheTier tier, TierCopy::Kind kind) const {
  const bool page = kind == TierCopy::Kind::kPage;
  switch (tier) {
    case CacheTier::kDevice:
      return page ? config_.pages : config_.snapshots;
    case CacheTier::kHost:
      return page ? config_.host_pages : config_.host_snapshots;
    case CacheTier::kDisk:
      return page ? config_.disk_pages : config_.disk_snapshots;
    case CacheTier::kAbsent:
      break;
  }
  return 0;
}

std::string SimWorker::CheckCopies(const std::vector<TierCopy>& copies) {
  for (size_t i = 0; i < copies.size(); ++i) {
    const TierCopy& copy = copies[i];
    const auto bad = [i](const auto&... parts) {
      return absl::StrCat("copies[", i, "]: ", parts...);
    };
    const int from = static_cast<int>(copy.from), to = static_cast<int>(copy.to);
    if (copy.from == CacheTier::kAbsent || copy.to == CacheTier::kAbsent ||
        (from - to != 1 && to - from != 1 && !IsComparison(copy))) {
      return bad("from tier ", from, " to tier ", to, ", which are no neighbours");
    }
    if (copy.from_place >= Places(copy.from, copy.kind) ||
        copy.to_place >= Places(copy.to, copy.kind)) {
      return bad("from place ", copy.from_place, " to place ", copy.to_place,
                 ", of which one does not exist");
    }
    if (copy.n_tokens == 0 || copy.n_tokens % config_.page_tokens != 0) {
      return bad("n_tokens is ", copy.n_tokens);
    }
    if (IsComparison(copy)) continue;
    if (!copied_to_.emplace(copy.to, copy.kind, copy.to_place).second) {
      return bad("place ", copy.to_place, " of tier ", to, " is written twice");
    }
    if (copy.to == CacheTier::kDisk && copy.origin.tokens.size() != config_.page_tokens) {
      return bad("to the disk with ", copy.origin.tokens.size(), " tokens of the unit");
    }
    if (copy.to == CacheTier::kDevice && copy.kind == TierCopy::Kind::kPage &&
        pages_[copy.to_place].users != 0) {
      return bad("page ", copy.to_place, " is used by a sequence");
    }
  }
  return "";
}

CopyOutcome SimWorker::Copy(const TierCopy& copy, TierFault fault, TimeUs now) {
  if (IsComparison(copy)) {
    const Snapshot& a = snapshots_[copy.from_place];
    const Snapshot& b = snapshots_[copy.to_place];
    return a.tokens == b.tokens && a.state == b.state ? CopyOutcome::kDone : CopyOutcome::kChecksum;
  }
  return copy.from < copy.to ? Down(copy, fault, now) : Up(copy, fault);
}

CopyOutcome SimWorker::Down(const TierCopy& copy, TierFault fault, TimeUs now) {
  const bool page = copy.kind == TierCopy::Kind::kPage;
  StoredObject object;
  if (copy.from == CacheTier::kHost) {
    object = host_.Of(copy.kind)[copy.from_place];
    // Its checksum goes with it; whoever reads it compares.
    if (!object.Is(copy)) return CopyOutcome::kMissing;
    object.origin = copy.origin;
  } else {
    // A state is stored under its own length only.
    if (!page && snapshots_[copy.from_place].tokens != copy.n_tokens) return CopyOutcome::kMissing;
    object.key = copy.key;
    object.n_tokens = copy.n_tokens;
    object.data = page ? PageEntries(copy.from_place) : snapshots_[copy.from_place].state;
    object.checksum = StoredObject::ChecksumOf(object.data);
  }
  if (fault == TierFault::kRefused) return CopyOutcome::kMissing;
  if (fault == TierFault::kDamaged) object.data ^= 1;
  if (copy.to == CacheTier::kHost) {
    host_.Of(copy.kind)[copy.to_place] = std::move(object);
    return CopyOutcome::kDone;
  }
  if (fault == TierFault::kLostWrite) return CopyOutcome::kDone;
  return disk_.Write(copy.kind, copy.to_place, std::move(object), now) ? CopyOutcome::kDone
                                                                       : CopyOutcome::kMissing;
}

CopyOutcome SimWorker::Compare(const StoredObject& object, const TierCopy& copy) const {
  if (!compares_checksums_) return CopyOutcome::kDone;
  if (!object.Is(copy)) return CopyOutcome::kMissing;
  return object.intact() ? CopyOutcome::kDone : CopyOutcome::kChecksum;
}

CopyOutcome SimWorker::Up(const TierCopy& copy, TierFault fault) {
  const bool from_host = copy.from == CacheTier::kHost;
  StoredObject& source = from_host ? host_.Of(copy.kind)[copy.from_place]
                                   : disk_.Read(copy.kind, copy.from_place, copies_ready_);
  if (fault == TierFault::kDamaged) source.data ^= 1;
  const CopyOutcome outcome =
      fault == TierFault::kRefused ? CopyOutcome::kMissing : Compare(source, copy);
  if (!from_host) {
    StoredObject& target = host_.Of(copy.kind)[copy.to_place];
    target = {};
    if (outcome == CopyOutcome::kDone) target = source;
    return outcome;
  }
  if (copy.kind == TierCopy::Kind::kSnapshot) {
    Snapshot& target = snapshots_[copy.to_place];
    target = {};
    if (outcome == CopyOutcome::kDone) target = {source.data, copy.n_tokens};
  } else if (outcome == CopyOutcome::kDone) {
    std::vector<uint64_t>& up_to = pages_[copy.to_place].up_to;
    up_to.assign(config_.page_tokens, 0);
    up_to.back() = source.data;
  }
  return outcome;
}

}  // namespace quartet::simulation
