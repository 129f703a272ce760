// The tags of the model's output, and how to look for them in text that arrives in pieces.
#ifndef QUARTET_SERVICES_GATEWAY_TEXT_TAGS_H_
#define QUARTET_SERVICES_GATEWAY_TEXT_TAGS_H_

#include <span>
#include <string_view>

namespace quartet::text {

// All begin with the same character and none is the beginning of another.
inline constexpr std::string_view kThinkOpen = "<think>";
inline constexpr std::string_view kThinkClose = "</think>";
inline constexpr std::string_view kCallOpen = "<tool_call>";
inline constexpr std::string_view kCallClose = "</tool_call>";
inline constexpr std::string_view kKeyOpen = "<arg_key>";
inline constexpr std::string_view kKeyClose = "</arg_key>";
inline constexpr std::string_view kValueOpen = "<arg_value>";
inline constexpr std::string_view kValueClose = "</arg_value>";

struct TagMatch {
  size_t at;             // where the tag begins, or what must be held back does
  std::string_view tag;  // empty: none is there whole
};

// Whether more text could complete `text` to `tag`.
inline bool MayBecome(std::string_view text, std::string_view tag) {
  return text.size() < tag.size() && tag.starts_with(text);
}

// The first of `tags` in `text`. Where there is none, `at` is the beginning of the longest suffix
// that may become one: what stands before it can be released, whatever follows.
inline TagMatch FirstTag(std::string_view text, std::span<const std::string_view> tags) {
  for (size_t at = text.find('<'); at < text.size(); at = text.find('<', at + 1)) {
    const std::string_view rest = text.substr(at);
    for (const std::string_view tag : tags) {
      if (rest.starts_with(tag)) return {at, tag};
      if (MayBecome(rest, tag)) return {at, {}};
    }
  }
  return {text.size(), {}};
}

}  // namespace quartet::text

#endif  // QUARTET_SERVICES_GATEWAY_TEXT_TAGS_H_
