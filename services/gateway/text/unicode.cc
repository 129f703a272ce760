#include "services/gateway/text/unicode.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <iterator>
#include <span>

#include "services/gateway/text/utf8.h"

namespace quartet::text {
namespace {

struct Range {
  uint32_t first;
  uint32_t last;
};

// Every `step`-th character from first to last maps to itself plus delta.
struct CaseRun {
  uint32_t first;
  uint32_t last;
  uint32_t step;
  int32_t delta;
};

#include "services/gateway/text/unicode_tables.inc"

template <typename Row>
const Row* FindRow(std::span<const Row> rows, uint32_t c) {
  auto after = std::upper_bound(rows.begin(), rows.end(), c,
                                [](uint32_t value, const Row& row) { return value < row.first; });
  if (after == rows.begin()) return nullptr;
  const Row& row = *std::prev(after);
  return c <= row.last ? &row : nullptr;
}

char32_t MapCase(std::span<const CaseRun> runs, char32_t c) {
  const CaseRun* run = FindRow(runs, c);
  if (run == nullptr || (c - run->first) % run->step != 0) return c;
  return static_cast<char32_t>(static_cast<int64_t>(c) + run->delta);
}

template <typename Ascii>
std::string Convert(std::string_view text, std::span<const CaseRun> runs, Ascii ascii) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const unsigned char byte = static_cast<unsigned char>(text[0]);
    if (byte < 0x80) {
      out.push_back(ascii(text[0]));
      text.remove_prefix(1);
      continue;
    }
    const Utf8Step step = NextUtf8(text);
    AppendUtf8(MapCase(runs, step.code_point), &out);
    text.remove_prefix(step.bytes);
  }
  return out;
}

}  // namespace

bool IsLetter(char32_t c) {
  if (c < 0x80) return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
  return FindRow<Range>(kLetters, c) != nullptr;
}

bool IsNumber(char32_t c) {
  if (c < 0x80) return c >= '0' && c <= '9';
  return FindRow<Range>(kNumbers, c) != nullptr;
}

bool IsWhiteSpace(char32_t c) {
  if (c < 0x80) return c == ' ' || (c >= 0x09 && c <= 0x0D);
  return c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 ||
         c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

bool IsPythonSpace(char32_t c) {
  return IsWhiteSpace(c) || (c >= 0x1C && c <= 0x1F);
}

std::string ToUpper(std::string_view text) {
  return Convert(text, kToUpper,
                 [](char c) { return c >= 'a' && c <= 'z' ? static_cast<char>(c - 32) : c; });
}

std::string ToLower(std::string_view text) {
  return Convert(text, kToLower,
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
}

std::string_view StripLeft(std::string_view text) {
  while (!text.empty()) {
    const Utf8Step step = NextUtf8(text);
    if (!IsPythonSpace(step.code_point)) break;
    text.remove_prefix(step.bytes);
  }
  return text;
}

std::string_view StripRight(std::string_view text) {
  while (!text.empty()) {
    size_t begin = text.size() - 1;
    while (begin > 0 && text.size() - begin < 4 &&
           (static_cast<unsigned char>(text[begin]) & 0xC0) == 0x80) {
      --begin;
    }
    if (!IsPythonSpace(NextUtf8(text.substr(begin)).code_point)) break;
    text = text.substr(0, begin);
  }
  return text;
}

std::string_view Strip(std::string_view text) {
  return StripRight(StripLeft(text));
}

}  // namespace quartet::text
