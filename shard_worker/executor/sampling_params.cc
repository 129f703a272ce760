#include "shard_worker/executor/sampling_params.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace quartet {
namespace {

constexpr int kMaxBias = 1024;
constexpr int kMaxBanned = 1024;  // and as many end ids
constexpr float kBan = -100.0f;   // the bias that bans

absl::Status OutOfRange(const std::string& field, double value, const char* range) {
  return absl::InvalidArgumentError(absl::StrCat(field, " is ", value, ", expected ", range));
}

absl::Status CheckIds(const char* field, const google::protobuf::RepeatedField<int32_t>& ids,
                      int64_t vocab_size, int most) {
  if (ids.size() > most) {
    return absl::InvalidArgumentError(
        absl::StrCat(field, " has ", ids.size(), " ids, expected at most ", most));
  }
  for (int i = 0; i < ids.size(); ++i) {
    if (ids[i] >= 0 && ids[i] < vocab_size) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(field, "[", i, "] is ", ids[i], ", the vocabulary ends at ", vocab_size));
  }
  return absl::OkStatus();
}

// Written so that a NaN is out of range.
absl::Status CheckNumbers(const v1::SamplingParams& in) {
  if (!(in.temperature() >= 0 && std::isfinite(in.temperature()))) {
    return OutOfRange("temperature", in.temperature(), "a finite number from 0 on");
  }
  if (!(in.top_p() >= 0 && in.top_p() <= 1)) {
    return OutOfRange("top_p", in.top_p(), "a number in (0, 1], or 0 for 1");
  }
  if (in.top_k() < 0) return OutOfRange("top_k", in.top_k(), "0 (off) or more");
  if (!(in.min_p() >= 0 && in.min_p() <= 1)) {
    return OutOfRange("min_p", in.min_p(), "a number in [0, 1]");
  }
  if (!(std::abs(in.presence_penalty()) <= 2)) {
    return OutOfRange("presence_penalty", in.presence_penalty(), "a number from -2 to 2");
  }
  if (!(std::abs(in.frequency_penalty()) <= 2)) {
    return OutOfRange("frequency_penalty", in.frequency_penalty(), "a number from -2 to 2");
  }
  if (!(in.repetition_penalty() >= 0 && std::isfinite(in.repetition_penalty()))) {
    return OutOfRange("repetition_penalty", in.repetition_penalty(),
                      "a finite number above 0, or 0 for 1");
  }
  return absl::OkStatus();
}

absl::Status CheckBias(const v1::SamplingParams& in, int64_t vocab_size) {
  if (in.logit_bias_size() > kMaxBias) {
    return absl::InvalidArgumentError(
        absl::StrCat("logit_bias has ", in.logit_bias_size(), " ids, expected at most ", kMaxBias));
  }
  for (const auto& [id, value] : in.logit_bias()) {
    if (id < 0 || id >= vocab_size) {
      return absl::InvalidArgumentError(
          absl::StrCat("logit_bias has id ", id, ", the vocabulary ends at ", vocab_size));
    }
    if (!(std::abs(value) <= 100)) {
      return OutOfRange(absl::StrCat("logit_bias of ", id), value, "a number from -100 to 100");
    }
  }
  return absl::OkStatus();
}

absl::Status CheckBudget(const v1::ThinkingBudget& budget, int64_t vocab_size) {
  if (budget.end_ids().empty()) {
    return absl::InvalidArgumentError("thinking.end_ids is empty, expected at least one id");
  }
  if (budget.begin_id() < -1 || budget.begin_id() >= vocab_size) {
    return OutOfRange("thinking.begin_id", budget.begin_id(), "-1 (none) or a token id");
  }
  return CheckIds("thinking.end_ids", budget.end_ids(), vocab_size, kMaxBanned);
}

}  // namespace

absl::StatusOr<SequenceSampling> SequenceSampling::Make(const v1::SequenceOpen& open,
                                                        int64_t vocab_size) {
  const v1::SamplingParams& in = open.sampling();
  if (absl::Status s = CheckNumbers(in); !s.ok()) return s;
  if (absl::Status s = CheckBias(in, vocab_size); !s.ok()) return s;
  if (absl::Status s = CheckIds("banned_ids", in.banned_ids(), vocab_size, kMaxBanned); !s.ok()) {
    return s;
  }
  if (absl::Status s = CheckIds("end_ids", open.end_ids(), vocab_size, 2 * kMaxBanned); !s.ok()) {
    return s;
  }
  if (open.first_padding_id() < 0) {
    return OutOfRange("first_padding_id", open.first_padding_id(), "0 (none) or a token id");
  }
  if (open.has_thinking()) {
    if (absl::Status s = CheckBudget(open.thinking(), vocab_size); !s.ok()) return s;
  }

  SequenceSampling out;
  out.common_.temperature = in.temperature();
  out.common_.top_p = in.top_p() == 0 ? 1.0f : in.top_p();
  out.common_.top_k = in.top_k();
  out.common_.min_p = in.min_p();
  out.common_.seed = in.seed();
  out.common_.choice = in.choice();
  out.common_.first_banned = open.first_padding_id() < vocab_size ? open.first_padding_id() : 0;
  out.common_.presence_penalty = in.presence_penalty();
  out.common_.frequency_penalty = in.frequency_penalty();
  if (in.repetition_penalty() != 0) out.common_.repetition_penalty = in.repetition_penalty();

  out.banned_.assign(in.banned_ids().begin(), in.banned_ids().end());
  for (const auto& [id, value] : in.logit_bias()) {
    if (value == kBan) {
      out.banned_.push_back(id);
    } else {
      out.bias_.push_back({id, value});
    }
  }
  std::ranges::sort(out.bias_, {}, &ops::LogitBias::id);
  out.banned_always_ = out.banned_.size();
  out.min_tokens_ = in.min_tokens();
  if (out.min_tokens_ > 0) {
    out.banned_.insert(out.banned_.end(), open.end_ids().begin(), open.end_ids().end());
  }
  out.prompt_tokens_ = open.prompt_tokens();
  out.has_budget_ = open.has_thinking();
  out.budget_ = open.thinking();
  return out;
}

ops::SampleParams SequenceSampling::At(int64_t position, const Reasoning& so_far) const {
  ops::SampleParams params = common_;
  params.position = static_cast<uint32_t>(position);
  if (has_budget_ && so_far.open && so_far.tokens >= budget_.max_tokens()) {
    // Whatever the request bans: there is nothing else to draw.
    params.forced = budget_.end_ids(0);
    return params;
  }
  params.bias = bias_;
  const bool early = position - prompt_tokens_ < min_tokens_;
  params.banned = std::span(banned_).first(early ? banned_.size() : banned_always_);
  return params;
}

int64_t SequenceSampling::PromptPart(int64_t position, int64_t tokens) const {
  return std::clamp<int64_t>(prompt_tokens_ - position, 0, tokens);
}

void SequenceSampling::Say(int32_t token, Reasoning& reasoning) const {
  if (!has_budget_) return;
  if (reasoning.open) {
    ++reasoning.tokens;
    reasoning.open = std::ranges::find(budget_.end_ids(), token) == budget_.end_ids().end();
  } else {
    reasoning.open = token == budget_.begin_id();
  }
}

}  // namespace quartet
