// The process's limit of open files, of which every connection is one.
#ifndef QUARTET_SERVICES_GATEWAY_HTTP_OPEN_FILES_H_
#define QUARTET_SERVICES_GATEWAY_HTTP_OPEN_FILES_H_

#include <cstddef>

#include "absl/status/status.h"

namespace quartet::gateway {

constexpr size_t kDefaultConnections = 1024;
// Besides connections: listening sockets, event loops, the log, the line to the engine, and the
// admin and gRPC ports with theirs.
constexpr size_t kOtherOpenFiles = 256;

// Raises the soft limit, which shells and containers often set to 1024, to `files` if it is lower.
// Fails if the hard limit does not allow that.
absl::Status AllowOpenFiles(size_t files);

}  // namespace quartet::gateway

#endif  // QUARTET_SERVICES_GATEWAY_HTTP_OPEN_FILES_H_
