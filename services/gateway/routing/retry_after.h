// How long a client should wait before it asks again, carried by the error that it gets.
#ifndef QUARTET_SERVICES_GATEWAY_ROUTING_RETRY_AFTER_H_
#define QUARTET_SERVICES_GATEWAY_ROUTING_RETRY_AFTER_H_

#include <optional>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace quartet::gateway {

absl::Status WithRetryAfter(absl::Status status, absl::Duration wait);
// Nothing if the status does not say.
std::optional<absl::Duration> RetryAfter(const absl::Status& status);

}  // namespace quartet::gateway

#endif  // QUARTET_SERVICES_GATEWAY_ROUTING_RETRY_AFTER_H_
