#ifndef QUARTET_SHARD_WORKER_CHECKPOINT_JSON_TEXT_H_
#define QUARTET_SHARD_WORKER_CHECKPOINT_JSON_TEXT_H_

#include <boost/json/value.hpp>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace quartet {

// Parses strict JSON whose objects hold no key twice (a plain parser would silently keep one of the
// two). `what` starts every message, usually a path. Nesting is limited.
absl::StatusOr<boost::json::value> ParseJsonText(std::string_view text, std::string_view what);

// Reads a whole file of at most `max_bytes`.
absl::StatusOr<std::string> ReadTextFile(const std::string& path, uint64_t max_bytes);

// The value as it should appear in a message: shortened JSON.
std::string DescribeJson(const boost::json::value& value);

}  // namespace quartet

#endif  // QUARTET_SHARD_WORKER_CHECKPOINT_JSON_TEXT_H_
