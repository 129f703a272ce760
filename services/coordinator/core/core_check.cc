#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "services/coordinator/core/core.h"

// What must hold after every transition. Part of every step: it walks what runs, not what is
// cached.

namespace quartet::coordinator {
namespace {

std::string Num(uint64_t value) {
  return std::to_string(value);
}

}  // namespace

// Of a sequence that is admitted.
std::string Core::CheckPlace(const Sequence& sequence, PlacesSeen& seen) const {
  const std::string name = "sequence " + Num(sequence.id);
  if (seen.slots[sequence.slot]) return "slot " + Num(sequence.slot) + " has two owners";
  if (!slots_.IsTaken(sequence.slot)) return "slot " + Num(sequence.slot) + " is held and free";
  seen.slots[sequence.slot] = true;
  const size_t shared = std::min<size_t>(sequence.lease.shared_units(), sequence.pages.size());
  for (const auto pages :
       {std::span(sequence.duplicate_pages), std::span(sequence.pages).subspan(shared)}) {
    for (const uint32_t page : pages) {
      if (seen.pages[page]) return "page " + Num(page) + " has two owners";
      if (!pages_.IsTaken(page)) return "page " + Num(page) + " is held and free";
      seen.pages[page] = true;
      ++seen.n_pages;
    }
  }
  if (sequence.pages.size() < PagesFor(sequence.absorbed)) {
    return name + " has absorbed more tokens than its pages hold";
  }
  if (sequence.committed > sequence.absorbed ||
      sequence.absorbed - sequence.committed > 1 + config_.num_speculative_tokens) {
    return name + " has absorbed " + Num(sequence.absorbed) + " tokens, of which " +
           Num(sequence.committed) + " are in the live state";
  }
  return "";
}

std::string Core::CheckInvariants() const {
  PlacesSeen seen{.pages = std::vector<bool>(pages_.size()),
                  .slots = std::vector<bool>(slots_.size())};
  uint64_t queued = 0;
  for (const auto& [id, owned] : sequences_) {
    const Sequence& sequence = *owned;
    const std::string name = "sequence " + Num(id);
    if (sequence.state == SequenceState::kQueued) {
      ++queued;
      if (!queue_.waits(id)) return name + " waits and is not in the queue";
      if (!sequence.pages.empty()) return name + " waits and holds pages";
      continue;
    }
    if (std::find(running_.begin(), running_.end(), &sequence) == running_.end()) {
      return name + " is admitted but not in the running list";
    }
    if (std::string error = CheckPlace(sequence, seen); !error.empty()) {
      return error;
    }
    if (sequence.state == SequenceState::kDecode &&
        sequence.absorbed + 1 != sequence.tokens.size()) {
      return name + " decodes, but its last token is not the only one left to absorb";
    }
    if (queue_.IdlePlans(id).value_or(0) >= kProgressPlans) {
      return name + " is admitted and had no row in " + Num(*queue_.IdlePlans(id)) +
             " plans with rows of other prompts";
    }
  }
  for (const auto& closing : closing_) {
    if (std::string error = CheckPlace(*closing, seen); !error.empty()) {
      return error;
    }
  }
  if (std::string error = CheckCache(seen.n_pages); !error.empty()) return error;
  if (running_.size() + closing_.size() != slots_.used()) {
    return Num(slots_.used()) + " slots are taken by " + Num(running_.size()) +
           " sequences that run and " + Num(closing_.size()) + " that have ended";
  }
  if (queued != queue_.size()) {
    return Num(queued) + " sequences wait, the queue holds " + Num(queue_.size());
  }
  const uint64_t ended = counts_.finished + counts_.cancelled + counts_.failed + counts_.expired;
  if (running_.size() + queue_.size() + ended != counts_.accepted) {
    return "running + waiting + ended is not the number of accepted requests";
  }
  for (size_t i = 0; i < in_flight_.size(); ++i) {
    if (in_flight_[i].id + in_flight_.size() - i == next_step_) continue;
    return "step " + Num(in_flight_[i].id) + " is in flight, the next one is " + Num(next_step_);
  }
  return "";
}

std::string Core::CheckCache(uint32_t private_pages) const {
  const PrefixLedger cache = index_.has_value() ? index_->GetLedger() : PrefixLedger();
  if (tiers_.has_value()) private_pages += tiers_->device_pages_in_flight();
  if (private_pages + cache.pages != pages_.used()) {
    return Num(pages_.used()) + " pages are taken, sequences have " + Num(private_pages) +
           " and the cache " + Num(cache.pages);
  }
  size_t exports = 0, kept = 0;
  for (const InFlightStep& step : in_flight_) {
    for (const InFlightRow& row : step.rows) {
      exports += row.inner.size() + row.exported.has_value();
    }
  }
  for (const auto& [id, sequence] : sequences_) kept += sequence->answer_snapshots.size();
  for (const auto& sequence : closing_) {
    kept += sequence->answer_snapshots.size();
    exports += sequence->last_snapshot.has_value();
  }
  exports += comparisons_.size();
  if (tiers_.has_value()) exports += tiers_->device_snapshots_in_flight();
  if (exports + kept + cache.snapshots != snapshots_.used()) {
    return Num(snapshots_.used()) + " snapshots are taken, the step in flight has " + Num(exports) +
           ", sequences have " + Num(kept) + " and the cache " + Num(cache.snapshots);
  }
  return "";
}

std::string Core::CheckIndex() const {
  std::string error = index_.has_value() ? index_->CheckInvariants() : "";
  if (error.empty() && tiers_.has_value()) error = tiers_->CheckInvariants();
  return error;
}

}  // namespace quartet::coordinator
