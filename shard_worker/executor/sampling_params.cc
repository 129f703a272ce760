#include "shard_worker/executor/sampling_params.h"

#include <cmath>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace quartet {
namespace {

absl::Status Unsupported(const char* field, double value) {
  return absl::UnimplementedError(
      absl::StrCat(field, " ", value, " is not supported by this worker; leave it unset"));
}

absl::Status OutOfRange(const char* field, double value, const char* range) {
  return absl::InvalidArgumentError(absl::StrCat(field, " is ", value, ", expected ", range));
}

}  // namespace

absl::StatusOr<ops::SampleParams> ToSampleParams(const v1::SequenceOpen& open, int64_t vocab_size) {
  const v1::SamplingParams& in = open.sampling();
  if (in.presence_penalty() != 0) return Unsupported("presence_penalty", in.presence_penalty());
  if (in.frequency_penalty() != 0) return Unsupported("frequency_penalty", in.frequency_penalty());
  if (in.repetition_penalty() != 0 && in.repetition_penalty() != 1) {
    return Unsupported("repetition_penalty", in.repetition_penalty());
  }
  if (!in.logit_bias().empty()) {
    return absl::UnimplementedError(absl::StrCat("logit_bias (", in.logit_bias_size(),
                                                 " ids) is not supported by this worker; leave it "
                                                 "unset"));
  }
  if (in.min_tokens() != 0) return Unsupported("min_tokens", in.min_tokens());

  // Written so that a NaN is out of range.
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
  if (open.first_padding_id() < 0) {
    return OutOfRange("first_padding_id", open.first_padding_id(), "0 (none) or a token id");
  }

  ops::SampleParams out;
  out.temperature = in.temperature();
  out.top_p = in.top_p() == 0 ? 1.0f : in.top_p();
  out.top_k = in.top_k();
  out.min_p = in.min_p();
  out.seed = in.seed();
  out.choice = in.choice();
  out.first_banned = open.first_padding_id() < vocab_size ? open.first_padding_id() : 0;
  return out;
}

}  // namespace quartet
