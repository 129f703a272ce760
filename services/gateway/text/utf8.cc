#include "services/gateway/text/utf8.h"

namespace quartet::text {

Utf8Step NextUtf8(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return {Utf8Step::Kind::kCharacter, 1, lead};

  // The second byte of some leads has a narrower range: no overlong forms, no surrogates, nothing
  // above U+10FFFF.
  size_t length;
  unsigned char low = 0x80;
  unsigned char high = 0xBF;
  char32_t code_point;
  if (lead >= 0xC2 && lead <= 0xDF) {
    length = 2;
    code_point = lead & 0x1F;
  } else if (lead >= 0xE0 && lead <= 0xEF) {
    length = 3;
    code_point = lead & 0x0F;
    if (lead == 0xE0) low = 0xA0;
    if (lead == 0xED) high = 0x9F;
  } else if (lead >= 0xF0 && lead <= 0xF4) {
    length = 4;
    code_point = lead & 0x07;
    if (lead == 0xF0) low = 0x90;
    if (lead == 0xF4) high = 0x8F;
  } else {
    return {Utf8Step::Kind::kIllFormed, 1, kReplacementCharacter};
  }
  for (size_t i = 1; i < length; ++i) {
    if (i == text.size()) return {Utf8Step::Kind::kIncomplete, i, kReplacementCharacter};
    if (byte(i) < low || byte(i) > high) {
      return {Utf8Step::Kind::kIllFormed, i, kReplacementCharacter};
    }
    code_point = (code_point << 6) | (byte(i) & 0x3F);
    low = 0x80;
    high = 0xBF;
  }
  return {Utf8Step::Kind::kCharacter, length, code_point};
}

void AppendUtf8(char32_t c, std::string* out) {
  const auto put = [out](char32_t byte) { out->push_back(static_cast<char>(byte)); };
  if (c < 0x80) {
    put(c);
  } else if (c < 0x800) {
    put(0xC0 | (c >> 6));
    put(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    put(0xE0 | (c >> 12));
    put(0x80 | ((c >> 6) & 0x3F));
    put(0x80 | (c & 0x3F));
  } else {
    put(0xF0 | (c >> 18));
    put(0x80 | ((c >> 12) & 0x3F));
    put(0x80 | ((c >> 6) & 0x3F));
    put(0x80 | (c & 0x3F));
  }
}

bool IsValidUtf8(std::string_view text) {
  while (!text.empty()) {
    const Utf8Step step = NextUtf8(text);
    if (step.kind != Utf8Step::Kind::kCharacter) return false;
    text.remove_prefix(step.bytes);
  }
  return true;
}

std::string ReplaceIllFormedUtf8(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const Utf8Step step = NextUtf8(text);
    if (step.kind == Utf8Step::Kind::kCharacter) {
      out.append(text.substr(0, step.bytes));
    } else {
      AppendUtf8(kReplacementCharacter, &out);
    }
    text.remove_prefix(step.bytes);
  }
  return out;
}

size_t CountCodePoints(std::string_view text) {
  size_t count = 0;
  for (const char c : text) count += (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  return count;
}

size_t CodePointOffset(std::string_view text, size_t index) {
  for (size_t i = 0; i < text.size(); ++i) {
    if ((static_cast<unsigned char>(text[i]) & 0xC0) == 0x80) continue;
    if (index == 0) return i;
    --index;
  }
  return text.size();
}

}  // namespace quartet::text
