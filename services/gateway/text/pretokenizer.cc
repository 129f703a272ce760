#include "services/gateway/text/pretokenizer.h"

#include "services/gateway/text/unicode.h"
#include "services/gateway/text/utf8.h"

namespace quartet::text {
namespace {

enum class Class { kLetter, kNumber, kLineBreak, kSpace, kOther };

Class Classify(char32_t c) {
  if (c == '\r' || c == '\n') return Class::kLineBreak;
  if (IsLetter(c)) return Class::kLetter;
  if (IsNumber(c)) return Class::kNumber;
  if (IsWhiteSpace(c)) return Class::kSpace;
  return Class::kOther;
}

struct Character {
  Class kind;
  size_t bytes;  // 0 at the end of the text
};

Character At(std::string_view text, size_t position) {
  if (position >= text.size()) return {Class::kOther, 0};
  const Utf8Step step = NextUtf8(text.substr(position));
  return {Classify(step.code_point), step.bytes};
}

// Bytes of the run of characters of class `kind` that starts at `position`.
size_t Run(std::string_view text, size_t position, Class kind) {
  size_t end = position;
  for (Character c = At(text, end); c.bytes > 0 && c.kind == kind; c = At(text, end)) {
    end += c.bytes;
  }
  return end - position;
}

// The one character outside ASCII that folds to a letter of a contraction: the long s, U+017F.
constexpr std::string_view kLongS = "\xC5\xBF";

// 's 't 'm 'd 're 've 'll in either case; 0 if none.
size_t Contraction(std::string_view text) {
  if (text.size() < 2 || text[0] != '\'') return 0;
  if (text.substr(1, kLongS.size()) == kLongS) return 1 + kLongS.size();
  const auto lower = [&](size_t i) {
    const char c = i < text.size() ? text[i] : '\0';
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
  };
  const char a = lower(1);
  const char b = lower(2);
  if (a == 's' || a == 't' || a == 'm' || a == 'd') return 2;
  if ((a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l')) return 3;
  return 0;
}

// White space, line breaks included, of which `text` starts with at least one character.
size_t WhiteSpace(std::string_view text) {
  size_t end = 0;
  size_t last_begin = 0;             // where the last character of the run begins
  size_t after_last_line_break = 0;  // 0: the run has none
  for (Character c = At(text, 0);
       c.bytes > 0 && (c.kind == Class::kSpace || c.kind == Class::kLineBreak); c = At(text, end)) {
    last_begin = end;
    end += c.bytes;
    if (c.kind == Class::kLineBreak) after_last_line_break = end;
  }
  if (after_last_line_break > 0) return after_last_line_break;
  // The last space before a word belongs to the word, unless there is only one.
  if (end == text.size() || last_begin == 0) return end;
  return last_begin;
}

}  // namespace

size_t NextPreToken(std::string_view text) {
  if (const size_t bytes = Contraction(text); bytes > 0) return bytes;

  const Character first = At(text, 0);
  if (first.kind == Class::kLetter) return Run(text, 0, Class::kLetter);
  if (first.kind == Class::kSpace || first.kind == Class::kOther) {
    const size_t letters = Run(text, first.bytes, Class::kLetter);
    if (letters > 0) return first.bytes + letters;
  }
  if (first.kind == Class::kNumber) {
    size_t end = first.bytes;
    for (int i = 1; i < 3; ++i) {
      const Character next = At(text, end);
      if (next.bytes == 0 || next.kind != Class::kNumber) break;
      end += next.bytes;
    }
    return end;
  }
  const size_t space = text[0] == ' ' ? 1 : 0;
  if (const size_t others = Run(text, space, Class::kOther); others > 0) {
    return space + others + Run(text, space + others, Class::kLineBreak);
  }
  return WhiteSpace(text);
}

}  // namespace quartet::text
