#include "services/coordinator/core/speculation.h"

#include <algorithm>
#include <cassert>

namespace quartet::coordinator {
namespace {

// What a token more in a step costs, its draft included, as a share of a step of nothing: from the
// bytes of weights that a step reads, 5.2 GB for one token and 8.1 GB for four with three drafts.
constexpr double kTokenShare = 0.19;
// The weight of that share in the fit: as that of so many tokens squared away from the mean.
constexpr double kShareWeight = 4;
// A step counts half after about 140 more.
constexpr double kStepKept = 0.995;
// A step that took so many times what was expected tells of something else.
constexpr double kOutlier = 4;
constexpr double kStepsBeforeOutliers = 8;

// Before a sequence has shown anything: as if so many drafts had been tried, with this outcome.
constexpr double kPriorTried = 4;
constexpr double kPriorAccepted = 0.75 * kPriorTried;
// Of one window to the next. What is not tried falls back to the prior meanwhile, so that a length
// that was given up is tried again.
constexpr double kWindowKept = 0.97;

}  // namespace

void DecodeCost::Observe(uint32_t tokens, TimeUs step_us) {
  if (step_us <= 0) return;
  double y = static_cast<double>(step_us);
  if (n_ > kStepsBeforeOutliers) y = std::min(y, kOutlier * StepUs(tokens));
  const double x = tokens;
  for (double* sum : {&n_, &x_, &y_, &xx_, &xy_}) *sum *= kStepKept;
  n_ += 1;
  x_ += x;
  y_ += y;
  xx_ += x * x;
  xy_ += x * y;
}

DecodeCost::Line DecodeCost::Fit() const {
  if (n_ == 0) return {1, kTokenShare};
  const double mean_x = x_ / n_;
  const double mean_y = y_ / n_;
  const double prior = kTokenShare * mean_y / (1 + kTokenShare * mean_x);
  const double spread = xx_ - x_ * mean_x;
  const double slope =
      (xy_ - x_ * mean_y + kShareWeight * prior) / (std::max(spread, 0.0) + kShareWeight);
  const double per_token = std::clamp(slope, 0.0, mean_y / std::max(mean_x, 1.0));
  return {mean_y - per_token * mean_x, per_token};
}

double DecodeCost::StepUs(double tokens) const {
  const Line line = Fit();
  return std::max(line.base + line.per_token * tokens, 1e-6);
}

void DraftLength::Observe(uint32_t drafted, uint32_t accepted) {
  assert(accepted <= drafted && drafted <= kMaxDraftTokens);
  for (uint32_t place = 0; place < kMaxDraftTokens; ++place) {
    tried_[place] *= kWindowKept;
    accepted_[place] *= kWindowKept;
    if (place >= drafted || place > accepted) continue;  // not asked: one before it was wrong
    tried_[place] += 1;
    accepted_[place] += place < accepted;
  }
}

double DraftLength::Acceptance(uint32_t place) const {
  return (accepted_[place] + kPriorAccepted) / (tried_[place] + kPriorTried);
}

uint32_t DraftLength::Choose(const DecodeCost& cost, uint32_t other_tokens) {
  if (++calls_ % kStepsPerChoice != 0) return length_;
  double best = 0;
  double yield = 1;
  double reached = 1;
  for (uint32_t length = 0; length <= longest_; ++length) {
    if (length > 0) {
      reached *= Acceptance(length - 1);
      yield += reached;
    }
    const double rate = yield / cost.StepUs(other_tokens + 1.0 + length);
    if (rate <= best) continue;
    best = rate;
    length_ = length;
  }
  return length_;
}

}  // namespace quartet::coordinator
