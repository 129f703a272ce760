#include "kernels/cpu/row_sampler.h"

#include <algorithm>
#include <cassert>

#include "absl/strings/str_cat.h"

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
  return static_cast<size_t>(vocab) * sizeof(float);
}

absl::Status RowSampler::Draw(const ops::LogitsView& logits,
                              std::span<const ops::SampleParams> params,
                              std::span<ops::SampleResult> results,
                              ops::Workspace workspace) const {
  if (absl::Status s = CheckRows(logits, params.size(), results.size()); !s.ok()) return s;
  assert(workspace.bytes >= WorkspaceBytes(logits.rows, logits.vocab()));
  auto* space = reinterpret_cast<float*>(workspace.data);
  for (int r = 0; r < logits.rows; ++r) {
    results[r] = sampler_.Draw(GatherRow(logits, r, space), logits.vocab(), params[r]);
  }
  return absl::OkStatus();
}

absl::Status RowSampler::LogProbs(const ops::LogitsView& logits, std::span<const int32_t> targets,
                                  std::span<float> out, ops::Workspace workspace) const {
  if (absl::Status s = CheckRows(logits, targets.size(), out.size()); !s.ok()) return s;
  for (const int32_t target : targets) {
    if (target >= 0 && target < logits.vocab()) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("target ", target, " is no id of a vocabulary of ", logits.vocab()));
  }
  assert(workspace.bytes >= WorkspaceBytes(logits.rows, logits.vocab()));
  auto* space = reinterpret_cast<float*>(workspace.data);
  for (int r = 0; r < logits.rows; ++r) {
    out[r] = sampler_.LogProb(GatherRow(logits, r, space), logits.vocab(), targets[r]);
  }
  return absl::OkStatus();
}

}  // namespace quartet::cpu
