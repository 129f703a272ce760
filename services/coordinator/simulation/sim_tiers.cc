#include "services/coordinator/simulation/sim_tiers.h"

#include <algorithm>
#include <utility>

namespace quartet::simulation {

using coordinator::CacheEntry;

const char* Name(TierFault fault) {
  switch (fault) {
    case TierFault::kNone:
      return "none";
    case TierFault::kSlow:
      return "slow";
    case TierFault::kDamaged:
      return "damaged";
    case TierFault::kRefused:
      return "refused";
    case TierFault::kLostWrite:
      return "lost write";
  }
  return "";
}

bool SimDisk::Write(TierCopy::Kind kind, uint32_t place, StoredObject record, TimeUs now) {
  Settle(now);
  if (queue_.size() == size_t{kQueue}) return false;
  const TimeUs begin = queue_.empty() ? now : queue_.back().due;
  queue_.push_back({kind, place, std::move(record), begin + write_us_});
  return true;
}

StoredObject& SimDisk::Read(TierCopy::Kind kind, uint32_t place, TimeUs& ready) {
  const auto last = std::find_if(queue_.rbegin(), queue_.rend(), [&](const Waiting& waiting) {
    return waiting.kind == kind && waiting.place == place;
  });
  if (last != queue_.rend()) {
    ready = std::max(ready, last->due);
    Settle(last->due);
  }
  return records_.Of(kind)[place];
}

void SimDisk::Settle(TimeUs until) {
  while (!queue_.empty() && queue_.front().due <= until) {
    Waiting& front = queue_.front();
    records_.Of(front.kind)[front.place] = std::move(front.record);
    queue_.pop_front();
  }
}

// Nothing is synced, so the record that was being written has lost its header, or its data.
void SimDisk::Crash(TimeUs now) {
  Settle(now);
  if (!queue_.empty() && write_us_ > 0 && queue_.front().due - write_us_ <= now) {
    Waiting& front = queue_.front();
    StoredObject& cut = records_.Of(front.kind)[front.place];
    cut = {};
    if (front.record.key.high % 2 == 0) {
      cut = std::move(front.record);
      cut.data = 0;
    }
  }
  queue_.clear();
}

std::vector<CacheEntry> SimDisk::Inventory() const {
  std::vector<CacheEntry> entries;
  for (const TierCopy::Kind kind : {TierCopy::Kind::kPage, TierCopy::Kind::kSnapshot}) {
    const std::vector<StoredObject>& records = records_.Of(kind);
    for (uint32_t place = 0; place < records.size(); ++place) {
      const StoredObject& record = records[place];
      if (record.n_tokens == 0) continue;
      entries.push_back({.kind = kind,
                         .place = place,
                         .key = record.key,
                         .n_tokens = record.n_tokens,
                         .origin = record.origin});
    }
  }
  return entries;
}

}  // namespace quartet::simulation
