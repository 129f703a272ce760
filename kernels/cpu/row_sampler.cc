#include "kernels/cpu/row_sampler.h"

#include <algorithm>
#include <cassert>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "kernels/cpu/logit_adjust.h"

namespace quartet::cpu {
namespace {

absl::Status CheckRows(const ops::LogitsView& logits, size_t in, size_t out) {
  const size_t rows = static_cast<size_t>(logits.rows);
  if (in == rows && out == rows) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(rows, " rows of logits with ", in,
                                                 " parameters and room for ", out, " results"));
}

// The whole row, one rank's slice after the other: where it lies, or in `space` [vocab].
const float* GatherRow(const ops::LogitsView& logits, int row, float* space) {
  const auto slice = [&](int rank) {
    return logits.data + (int64_t{rank} * logits.rows + row) * logits.local;
  };
  if (logits.ranks == 1) return slice(0);
  for (int rank = 0; rank < logits.ranks; ++rank) {
    std::copy_n(slice(rank), logits.local, space + rank * logits.local);
  }
  return space;
}

}  // namespace

size_t RowSampler::WorkspaceBytes(int, int64_t vocab) const {
  return static_cast<size_t>(vocab) * 2 * sizeof(float);  // a row, and the row adjusted
}

absl::Status RowSampler::Draw(const ops::LogitsView& logits,
                              std::span<const ops::SampleParams> params,
                              std::span<ops::SampleResult> results,
                              ops::Workspace workspace) const {
  if (absl::Status s = CheckRows(logits, params.size(), results.size()); !s.ok()) return s;
  const int64_t vocab = logits.vocab();
  for (const ops::SampleParams& p : params) {
    if (absl::Status s = ops::CheckSampleParams(p, vocab); !s.ok()) return s;
  }
  assert(workspace.bytes >= WorkspaceBytes(logits.rows, vocab));
  auto* space = reinterpret_cast<float*>(workspace.data);
  for (int r = 0; r < logits.rows; ++r) {
    const float* raw = GatherRow(logits, r, space);
    const float* row = raw;
    if (Adjusts(params[r])) {
      AdjustLogits(raw, vocab, params[r], space + vocab);
      row = space + vocab;
    }
    results[r] = sampler_.Draw(row, vocab, params[r]);
    if (!results[r].finite) continue;
    if (row != raw) results[r].logprob = sampler_.LogProb(raw, vocab, results[r].token);
    sampler_.Top(raw, vocab, std::span(results[r].top).first(params[r].top));
  }
  return absl::OkStatus();
}

absl::Status RowSampler::Score(const ops::LogitsView& logits,
                               std::span<const ops::ScoreParams> params,
                               std::span<ops::SampleResult> results,
                               ops::Workspace workspace) const {
  if (absl::Status s = CheckRows(logits, params.size(), results.size()); !s.ok()) return s;
  const int64_t vocab = logits.vocab();
  for (const ops::ScoreParams& p : params) {
    if (absl::Status s = ops::CheckScoreParams(p, vocab); !s.ok()) return s;
  }
  assert(workspace.bytes >= WorkspaceBytes(logits.rows, vocab));
  auto* space = reinterpret_cast<float*>(workspace.data);
  for (int r = 0; r < logits.rows; ++r) {
    const float* row = GatherRow(logits, r, space);
    const float logprob = sampler_.LogProb(row, vocab, params[r].target);
    results[r] = {.token = params[r].target, .logprob = logprob, .finite = !std::isnan(logprob)};
    if (!results[r].finite) continue;
    sampler_.Top(row, vocab, std::span(results[r].top).first(params[r].top));
  }
  return absl::OkStatus();
}

void RowSampler::ClearCounts(uint32_t* counts, int64_t vocab) const {
  std::fill_n(counts, vocab, 0);
}

absl::Status RowSampler::AddCounts(uint32_t* counts, std::span<const int32_t> tokens,
                                   ops::TokenOrigin origin) const {
  for (const int32_t token : tokens) {
    if (origin == ops::TokenOrigin::kPrompt) {
      counts[token] |= ops::kInPrompt;
    } else {
      ++counts[token];
    }
  }
  return absl::OkStatus();
}

}  // namespace quartet::cpu
