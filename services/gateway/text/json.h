// JSON in and out of Value. All functions are pure and thread safe.
#ifndef QUARTET_SERVICES_GATEWAY_TEXT_JSON_H_
#define QUARTET_SERVICES_GATEWAY_TEXT_JSON_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "services/gateway/text/value.h"

namespace quartet::text {

inline constexpr int kJsonDepthMax = 128;
// A value takes up to about 100 bytes of memory but may take only 3 bytes of text; this bounds what
// a body can cost.
inline constexpr int64_t kJsonValuesMax = 4'000'000;

// Parses one JSON text. Strict (RFC 8259): no comments, no trailing commas, no NaN. A byte order
// mark, ill-formed UTF-8 nesting deeper than kJsonDepthMax and more than kJsonValuesMax values are
// refused. Of keys that repeat the last wins. Numbers keep their spelling. An escaped lone
// surrogate becomes U+FFFD. Errors are InvalidArgument and give line and column.
absl::StatusOr<Value> ParseJson(std::string_view text);

struct JsonStyle {
  // The separators of Python's json.dumps: ", " and ": ".
  bool spaces = true;
  // Spaces per level; below 0 all stands on one line.
  int indent = -1;
  bool ensure_ascii = false;
  bool sort_keys = false;
  // What stands between items and between key and value; empty means what `spaces` and `indent`
  // say.
  std::string item_separator;
  std::string key_separator;
};

// Appends `value` as JSON. Only `"`, `\` and U+0000..001F are escaped unless ensure_ascii.
// Undefined and opaque values are InvalidArgument. Floats that JSON cannot say (infinity, NaN)
// become null.
absl::Status AppendJson(const Value& value, const JsonStyle& style, std::string* out);

// Appends `text` as a JSON string with its quotes.
void AppendJsonString(std::string_view text, std::string* out, bool ensure_ascii = false);

}  // namespace quartet::text

#endif  // QUARTET_SERVICES_GATEWAY_TEXT_JSON_H_
