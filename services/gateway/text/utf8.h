// UTF-8: decoding one code point at a time, and what to do with ill-formed bytes.
//
// Ill-formed input is treated as WHATWG and Unicode recommend: each maximal ill-formed subpart
// counts as one U+FFFD. All functions are pure and thread safe.
#ifndef QUARTET_SERVICES_GATEWAY_TEXT_UTF8_H_
#define QUARTET_SERVICES_GATEWAY_TEXT_UTF8_H_

#include <cstddef>
#include <string>
#include <string_view>

namespace quartet::text {

inline constexpr char32_t kReplacementCharacter = 0xFFFD;

// What stands at the start of a byte string.
struct Utf8Step {
  enum class Kind {
    kCharacter,   // a well-formed code point of `bytes` bytes
    kIllFormed,   // a maximal ill-formed subpart of `bytes` bytes
    kIncomplete,  // the whole rest (1 to 3 bytes) is the beginning of a character that more bytes
                  // could complete
  };
  Kind kind;
  size_t bytes;
  char32_t code_point;  // kReplacementCharacter unless kCharacter
};

// Looks at the first bytes of `text`, which must not be empty.
Utf8Step NextUtf8(std::string_view text);

// Appends `code_point` (a Unicode scalar value) in UTF-8.
void AppendUtf8(char32_t code_point, std::string* out);

bool IsValidUtf8(std::string_view text);

// `text` with every maximal ill-formed subpart, an incomplete end included, replaced by U+FFFD.
std::string ReplaceIllFormedUtf8(std::string_view text);

// The number of code points of well-formed `text`.
size_t CountCodePoints(std::string_view text);

// The byte offset of code point number `index` of well-formed `text`; its size when there are
// fewer.
size_t CodePointOffset(std::string_view text, size_t index);

}  // namespace quartet::text

#endif  // QUARTET_SERVICES_GATEWAY_TEXT_UTF8_H_
