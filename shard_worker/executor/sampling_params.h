#ifndef QUARTET_SHARD_WORKER_EXECUTOR_SAMPLING_PARAMS_H_
#define QUARTET_SHARD_WORKER_EXECUTOR_SAMPLING_PARAMS_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/ops/sampling.h"
#include "proto/quartet/v1/worker.pb.h"

namespace quartet {

// How much a sequence has reasoned.
struct Reasoning {
  bool open = false;    // it does so now
  uint32_t tokens = 0;  // of the output so far
};

// How one sequence's tokens are drawn.
class SequenceSampling {
 public:
  SequenceSampling() = default;
  // Refuses values out of range, naming the field and what was found.
  static absl::StatusOr<SequenceSampling> Make(const v1::SequenceOpen& open, int64_t vocab_size);

  // What every draw has in common; `position` and the spans are empty.
  const ops::SampleParams& common() const { return common_; }
  // For the token at `position` behind what was said so far. Spans refer to this object.
  ops::SampleParams At(int64_t position, const Reasoning& so_far) const;

  // How many of these tokens, the first of which stands at `position`, are part of the prompt.
  int64_t PromptPart(int64_t position, int64_t tokens) const;
  Reasoning reasoning_at_start() const { return {.open = budget_.open()}; }
  // An output token was said.
  void Say(int32_t token, Reasoning& reasoning) const;

  bool penalises() const { return common_.penalises(); }
  // Whether a draw depends on more of the text than the model's state.
  bool needs_text() const { return penalises() || has_budget_; }

 private:
  ops::SampleParams common_;
  std::vector<ops::LogitBias> bias_;  // by id
  // The ids that are never drawn, then those that are not while the text is shorter than it must
  // be.
  std::vector<int32_t> banned_;
  size_t banned_always_ = 0;
  int64_t prompt_tokens_ = 0;
  int64_t min_tokens_ = 0;
  bool has_budget_ = false;
  v1::ThinkingBudget budget_;
};

}  // namespace quartet

#endif  // QUARTET_SHARD_WORKER_EXECUTOR_SAMPLING_PARAMS_H_
