#include "shard_worker/executor/draft_spoiler.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "shard_worker/executor/agreement_hash.h"

namespace quartet {

absl::StatusOr<DraftSpoiler> DraftSpoiler::Parse(absl::string_view flag) {
  DraftSpoiler spoiler;
  const size_t at = flag.find('@');
  const bool good = absl::SimpleAtod(flag.substr(0, at), &spoiler.rate) && spoiler.rate >= 0 &&
                    spoiler.rate <= 1 &&
                    (at == flag.npos ||
                     (absl::SimpleAtoi(flag.substr(at + 1), &spoiler.place) && spoiler.place >= 1));
  if (good) return spoiler;
  return absl::InvalidArgumentError(
      absl::StrCat("--spoil-drafts is \"", flag,
                   "\", expected RATE or RATE@PLACE, a number in [0, 1] and the draft of a chain "
                   "that is spoiled, from 1"));
}

int32_t DraftSpoiler::Spoil(const ops::SampleParams& sampling, int64_t vocab_size, int64_t position,
                            int chain, int32_t draft) const {
  const int64_t ids = sampling.first_banned > 0 ? sampling.first_banned : vocab_size;
  if (rate == 0 || (place != 0 && place != chain) || ids < 2) return draft;
  AgreementHash hash;
  hash.Add(sampling.seed);
  hash.Add(sampling.choice);
  hash.Add(static_cast<uint64_t>(position));
  const double u = static_cast<double>(hash.value() >> 11) * 0x1p-53;
  if (u >= rate) return draft;
  hash.Add(0);
  const auto others = static_cast<uint64_t>(ids - 1);
  return static_cast<int32_t>((draft + 1 + static_cast<int64_t>(hash.value() % others)) % ids);
}

}  // namespace quartet
