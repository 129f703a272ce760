#ifndef QUARTET_SHARD_WORKER_CHECKPOINT_MESSAGE_H_
#define QUARTET_SHARD_WORKER_CHECKPOINT_MESSAGE_H_

#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace quartet {

namespace message_internal {
// Abseil may be built with a string_view of its own, which StrCat takes and std::string_view is
// not.
template <typename T>
decltype(auto) Piece(const T& value) {
  if constexpr (std::is_same_v<T, std::string_view>) {
    return absl::string_view(value.data(), value.size());
  } else {
    return (value);
  }
}
}  // namespace message_internal

// absl::StrCat that also takes std::string_view.
template <typename... Args>
std::string Cat(const Args&... args) {
  return absl::StrCat(message_internal::Piece(args)...);
}

// The items as text with `separator` between them.
template <typename Range>
std::string Join(const Range& range, std::string_view separator) {
  std::string text;
  for (const auto& item : range) {
    if (!text.empty()) text += separator;
    text += Cat(item);
  }
  return text;
}

}  // namespace quartet

#endif  // QUARTET_SHARD_WORKER_CHECKPOINT_MESSAGE_H_
