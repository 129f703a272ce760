#include "services/coordinator/core/step_cost.h"

#include <algorithm>
#include <cmath>

namespace quartet::coordinator {
namespace {

// Units of the terms, so that all of them are of the order of one: a fit that cannot tell two terms
// apart then shares the time between them.
constexpr double kDecodeUnit = 4;
constexpr double kPrefillUnit = 512;
constexpr double kAttendedUnit = 1 << 22;

// Start values.
constexpr double kStartDecodeUs = 20000;      // a step of one row
constexpr double kStartPrefillTokenUs = 714;  // 1,400 tokens a second

constexpr uint32_t kStepsBetweenFits = 8;
constexpr int kRounds = 3;        // of weighting by how well a step fits
constexpr double kGoodFit = 0.2;  // relative error up to which a step counts fully
// Holds a term back that the steps cannot tell from others, as a share of its own weight: what may
// be of the step, of its tokens or of what they attend to is taken to be of the first of these.
constexpr std::array<double, 4> kRidge = {1e-6, 1e-5, 1e-5, 1e-2};

}  // namespace

void StepShape::AddDecode(uint32_t n_tokens, uint32_t position) {
  ++decode_rows;
  decode_tokens += n_tokens;
  attended_tokens += static_cast<double>(n_tokens) * position;
}

void StepShape::AddPrefill(uint32_t n_tokens, uint32_t position) {
  prefill_tokens += n_tokens;
  attended_tokens += n_tokens * (position + 0.5 * n_tokens);
}

StepCost::Terms StepCost::TermsOf(const StepShape& shape) {
  return {1, shape.decode_tokens / kDecodeUnit, shape.prefill_tokens / kPrefillUnit,
          shape.attended_tokens / kAttendedUnit};
}

double StepCost::Predict(const Terms& terms) const {
  double sum = 0;
  for (size_t i = 0; i < kTerms; ++i) sum += terms[i] * cost_us_[i];
  return sum;
}

double StepCost::PredictUs(const StepShape& shape) const {
  return Predict(TermsOf(shape));
}

double StepCost::PrefillUs(uint32_t n_tokens, uint32_t position) const {
  StepShape shape;
  shape.AddPrefill(n_tokens, position);
  return Predict(TermsOf(shape)) - cost_us_[0];
}

double StepCost::PrefillTokensIn(double time_us, uint32_t position) const {
  if (time_us <= 0) return 0;
  // The root of half * n^2 + each * n = time, in the form that survives half = 0.
  const double half = 0.5 * cost_us_[3] / kAttendedUnit;
  const double each = cost_us_[2] / kPrefillUnit + 2 * half * position;
  return 2 * time_us / (each + std::sqrt(each * each + 4 * half * time_us));
}

void StepCost::Observe(const StepShape& shape, TimeUs took_us) {
  if (took_us <= 0) return;
  const Kind kind = shape.prefill_tokens == 0 ? kDecode
                    : shape.decode_rows == 0  ? kPrefill
                                              : kMixed;
  Ring& ring = kinds_[kind];
  ring.samples[ring.next] = {TermsOf(shape), static_cast<double>(took_us)};
  ring.next = (ring.next + 1) % kSamplesOfKind;
  ring.count = std::min(ring.count + 1, kSamplesOfKind);
  if (++unfitted_ >= kStepsBetweenFits || ring.count <= kStepsBetweenFits) Fit();
}

void StepCost::Fit() {
  unfitted_ = 0;
  std::array<Sample, kKinds * kSamplesOfKind> samples;
  size_t count = 0;
  for (const Ring& ring : kinds_) {
    std::copy_n(ring.samples.begin(), ring.count, samples.begin() + count);
    count += ring.count;
  }
  const auto imagine = [&](const StepShape& shape, double took_us) {
    samples[count++] = {TermsOf(shape), took_us};
  };
  if (kinds_[kDecode].count == 0) {
    StepShape shape;
    shape.AddDecode(1, 0);
    imagine(shape, kStartDecodeUs);
  }
  if (!has_seen_prefill()) {
    StepShape shape;
    shape.AddPrefill(512, 0);
    imagine(shape, 512 * kStartPrefillTokenUs);
  }

  for (int round = 0; round < kRounds; ++round) {
    // Normal equations of: sum over terms of (term / took) * cost = 1, for each step.
    std::array<Terms, kTerms> product = {};
    Terms right = {};
    for (size_t s = 0; s < count; ++s) {
      const Sample& sample = samples[s];
      const double off = round == 0 ? 0 : std::abs(1 - Predict(sample.terms) / sample.took_us);
      const double weight = off <= kGoodFit ? 1 : kGoodFit / off * kGoodFit / off;
      for (size_t i = 0; i < kTerms; ++i) {
        const double scaled = weight * sample.terms[i] / sample.took_us;
        right[i] += scaled;
        for (size_t j = 0; j < kTerms; ++j) {
          product[i][j] += scaled * sample.terms[j] / sample.took_us;
        }
      }
    }
    for (size_t i = 0; i < kTerms; ++i) {
      product[i][i] = product[i][i] == 0 ? 1 : product[i][i] * (1 + kRidge[i]);
    }

    // No part of a step takes less than no time: terms that come out negative are left out.
    std::array<bool, kTerms> out = {};
    for (bool again = true; again;) {
      std::array<Terms, kTerms> left = product;
      Terms solution = right;
      for (size_t i = 0; i < kTerms; ++i) {
        if (!out[i]) continue;
        for (size_t j = 0; j < kTerms; ++j) left[i][j] = left[j][i] = 0;
        left[i][i] = 1;
        solution[i] = 0;
      }
      // Elimination without pivoting: the matrix is positive definite.
      for (size_t i = 0; i < kTerms; ++i) {
        for (size_t j = i + 1; j < kTerms; ++j) {
          const double factor = left[j][i] / left[i][i];
          for (size_t k = i; k < kTerms; ++k) left[j][k] -= factor * left[i][k];
          solution[j] -= factor * solution[i];
        }
      }
      for (size_t i = kTerms; i-- > 0;) {
        for (size_t j = i + 1; j < kTerms; ++j) solution[i] -= left[i][j] * solution[j];
        solution[i] /= left[i][i];
      }
      const auto least = std::min_element(solution.begin(), solution.end());
      again = *least < 0;
      if (again) {
        out[static_cast<size_t>(least - solution.begin())] = true;
      } else {
        cost_us_ = solution;
      }
    }
  }
}

}  // namespace quartet::coordinator
