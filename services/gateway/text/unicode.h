// The few facts about Unicode characters that text handling here needs. Pure functions, thread
// safe.
#ifndef QUARTET_SERVICES_GATEWAY_TEXT_UNICODE_H_
#define QUARTET_SERVICES_GATEWAY_TEXT_UNICODE_H_

#include <string>
#include <string_view>

namespace quartet::text {

// General category L.
bool IsLetter(char32_t c);
// General category N: digits of all scripts, Roman numerals, fractions.
bool IsNumber(char32_t c);
// The property White_Space.
bool IsWhiteSpace(char32_t c);
// What Python's str.strip removes: White_Space and U+001C..001F.
bool IsPythonSpace(char32_t c);

// Case conversion of well-formed UTF-8, one character to one character (a sharp s stays as it is).
std::string ToUpper(std::string_view text);
std::string ToLower(std::string_view text);

// `text` without the white space (of IsPythonSpace) at its ends.
std::string_view StripLeft(std::string_view text);
std::string_view StripRight(std::string_view text);
std::string_view Strip(std::string_view text);

}  // namespace quartet::text

#endif  // QUARTET_SERVICES_GATEWAY_TEXT_UNICODE_H_
