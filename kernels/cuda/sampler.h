#ifndef QUARTET_KERNELS_CUDA_SAMPLER_H_
#define QUARTET_KERNELS_CUDA_SAMPLER_H_

#include <array>
#include <cstdint>
#include <memory>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/context.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/sampler_params.h"
#include "kernels/ops/sampling.h"

namespace quartet::cuda {

struct SamplerLimits {
  int max_rows = 64;
  // What the lists of one row take: a word for each banned id, two for each bias, and a mask.
  int max_list_words = 8192;
};

// Which passes the rows of a step need. One that no row needs changes nothing.
struct SamplePasses {
  bool top_k = false;
  bool top_p = false;
  bool draw = false;  // any row with a cut, min_p included, or with a draft
  bool top = false;

  static SamplePasses Of(std::span<const ops::SampleParams> params);
};

// Sampling on the device. Against cpu::RowSampler: adjusted logits, bans, ties, greedy choice and
// random bits are the same; the noise is FP32, so a draw can differ where two candidates are within
// 1e-5; an id's mass is FP32 (the sums are exact), so the border of top_p can differ where the
// CPU's sum is within 3e-7 of p, and so can the acceptance of a draft; log-probabilities agree to
// 1e-5. A border inside a run of equal logits costs one block a walk over the row's ids.
class RowSampler final : public ops::RowSampler {
 public:
  // The device must outlive it.
  static absl::StatusOr<std::unique_ptr<RowSampler>> Make(Device& device,
                                                          const SamplerLimits& limits);

  size_t WorkspaceBytes(int max_rows, int64_t vocab) const override;
  absl::Status Draw(const ops::LogitsView& logits, std::span<const ops::SampleParams> params,
                    std::span<ops::SampleResult> results, ops::Workspace workspace) const override;
  absl::Status Score(const ops::LogitsView& logits, std::span<const ops::ScoreParams> params,
                     std::span<ops::SampleResult> results, ops::Workspace workspace) const override;
  void ClearCounts(uint32_t* counts, int64_t vocab) const override;
  // Waits for what is on the stream.
  absl::Status AddCounts(uint32_t* counts, std::span<const int32_t> tokens,
                         ops::TokenOrigin origin) const override;

  // Draw in two halves that do not wait. What follows on the stream draws by these parameters,
  // which are copied. At most three calls may be ahead of the stream.
  absl::Status Stage(std::span<const ops::SampleParams> params) const;
  // Draws for rows that were staged; can be captured in a graph and replayed after another Stage of
  // as many rows, with `passes` that cover both.
  void Run(const ops::LogitsView& logits, SamplePasses passes, ops::Workspace workspace,
           SampleOutcome* outcomes /*device, [rows]*/) const;

 private:
  RowSampler(Device& device, const SamplerLimits& limits) : device_(device), limits_(limits) {}

  static constexpr int kRing = 4;

  absl::Status CheckRows(const ops::LogitsView& logits, size_t in, size_t out) const;
  SampleParamsCommon Cut(const ops::LogitsView& logits, ops::Workspace workspace,
                         SampleOutcome* outcomes) const;
  void RunCut(const SampleParamsCommon& common, const LaunchShape& shape, bool by_mass) const;
  size_t RowBytes() const { return limits_.max_rows * sizeof(SampleRow); }
  // The next staging memory: rows, then their lists.
  std::byte* NextStaging() const;
  // What Run left in outcomes_, and in tops_ if `top`.
  absl::Status ReadResults(bool top, std::span<ops::SampleResult> results) const;

  Device& device_;
  const SamplerLimits limits_;
  const Kernel* scan_ = nullptr;
  const Kernel* cut_ = nullptr;
  const Kernel* draw_ = nullptr;
  const Kernel* top_ = nullptr;
  const Kernel* count_ = nullptr;
  Buffer staged_;    // as one staging memory
  Buffer tickets_;   // [max_rows]
  Buffer outcomes_;  // [max_rows], of Draw and Score
  Buffer tops_;      // [max_rows, kSampleTop]
  Buffer counted_;   // tokens of one AddCounts
  std::array<std::byte*, kRing> ring_{};
  mutable int next_ = 0;
};

}  // namespace quartet::cuda

#endif  // QUARTET_KERNELS_CUDA_SAMPLER_H_
