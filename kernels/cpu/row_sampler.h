#ifndef QUARTET_KERNELS_CPU_ROW_SAMPLER_H_
#define QUARTET_KERNELS_CPU_ROW_SAMPLER_H_

#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "kernels/cpu/sampler.h"
#include "kernels/ops/sampling.h"

namespace quartet::cpu {

// Gathers one row at a time and hands it to Sampler. Stateless, so any thread may use it.
class RowSampler : public ops::RowSampler {
 public:
  size_t WorkspaceBytes(int max_rows, int64_t vocab) const override;
  absl::Status Draw(const ops::LogitsView& logits, std::span<const ops::SampleParams> params,
                    std::span<ops::SampleResult> results, ops::Workspace workspace) const override;
  absl::Status Score(const ops::LogitsView& logits, std::span<const ops::ScoreParams> params,
                     std::span<ops::SampleResult> results, ops::Workspace workspace) const override;
  void ClearCounts(uint32_t* counts, int64_t vocab) const override;
  absl::Status AddCounts(uint32_t* counts, std::span<const int32_t> tokens,
                         ops::TokenOrigin origin) const override;

 private:
  Sampler sampler_;
};

}  // namespace quartet::cpu

#endif  // QUARTET_KERNELS_CPU_ROW_SAMPLER_H_
