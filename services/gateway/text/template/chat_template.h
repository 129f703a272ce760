// Chat templates: an interpreter for the part of the Jinja language that chat templates use.
//
// It behaves like Jinja with trim_blocks, lstrip_blocks and the loop-controls extension, without
// autoescaping, with undefined values that print nothing, and with a tojson filter that writes
// non-ASCII characters as they are.
#ifndef QUARTET_SERVICES_GATEWAY_TEXT_TEMPLATE_CHAT_TEMPLATE_H_
#define QUARTET_SERVICES_GATEWAY_TEXT_TEMPLATE_CHAT_TEMPLATE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "services/gateway/text/value.h"

namespace quartet::text {

// What one rendering may use. A template runs on clients' data, so that each of these can be
// reached by a request.
struct TemplateLimits {
  int64_t steps_max = 10'000'000;
  // Bytes of output, and of any string that the template builds: output_bytes_base + 4 x bytes of
  // the variables.
  size_t output_bytes_base = size_t{16} << 20;
  int nesting_max = 200;
  int macro_depth_max = 100;
};

// A parsed template. Immutable; Render may be called from any number of threads at once.
class ChatTemplate {
 public:
  // Parses everything, so that a construct that is not supported is found here and not while
  // serving. Errors are InvalidArgument and read "NAME:LINE: what is wrong".
  static absl::StatusOr<std::unique_ptr<const ChatTemplate>> Parse(std::string_view source,
                                                                   std::string_view name);
  virtual ~ChatTemplate() = default;

  // Renders with the entries of the object `variables` as global names. Errors: InvalidArgument
  // with the template's own text if it calls raise_exception; InvalidArgument "NAME:LINE: ..." for
  // faults while it runs (an attribute of an undefined value, say); ResourceExhausted if a limit is
  // reached.
  virtual absl::StatusOr<std::string> Render(const Value& variables,
                                             const TemplateLimits& limits = {}) const = 0;

  // Whether the template reads this name anywhere outside its own definitions ("enable_thinking",
  // say).
  virtual bool Mentions(std::string_view name) const = 0;
};

}  // namespace quartet::text

#endif  // QUARTET_SERVICES_GATEWAY_TEXT_TEMPLATE_CHAT_TEMPLATE_H_
