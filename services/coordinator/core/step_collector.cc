#include "services/coordinator/core/step_collector.h"

#include <algorithm>
#include <utility>

namespace quartet::coordinator {

StepCollector::StepCollector(uint32_t ranks) : answers_(ranks) {}

void StepCollector::Begin(uint64_t epoch, uint64_t step_id) {
  std::fill(answers_.begin(), answers_.end(), Slot{});
  outcome_ = StepOutcome{epoch, step_id, {}, {}};
  waiting_ = true;
}

StepCollector::Verdict StepCollector::Add(Answer answer) {
  Verdict verdict;
  if (!waiting_ || answer.epoch != outcome_.epoch || answer.step_id != outcome_.step_id ||
      answer.rank >= answers_.size() || answers_[answer.rank].present) {
    verdict.kind = Verdict::Kind::kIgnored;
    return verdict;
  }
  const std::string step = "step " + std::to_string(answer.step_id);
  if (!answer.error.empty()) {
    waiting_ = false;
    verdict.kind = Verdict::Kind::kError;
    verdict.message =
        "rank " + std::to_string(answer.rank) + " failed in " + step + ": " + answer.error;
    return verdict;
  }
  answers_[answer.rank] = {true, answer.agreement_hash};
  if (answer.rank == 0) outcome_.rows = std::move(answer.rows);
  AddCopies(answer.copies);
  if (!MissingRanks().empty()) return verdict;

  waiting_ = false;
  for (size_t rank = 1; rank < answers_.size(); ++rank) {
    if (answers_[rank].hash == answers_[0].hash) continue;
    verdict.kind = Verdict::Kind::kMismatch;
    verdict.message = "rank " + std::to_string(rank) + " does not agree with rank 0 about " + step +
                      " (hash " + std::to_string(answers_[rank].hash) + " against " +
                      std::to_string(answers_[0].hash) + "); no token of it was given out";
    return verdict;
  }
  verdict.kind = Verdict::Kind::kComplete;
  verdict.outcome = std::move(outcome_);
  return verdict;
}

// A copy is good if it is on all ranks.
void StepCollector::AddCopies(const std::vector<CopyOutcome>& copies) {
  const bool first = MissingRanks().size() + 1 == answers_.size();
  if (first) outcome_.copies = copies;
  const size_t least = std::min(outcome_.copies.size(), copies.size());
  outcome_.copies.resize(std::max(outcome_.copies.size(), copies.size()), CopyOutcome::kMissing);
  for (size_t i = 0; i < outcome_.copies.size(); ++i) {
    CopyOutcome& worst = outcome_.copies[i];
    worst = std::max(worst, i < least ? copies[i] : CopyOutcome::kMissing);
  }
}

std::vector<uint32_t> StepCollector::MissingRanks() const {
  std::vector<uint32_t> missing;
  for (size_t rank = 0; rank < answers_.size(); ++rank) {
    if (!answers_[rank].present) missing.push_back(static_cast<uint32_t>(rank));
  }
  return missing;
}

}  // namespace quartet::coordinator
