#include "kernels/ops/sampling.h"

#include "absl/strings/str_cat.h"

namespace quartet::ops {
namespace {

absl::Status CheckTop(int top) {
  if (top >= 0 && top <= kMaxTopLogProbs) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("top is ", top, ", expected 0 to ", kMaxTopLogProbs));
}

absl::Status CheckId(const char* what, int64_t id, int64_t vocab) {
  if (id >= 0 && id < vocab) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(what, " ", id, " is no id of a vocabulary of ", vocab));
}

}  // namespace

absl::Status CheckSampleParams(const SampleParams& params, int64_t vocab) {
  for (const LogitBias& bias : params.bias) {
    if (absl::Status s = CheckId("bias", bias.id, vocab); !s.ok()) return s;
  }
  for (const int32_t token : params.uncounted) {
    if (absl::Status s = CheckId("uncounted", token, vocab); !s.ok()) return s;
  }
  if (params.uncounted.size() > kMaxUncounted) {
    return absl::InvalidArgumentError(absl::StrCat(
        params.uncounted.size(), " uncounted tokens, expected at most ", kMaxUncounted));
  }
  const auto words = static_cast<size_t>((vocab + 31) / 32);
  if (!params.allowed.empty() && params.allowed.size() != words) {
    return absl::InvalidArgumentError(absl::StrCat("allowed has ", params.allowed.size(),
                                                   " words, expected ", words,
                                                   " for a vocabulary of ", vocab));
  }
  if (params.forced != -1) {
    if (absl::Status s = CheckId("forced", params.forced, vocab); !s.ok()) return s;
  }
  return CheckTop(params.top);
}

absl::Status CheckScoreParams(const ScoreParams& params, int64_t vocab) {
  if (absl::Status s = CheckId("target", params.target, vocab); !s.ok()) return s;
  return CheckTop(params.top);
}

}  // namespace quartet::ops
