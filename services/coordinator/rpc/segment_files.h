#ifndef QUARTET_SERVICES_COORDINATOR_RPC_SEGMENT_FILES_H_
#define QUARTET_SERVICES_COORDINATOR_RPC_SEGMENT_FILES_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace quartet::coordinator {

// "quartet-<engine>-", with everything but letters, digits, '.' and '_' in `engine` replaced. The
// epoch comes behind it.
std::string SegmentPrefix(std::string_view engine);

// Creates the folder that the ranks' shared-memory segments live in, if it is missing, and removes
// files of earlier epochs of the same engine: names that are the prefix and a number.
absl::Status PrepareSegmentFolder(const std::string& folder, const std::string& prefix);

}  // namespace quartet::coordinator

#endif  // QUARTET_SERVICES_COORDINATOR_RPC_SEGMENT_FILES_H_
