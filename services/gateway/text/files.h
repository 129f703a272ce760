// Reading the small files of a model folder.
#ifndef QUARTET_SERVICES_GATEWAY_TEXT_FILES_H_
#define QUARTET_SERVICES_GATEWAY_TEXT_FILES_H_

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"
#include "services/gateway/text/value.h"

namespace quartet::text {

// The whole file. NotFound if there is none; InvalidArgument if it is no regular file or has more
// than `bytes_max` bytes.
absl::StatusOr<std::string> ReadSmallFile(const std::string& path, size_t bytes_max);

// The same, parsed as JSON whose top level must be an object. Errors name the file.
absl::StatusOr<Value> ReadJsonObjectFile(const std::string& path, size_t bytes_max);

}  // namespace quartet::text

#endif  // QUARTET_SERVICES_GATEWAY_TEXT_FILES_H_
