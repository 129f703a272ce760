#include "services/gateway/routing/retry_after.h"

#include <cstdint>
#include <string>

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace quartet::gateway {
namespace {

constexpr char kPayload[] = "quartet/retry-after-ms";

}  // namespace

absl::Status WithRetryAfter(absl::Status status, absl::Duration wait) {
  status.SetPayload(kPayload, absl::Cord(absl::StrCat(absl::ToInt64Milliseconds(wait))));
  return status;
}

std::optional<absl::Duration> RetryAfter(const absl::Status& status) {
  const auto payload = status.GetPayload(kPayload);
  int64_t ms = 0;
  if (!payload.has_value() || !absl::SimpleAtoi(std::string(*payload), &ms)) return std::nullopt;
  return absl::Milliseconds(ms);
}

}  // namespace quartet::gateway
