// Debian builds Abseil with a string_view of its own, which does not convert from std::string_view.
#ifndef QUARTET_SERVICES_GATEWAY_TEXT_ABSL_STRINGS_H_
#define QUARTET_SERVICES_GATEWAY_TEXT_ABSL_STRINGS_H_

#include <string_view>

#include "absl/strings/string_view.h"

namespace quartet::text {

inline absl::string_view Av(std::string_view text) {
  return {text.data(), text.size()};
}

}  // namespace quartet::text

#endif  // QUARTET_SERVICES_GATEWAY_TEXT_ABSL_STRINGS_H_
