#include "services/coordinator/core/step_collector.h"

#include <algorithm>
#include <utility>

namespace quartet::coordinator {

StepCollector::StepCollector(uint32_t ranks) : ranks_(ranks) {}

void StepCollector::Begin(uint64_t epoch, uint64_t step_id) {
  open_.push_back({std::vector<Slot>(ranks_), StepOutcome{epoch, step_id, {}, {}}});
}

StepCollector::Verdict StepCollector::Add(Answer answer) {
  Verdict verdict;
  // The oldest step that this rank has not answered is the only one that it can answer.
  const auto step = std::ranges::find_if(open_, [&](const Step& open) {
    return answer.rank < ranks_ && !open.answers[answer.rank].present;
  });
  if (step == open_.end() || answer.epoch != step->outcome.epoch ||
      answer.step_id != step->outcome.step_id) {
    verdict.kind = Verdict::Kind::kIgnored;
    return verdict;
  }
  const std::string name = "step " + std::to_string(answer.step_id);
  if (!answer.error.empty()) {
    open_.clear();
    verdict.kind = Verdict::Kind::kError;
    verdict.message =
        "rank " + std::to_string(answer.rank) + " failed in " + name + ": " + answer.error;
    return verdict;
  }
  const bool first = std::ranges::none_of(step->answers, &Slot::present);
  step->answers[answer.rank] = {true, answer.agreement_hash};
  if (answer.rank == 0) step->outcome.rows = std::move(answer.rows);
  AddCopies(answer.copies, first, step->outcome.copies);
  if (!std::ranges::all_of(step->answers, &Slot::present)) return verdict;

  // Whoever answered this step answered those before it, so it is the oldest.
  const Step done = std::move(open_.front());
  open_.pop_front();
  for (size_t rank = 1; rank < ranks_; ++rank) {
    if (done.answers[rank].hash == done.answers[0].hash) continue;
    open_.clear();
    verdict.kind = Verdict::Kind::kMismatch;
    verdict.message = "rank " + std::to_string(rank) + " does not agree with rank 0 about " + name +
                      " (hash " + std::to_string(done.answers[rank].hash) + " against " +
                      std::to_string(done.answers[0].hash) + "); no token of it was given out";
    return verdict;
  }
  verdict.kind = Verdict::Kind::kComplete;
  verdict.outcome = done.outcome;
  return verdict;
}

// A copy is good if it is on all ranks.
void StepCollector::AddCopies(const std::vector<CopyOutcome>& copies, bool first,
                              std::vector<CopyOutcome>& all) {
  if (first) all = copies;
  const size_t least = std::min(all.size(), copies.size());
  all.resize(std::max(all.size(), copies.size()), CopyOutcome::kMissing);
  for (size_t i = 0; i < all.size(); ++i) {
    all[i] = std::max(all[i], i < least ? copies[i] : CopyOutcome::kMissing);
  }
}

std::vector<uint32_t> StepCollector::MissingRanks() const {
  std::vector<uint32_t> missing;
  if (open_.empty()) return missing;
  for (uint32_t rank = 0; rank < ranks_; ++rank) {
    if (!open_.front().answers[rank].present) missing.push_back(rank);
  }
  return missing;
}

}  // namespace quartet::coordinator
