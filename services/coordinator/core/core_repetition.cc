#include <algorithm>
#include <span>
#include <utility>

#include "services/coordinator/core/core.h"
#include "services/coordinator/core/repetition.h"

// A loop in an answer can come from the model, or from a state or page that a tier of the prefix
// cache brought back under the name of another (O6 of the cases that this follows: such a loop
// lasts exactly as long as the prefix is cached). Checksums find bytes that have changed, not bytes
// that were wrong from the start. So an answer that ends in a loop and began behind a cached prefix
// puts that prefix under suspicion: the next prompt that would begin behind it is computed from its
// start, and the state that it has there is compared with the cached one. If they differ, all that
// is cached is forgotten: nobody knows what else is wrong.

namespace quartet::coordinator {
namespace {

// An answer is looked at each time when it has grown by so many tokens.
constexpr uint32_t kLookEvery = 64;
// Prefixes under suspicion; the oldest is let off for a new one.
constexpr size_t kMaxSuspects = 64;

}  // namespace

// Its answer has grown by the last `grown` tokens.
void Core::LookForLoop(Sequence& sequence, uint32_t grown) {
  const uint32_t generated = sequence.generated();
  if (sequence.loops || generated / kLookEvery == (generated - grown) / kLookEvery) return;
  if (!EndsInLoop(std::span(sequence.tokens).subspan(sequence.prompt_tokens))) return;
  sequence.loops = true;
  ++counts_.repetitions_suspected;
  const uint32_t units = sequence.marks.cached_tokens / config_.page_tokens;
  if (!sequence.lease.active() || units == 0) return;
  if (suspects_.size() == kMaxSuspects) suspects_.pop_front();
  suspects_.push_back(sequence.request.unit_keys[units - 1]);
}

// Whether this sequence is to be computed from its start, although a part of it is cached, because
// that is under suspicion. Then it holds what it is to be compared with. `pages`: as MakeRoomFor.
// Where there is no room for both the suspect goes.
bool Core::BeginsAfresh(Sequence& sequence, uint64_t pages) {
  if (suspects_.empty() || !config_.snapshot_policy.branch) return false;
  const uint32_t cached_tokens = index_->Match(PathOf(sequence)).cached_tokens;
  const uint32_t units = cached_tokens / config_.page_tokens;
  const auto keys = std::span(sequence.request.unit_keys).first(units);
  const auto found = std::ranges::find_first_of(suspects_, keys);
  if (found == suspects_.end()) return false;
  const UnitKey suspect = *found;
  suspects_.erase(found);

  PrefixLease path = index_->Begin(sequence.request.cache_root);
  for (uint32_t unit = 0; unit < units; ++unit) {
    const auto tokens =
        std::span(sequence.tokens).subspan(size_t{unit} * config_.page_tokens, config_.page_tokens);
    index_->Enter(path, keys[unit], tokens);
  }
  sequence.suspect = index_->Hold(path, cached_tokens);
  path = {};
  const uint32_t most = PagesFor(sequence.prompt_tokens + uint64_t{sequence.max_tokens});
  if (RoomFor(pages) && most + units < pages_.size()) return true;
  sequence.suspect = {};
  index_->Discard(suspect);
  if (tiers_.has_value()) tiers_->Discard(suspect);
  return false;
}

// The sequence has computed the state that its suspect is to be compared with.
void Core::CompareWithSuspect(Sequence& sequence, const FinishedSnapshot& computed) {
  comparisons_.push_back({.computed = computed.snapshot,
                          .first_unit = sequence.request.unit_keys.front(),
                          .suspect = std::move(sequence.suspect)});
  sequence.suspect = {};
}

// With the copies of the next step, if there are none on their way.
void Core::PlanComparisons(StepPlan& plan) {
  if (CopiesInFlight()) return;
  for (Comparison& comparison : comparisons_) {
    const std::optional<FinishedSnapshot> cached = index_->SnapshotOf(comparison.suspect);
    plan.copies.push_back({.kind = TierCopy::Kind::kSnapshot,
                           .from = CacheTier::kDevice,
                           .from_place = comparison.computed,
                           .to = CacheTier::kDevice,
                           .to_place = cached->snapshot,
                           .n_tokens = cached->offset});
    comparison.in_flight = true;
  }
}

// The outcomes of those that were planned.
void Core::ApplyComparisons(std::span<const CopyOutcome> outcomes) {
  std::vector<Comparison> done = std::exchange(comparisons_, {});
  for (size_t i = 0; i < done.size(); ++i) {
    if (!done[i].in_flight) {
      comparisons_.push_back(std::move(done[i]));
      continue;
    }
    snapshots_.Return(done[i].computed);
    const bool differs = i < outcomes.size() && outcomes[i] == CopyOutcome::kChecksum;
    const UnitKey first_unit = done[i].first_unit;
    done[i].suspect = {};
    if (differs) Condemn(first_unit);
  }
}

// What is cached has been found wrong. From here on nothing of it is found any more; what its
// holders leave of it goes when others need the room.
void Core::Condemn(const UnitKey& first_unit) {
  ++counts_.states_condemned;
  ++cache_generation_;
  index_->Discard(first_unit);
  if (tiers_.has_value()) tiers_->Discard(first_unit);
  for (auto& [id, sequence] : sequences_) {
    if (!sequence->admitted()) RenameForGeneration(*sequence);
  }
}

// What is cached in one generation has other names than in the next.
void Core::RenameForGeneration(Sequence& sequence) const {
  const uint64_t generations = cache_generation_ - sequence.cache_generation;
  sequence.cache_generation = cache_generation_;
  if (generations == 0 || !sequence.request.has_keys()) return;
  sequence.request.cache_root.high += generations;
  for (UnitKey& key : sequence.request.unit_keys) key.high += generations;
}

}  // namespace quartet::coordinator
